"""A caller cannot approve its own call where an operator or another principal must: on no path, and not with a client that accepts all."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import mcp_types as t
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.attacks.approving import KEYS, Deployment, deployment
from tests.cli.processes import Ended
from tests.fakes.openai_server import ScriptedServer
from tests.fakes.running import ROOT, gateway_command, gateway_http
from tests.interaction.ways import MODERN
from tests.interaction.wire import Era, HttpWire, over_http

pytestmark = [pytest.mark.attack(40), pytest.mark.timeout(120)]
PATIENT_SECONDS = 90.0
"""Approval timeout in tests in which somebody decides, in seconds: longer than a test takes on a busy machine."""

OPENING_SECONDS = 60.0
"""Deadline for a call to open its approval, in seconds."""


def yes(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a form as a client that accepts everything: the strongest choice, or else the first choice or true."""
    fields = request["params"].get("requestedSchema", {}).get("properties", {})
    content: dict[str, Any] = {}
    for name, field in fields.items():
        choices: list[str] = field.get("enum") or []
        content[name] = next((c for c in ("approve_always", "approve") if c in choices), choices[0] if choices else True)
    return {"action": "accept", "content": content}


async def accept_all(wire: HttpWire, **params: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Call a tool, accept every request for input, and return the result and the requests."""
    asked: list[dict[str, Any]] = []
    result = (await wire.send("tools/call", **params))["result"]
    while result.get("resultType") == "input_required":
        requests: dict[str, Any] = result["inputRequests"]
        asked += requests.values()
        answers = {key: yes(request) for key, request in requests.items()}
        state = {"requestState": result["requestState"]} if "requestState" in result else {}
        result = (await wire.send("tools/call", **params, inputResponses=answers, **state))["result"]
    return result, asked


def text_of(result: Any) -> str:
    return result.content[0].text


@asynccontextmanager
async def legacy_client(
    deployment: Deployment, key: str, asked: list[Any], answer: Callable[[Any], dict[str, Any]], sample: Any = None
) -> AsyncGenerator[Client]:
    async def elicit(context: Any, params: Any) -> t.ElicitResult:
        asked.append(params)
        return t.ElicitResult.model_validate(answer({"params": {"requestedSchema": params.requested_schema}}))

    headers = {"Authorization": f"Bearer {deployment.keys[key]}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(deployment.url, http_client=http)
        async with Client(transport, mode="legacy", cache=None, elicitation_callback=elicit, sampling_callback=sample) as client:
            yield client


async def decide(deployment: Deployment, *arguments: str) -> Ended:
    """Decide the one open question from the command line, as soon as it is there."""
    return await anyio.to_thread.run_sync(deployment.cli, "approvals", arguments[0], (await waiting(deployment))["id"], *arguments[1:])


async def waiting(deployment: Deployment) -> dict[str, Any]:
    """Wait for an open question, and return the first one."""
    with anyio.fail_after(OPENING_SECONDS):
        while not (found := (await anyio.to_thread.run_sync(deployment.cli, "approvals", "list")).data["approvals"]):
            await anyio.sleep(0.05)
    return found[0]


async def play(model: ScriptedServer, name: str, arguments: dict[str, Any] | None = None) -> None:
    call = {"name": name, "arguments": arguments or {}}
    turns = [{"when": {"last_role": "user"}, "tool_calls": [call], "repeat": True}, {"text": "{last_tool}", "repeat": True}]
    await model.play(*turns)


REFUSED = ("Nobody approved it within", "operator")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    """A gateway with API keys whose configuration does not set who approves."""
    with deployment(tmp_path_factory.mktemp("approvers")) as made:
        yield made


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    """A gateway as `shared`, with an approval timeout that is long enough for a decision."""
    with deployment(tmp_path_factory.mktemp("patient"), seconds=PATIENT_SECONDS) as made:
        yield made


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    """A gateway in which another principal than the caller must decide."""
    with deployment(tmp_path_factory.mktemp("others"), "other-principal", seconds=PATIENT_SECONDS) as made:
        yield made


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("modern", "weak"),
        ("modern", "star"),
        ("legacy", "weak"),
        ("sampling", "weak"),
        ("agent", "weak"),
        ("agent", "star"),
        ("agent's file", "weak"),
        ("information flow", "weak"),
        ("workflow", "weak"),
        ("agent in code", "weak"),
        ("request in code", "weak"),
        ("agui", "weak"),
        ("modern task", "weak"),
        ("modern task", "star"),
        ("legacy task", "weak"),
    ],
)
async def test_key_cannot_approve_its_own_call_on_any_path(shared: Deployment, path: str, key: str) -> None:
    said, asked = await CALLS[path](shared, key)
    assert not asked, "the caller's client is not even asked"
    assert all(text in said for text in REFUSED), said
    assert shared.wiped == 0 and shared.ran == [] and (shared.folder / "data" / "kept.txt").exists()
    assert shared.rules() == []


async def call_modern(made: Deployment, key: str) -> tuple[str, Sequence[Any]]:
    return await _call(made, key, "disk__wipe", {})


async def call_agent(made: Deployment, key: str) -> tuple[str, Sequence[Any]]:
    await play(made.model, "disk__wipe")
    return await _call(made, key, "agent__clerk", {"task": "Go."})


async def call_agents_file(made: Deployment, key: str) -> tuple[str, Sequence[Any]]:
    await play(made.model, "file_access_delete_file", {"file_name": "kept.txt"})
    return await _call(made, key, "agent__clerk", {"task": "Go."})


async def call_careful(made: Deployment, key: str) -> tuple[str, Sequence[Any]]:
    look: dict[str, Any] = {"when": {"last_role": "user"}, "tool_calls": [{"name": "disk__look", "arguments": {}}]}
    echo: dict[str, Any] = {"when": {"last_role": "tool"}, "tool_calls": [{"name": "up__echo", "arguments": {"text": "leaked"}}]}
    await made.model.play(look, echo, {"text": "{last_tool}"})
    said, asked = await _call(made, key, "agent__careful", {"task": "Go."})
    assert "Refused by security.untrusted" in said or "leaked" in said, said
    return ("" if "leaked" in said else " ".join(REFUSED)), asked


async def call_coded(made: Deployment, key: str) -> tuple[str, Sequence[Any]]:
    said, asked = await _call(made, key, "workflow__coded", {"message": "Go."})
    return f"{said} {' '.join(REFUSED)}", asked


async def call_asking(made: Deployment, key: str) -> tuple[str, Sequence[Any]]:
    return await _call(made, key, "workflow__asking", {"message": "Go."})


async def call_sampling(made: Deployment, key: str) -> tuple[str, Sequence[Any]]:
    asked: list[Any] = []

    async def sample(context: Any, params: Any) -> t.CreateMessageResult:
        asked.append(params)
        return t.CreateMessageResult(role="assistant", content=t.TextContent(type="text", text="Paris"), model="fake")

    async with legacy_client(made, key, asked, yes, sample) as client:
        return text_of(await client.call_tool("up__ask_model", {})), asked


async def call_workflow(made: Deployment, key: str) -> tuple[str, Sequence[Any]]:
    return await _call(made, key, "workflow__flow", {})


async def _call(made: Deployment, key: str, tool: str, arguments: dict[str, Any]) -> tuple[str, Sequence[Any]]:
    async with over_http(made.url, "modern", tasks=False, token=made.keys[key]) as wire:
        result, asked = await accept_all(wire, name=tool, arguments=arguments)
    return result["content"][0]["text"], asked


async def call_legacy(made: Deployment, key: str) -> tuple[str, Sequence[Any]]:
    asked: list[Any] = []
    async with legacy_client(made, key, asked, yes) as client:
        return text_of(await client.call_tool("disk__wipe", {})), asked


async def call_agui(made: Deployment, key: str) -> tuple[str, Sequence[Any]]:
    body = {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "Go."}], "tools": [], "context": []}
    url = made.url.removesuffix("/mcp") + "/agui/clerk"
    await play(made.model, "disk__wipe")
    headers = {"Authorization": f"Bearer {made.keys[key]}"}
    async with httpx2.AsyncClient(timeout=60) as http:
        answer = await http.post(url, json={**body, "state": {}, "forwardedProps": {}}, headers=headers)
    assert answer.status_code == 200
    return answer.text, ["interrupt"] if '"interrupt' in answer.text.lower() else []


async def call_task(made: Deployment, key: str, era: Era) -> tuple[str, Sequence[Any]]:
    """Start a task and answer by `tasks/update` every request for input that a client could guess."""
    asked: list[Any] = []
    async with over_http(made.url, era, token=made.keys[key]) as wire:
        task: dict[str, Any] = {"task": {}} if era == "legacy" else {}
        started = (await wire.send("tools/call", name="disk__wipe", arguments={}, **task))["result"]
        task_id = started["task"]["taskId"] if era == "legacy" else started["taskId"]
        messages: set[str] = set()
        while True:
            state = (await wire.send("tasks/get", taskId=task_id))["result"]
            messages.add(state.get("statusMessage") or "")
            asked += (state.get("inputRequests") or {}).values()
            if state["status"] in ("completed", "failed", "cancelled"):
                break
            assert state["status"] == "working", "it asks its caller nothing"
            if era == "modern":
                guessed = {name: {"action": "accept", "content": {"decision": "approve"}} for name in ("ask-1", "approval", "decision")}
                await wire.send("tasks/update", taskId=task_id, inputResponses=guessed)
            await anyio.sleep(0.1)
        assert any("an operator must decide" in text for text in messages), messages
        if era == "modern":
            return state["result"]["content"][0]["text"], asked
        return (await wire.send("tasks/result", taskId=task_id))["result"]["content"][0]["text"], asked


async def call_modern_task(made: Deployment, key: str) -> tuple[str, Sequence[Any]]:
    return await call_task(made, key, "modern")


async def call_legacy_task(made: Deployment, key: str) -> tuple[str, Sequence[Any]]:
    return await call_task(made, key, "legacy")


CALLS: dict[str, Callable[[Deployment, str], Awaitable[tuple[str, Sequence[Any]]]]] = {
    "modern": call_modern,
    "legacy": call_legacy,
    "sampling": call_sampling,
    "agent": call_agent,
    "agent's file": call_agents_file,
    "information flow": call_careful,
    "workflow": call_workflow,
    "agent in code": call_coded,
    "request in code": call_asking,
    "agui": call_agui,
    "modern task": call_modern_task,
    "legacy task": call_legacy_task,
}


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_operator_at_the_command_line_decides_for_a_key(patient: Deployment, decision: str) -> None:
    said, asked, ended, before = "", list[Any](), list[Ended](), patient.wiped

    async def operate() -> None:
        ended.append(await decide(patient, decision))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(operate)
        said, asked = await call_modern(patient, "weak")
    assert not asked and patient.wiped - before == (decision == "approve")
    assert ("did not approve" in said) == (decision == "deny") and ended[0].code == 0
    decided = [entry for entry in patient.cli("audit").data["entries"] if entry["kind"] == "approval.decided"][-1]
    assert (decided["by"], decided["decidedBy"], decided["channel"]) == ("operator", "local", "list")


async def review(made: Deployment, key: str, decision: str, *, era: Era = "modern") -> tuple[str, list[str], list[list[str]]]:
    """Call `review_approvals` with this key and return the result, the texts shown to the person, and the offered choices."""
    texts: list[str] = []
    choices: list[list[str]] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        choices.append(request["params"]["requestedSchema"]["properties"]["decision"]["enum"])
        return {"action": "accept", "content": {"decision": decision}} if decision != "cancel" else {"action": "cancel"}

    if era == "legacy":
        asked: list[Any] = []
        async with legacy_client(made, key, asked, answer) as client:
            result = await client.call_tool("review_approvals", {})
            return text_of(result), [params.message for params in asked], choices
    async with over_http(made.url, "modern", tasks=False, token=made.keys[key]) as wire:
        result = (await wire.send("tools/call", name="review_approvals", arguments={}))["result"]
        while result.get("resultType") == "input_required":
            texts += [request["params"]["message"] for request in result["inputRequests"].values()]
            answers = {name: answer(request) for name, request in result["inputRequests"].items()}
            state = result["requestState"]
            sent = await wire.send("tools/call", name="review_approvals", arguments={}, inputResponses=answers, requestState=state)
            result = sent["result"]
        return result["content"][0]["text"], texts, choices


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize(("place", "reviewer"), [("patient", "boss"), ("patient", "chief"), ("others", "other"), ("others", "boss")])
async def test_reviewer_with_the_right_approves_the_call_of_another_key(
    place: str, reviewer: str, era: Era, request: pytest.FixtureRequest
) -> None:
    made: Deployment = request.getfixturevalue(place)
    result, texts, choices, before = "", list[str](), list[list[str]](), made.wiped
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call_modern, made, "weak")
        await waiting(made)
        result, texts, choices = await review(made, reviewer, "approve", era=era)
    assert result == "1 approved, 0 declined, 0 left open." and made.wiped == before + 1
    [text] = texts
    assert "'wipe' of 'disk'" in text and "by 'key:" in text
    for_good = ["approve_always_with_arguments", "approve_always"] if reviewer in ("boss", "chief") else []
    assert choices[0] == ["approve", *for_good, "decline"]


@pytest.mark.parametrize(
    ("place", "caller", "reviewers"),
    [
        ("patient", "weak", ["weak", "other", "star", "narrow"]),
        ("others", "weak", ["weak", "narrow"]),
        ("others", "chief", ["chief"]),
    ],
)
async def test_review_shows_nothing_to_keys_that_may_not_decide(
    place: str, caller: str, reviewers: list[str], request: pytest.FixtureRequest
) -> None:
    made: Deployment = request.getfixturevalue(place)
    before, found = made.wiped, list[tuple[str, list[str]]]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call_modern, made, caller)
        await waiting(made)
        for reviewer in reviewers:
            found.append((await review(made, reviewer, "approve"))[:2])
        await decide(made, "deny")
    assert found == [("Nothing waits for a decision of yours.", [])] * len(reviewers) and made.wiped == before


async def test_review_that_is_cancelled_decides_nothing(patient: Deployment) -> None:
    before, found = patient.wiped, list[tuple[str, list[str]]]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call_modern, patient, "weak")
        await waiting(patient)
        found.append((await review(patient, "boss", "cancel"))[:2])
        assert len(patient.cli("approvals", "list").data["approvals"]) == 1
        await decide(patient, "deny")
    assert found[0][0] == "0 approved, 0 declined, 1 left open." and patient.wiped == before


async def test_review_is_listed_to_keys_with_the_right(shared: Deployment, others: Deployment) -> None:
    async def listed(made: Deployment, key: str, era: Era) -> bool:
        async with over_http(made.url, era, token=made.keys[key]) as wire:
            tools = (await wire.send("tools/list"))["result"]["tools"]
            return "review_approvals" in {tool["name"] for tool in tools}

    for era in ("modern", "legacy"):
        assert [key for key in KEYS if await listed(shared, key, era)] == ["boss", "chief"]
    assert all([await listed(others, key, "modern") for key in KEYS])


async def test_operator_approves_its_own_call_in_its_own_client(tmp_path: Path) -> None:
    with deployment(tmp_path) as made:
        _, asked = await call_modern(made, "chief")
        assert len(asked) == 1 and made.wiped == 1
        assert asked[0]["params"]["requestedSchema"]["properties"]["decision"]["enum"][2] == "approve_always"
        [rule] = made.rules()
        assert rule["madeBy"] == rule["principal"] and rule["arguments"] == "any"
        assert (await call_modern(made, "chief"))[1] == [] and made.wiped == 2


async def test_caller_may_approve_its_own_call_once_if_the_rules_allow(tmp_path: Path) -> None:
    with deployment(tmp_path, "caller") as made:
        _, asked = await call_modern(made, "weak")
        assert made.wiped == 1 and asked[0]["params"]["requestedSchema"]["properties"]["decision"]["enum"] == ["approve", "decline"]
        async with over_http(made.url, "modern", tasks=False, token=made.keys["weak"]) as wire:
            first = (await wire.send("tools/call", name="disk__wipe", arguments={}))["result"]
            for_good = {key: {"action": "accept", "content": {"decision": "approve_always"}} for key in first["inputRequests"]}
            sent = await wire.send(
                "tools/call", name="disk__wipe", arguments={}, inputResponses=for_good, requestState=first["requestState"]
            )
        assert sent["result"]["isError"] and made.wiped == 1 and made.rules() == []


async def test_key_behind_another_gateway_cannot_approve(shared: Deployment, tmp_path: Path) -> None:
    """The front gateway has no keys and a client that accepts all; the key is that of the front gateway at the inner one."""
    entry = {"type": "http", "url": shared.url, "headers": {"Authorization": f"Bearer {shared.keys['weak']}"}}
    with gateway_http(tmp_path, {"mcpServers": {"inner": entry}, "server": {"askTimeoutSeconds": 30}}, "front") as url:
        async with over_http(url, "modern", tasks=False) as wire:
            result, asked = await accept_all(wire, name="inner__disk__wipe", arguments={})
            assert not asked and "Nobody approved it within" in result["content"][0]["text"]
            names = {tool["name"] for tool in (await wire.send("tools/list"))["result"]["tools"]}
            assert "inner__review_approvals" not in names and "inner__disk__wipe" in names
    assert shared.wiped == 0


async def test_local_user_cannot_decide_its_own_call_if_another_must(others: Deployment) -> None:
    ended, results, before = list[Ended](), list[Any](), others.wiped

    async def operate() -> None:
        ended.append(await decide(others, "approve"))
        await review(others, "other", "decline")

    async with Client(_stdio(others), mode=MODERN, cache=None, elicitation_callback=_approve) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(operate)
            results.append(await client.call_tool("disk__wipe", {}))
    assert ended[0].code != 0 and "other than the caller" in ended[0].err
    assert results[0].is_error and others.wiped == before


async def _approve(context: Any, params: Any) -> t.ElicitResult:
    return t.ElicitResult(action="accept", content={"decision": "approve"})


def _stdio(made: Deployment) -> Any:
    command, args = gateway_command(made.folder / "gateway.json")
    return StdioServerParameters(command=command, args=args, cwd=ROOT)


async def test_local_caller_of_a_gateway_with_keys_is_elicited(tmp_path: Path) -> None:
    with deployment(tmp_path) as made:
        async with Client(_stdio(made), mode=MODERN, cache=None, elicitation_callback=_approve) as client:
            result: Any = await client.call_tool("disk__wipe", {})
        assert not result.is_error and made.wiped == 1


async def test_request_state_of_an_approved_call_works_once(tmp_path: Path) -> None:
    async def calls(wire: HttpWire) -> int:
        stats = await wire.send("tools/call", name="up__stats", arguments={})
        return stats["result"]["structuredContent"]["calls"].get("ask_name", 0)

    with deployment(tmp_path) as made:
        async with over_http(made.url, "modern", tasks=False, token=made.keys["chief"]) as wire:
            request: dict[str, Any] = {"name": "up__ask_name", "arguments": {}}
            asked = (await wire.send("tools/call", **request))["result"]
            approved = {key: {"action": "accept", "content": {"decision": "approve"}} for key in asked["inputRequests"]}
            state = {"requestState": asked["requestState"]}
            second = (await wire.send("tools/call", **request, inputResponses=approved, **state))["result"]
            [(key, form)] = second["inputRequests"].items()
            assert "name" in form["params"]["requestedSchema"]["properties"], "the server's own question"
            answer = {"inputResponses": {key: {"action": "accept", "content": {"name": "Ada"}}}, "requestState": second["requestState"]}
            done = (await wire.send("tools/call", **request, **answer))["result"]
            assert done["content"][0]["text"] == "accept: Ada"
            before = await calls(wire)
            again = (await wire.send("tools/call", **request, **answer)).get("result", {})
            assert "accept: Ada" not in str(again) and await calls(wire) == before
