"""Approvals inside agents through real gateways: a form, `input_required` or the list, whichever the client has; and approvals for good."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as t
import pytest
from mcp.client.client import Client

from tests.fakes.running import upstream_stdio
from tests.interaction.place import Place, place_of
from tests.interaction.ways import MODERN, Era
from tests.interaction.wire import over_http
from tests.storage.test_records import records

pytestmark = [pytest.mark.timeout(60)]
AGENT = "---\nname: clerk\ndescription: Echoes.\nmodel: openai-chat:scripted\ntools: [guarded/echo, guarded/add]\n---\nEcho.\n"
ECHO: dict[str, Any] = {"when": {"last_role": "tool"}, "text": "The tool said: {last_tool}", "repeat": True}
WORK_SECONDS = 2.0
"""The tool's timeout, shorter than the time until a person answers in another terminal."""


def calling(*texts: str) -> dict[str, Any]:
    """Return a script for a model that calls the guarded tool with all these texts in one response to each user message."""
    calls = [{"name": "guarded__echo", "arguments": {"text": text}, "id": f"c-{text}"} for text in texts]
    return {"when": {"last_role": "user"}, "tool_calls": calls, "repeat": True}


async def ended(place: Place) -> list[dict[str, Any]]:
    """Return the tool results in the last request to the model."""
    return [message for message in await place.messages() if message["role"] == "tool"]


def config(folder: Path) -> dict[str, Any]:
    (folder / "own").mkdir()
    (folder / "own" / "clerk.agent.md").write_text(AGENT)
    policies = {"guarded": {"approval": {"always": ["e*"], "never": ["extra*"]}, "timeoutSeconds": WORK_SECONDS}}
    return {"mcpServers": {"guarded": upstream_stdio()}, "policies": policies, "expose": {"agents": ["own"]}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[Place]:
    folder = tmp_path_factory.mktemp("approvals")
    with place_of(folder, config(folder)) as made:
        yield made


@dataclass
class Person:
    """Answers approvals with these decisions in turn, the last one again and again."""

    decisions: list[str]
    asked: list[str] = field(default_factory=lambda: list[str]())
    choices: list[str] = field(default_factory=lambda: list[str]())

    async def elicit(self, context: Any, params: Any) -> t.ElicitResult:
        self.asked.append(params.message)
        self.choices = params.requested_schema["properties"]["decision"]["enum"]
        decision = self.decisions.pop(0) if len(self.decisions) > 1 else self.decisions[0]
        return t.ElicitResult(action="accept", content={"decision": decision})


@asynccontextmanager
async def client_of(target: Any, era: Era, person: Person | None = None) -> AsyncGenerator[Client]:
    """A client with that person, or without forms."""
    mode = "legacy" if era == "legacy" else MODERN
    async with Client(target, mode=mode, cache=None, elicitation_callback=person.elicit if person else None) as client:
        yield client


async def ask(client: Client) -> Any:
    return await client.call_tool("agent__clerk", {"task": "Go on."})


@pytest.mark.requirement("AP1", "AP2", "AP3")
@pytest.mark.parametrize(("front", "era"), [("http", "legacy"), ("http", "modern"), ("stdio", "legacy")])
async def test_person_decides_each_agent_tool_call_in_client(place: Place, front: str, era: Era) -> None:
    await place.model.play(calling(f"yes {front} {era}", f"no {front} {era}"), ECHO)
    person = Person(["approve", "decline"])
    async with client_of(place.target(front), era, person) as client:
        result = await ask(client)
    assert not result.is_error
    assert sorted("text: yes" in text for text in person.asked) == [False, True]
    said = {message["tool_call_id"].split()[0]: message["content"] for message in await ended(place)}
    asked_first = "c-yes" if "text: yes" in person.asked[0] else "c-no"
    assert {key: "did not approve" in text for key, text in said.items()} == {key: key != asked_first for key in ("c-yes", "c-no")}
    assert f"{front} {era}" in said[asked_first], "the model reads what the other gave, and goes on"


@pytest.mark.requirement("AP2", "AP13")
async def test_modern_client_gets_input_required_and_answers_one_call(place: Place) -> None:
    await place.model.play(calling("bound"), ECHO)
    async with over_http(place.url, "modern", tasks=False) as wire:
        first = (await wire.send("tools/call", name="agent__clerk", arguments={"task": "Go on."}))["result"]
        assert first["resultType"] == "input_required"
        [(key, request)] = first["inputRequests"].items()
        assert request["method"] == "elicitation/create" and "'echo' of 'guarded'" in request["params"]["message"]
        yes = {key: {"action": "accept", "content": {"decision": "approve"}}}
        answer = {"inputResponses": yes, "requestState": first["requestState"]}
        other = await wire.send("tools/call", name="agent__clerk", arguments={"task": "Something else."}, **answer)
        assert "error" in other, "the state is bound to the call"
        again = (await wire.send("tools/call", name="agent__clerk", arguments={"task": "Go on."}, inputResponses=yes))["result"]
        assert again["resultType"] == "input_required", "an answer to nothing that was asked approves nothing"
        done = (await wire.send("tools/call", name="agent__clerk", arguments={"task": "Go on."}, **answer))["result"]
    assert (done["resultType"], done["content"][0]["text"]) == ("complete", "The tool said: bound")


@pytest.mark.requirement("AP4", "AP8", "AP11")
async def test_calls_without_approval_run_once_and_the_others_request_it(place: Place) -> None:
    added = {"name": "guarded__add", "arguments": {"a": 2, "b": 3}, "id": "c-add"}
    await place.model.play({**calling("one", "two"), "tool_calls": [added, *calling("one", "two")["tool_calls"]]}, ECHO)
    arguments: dict[str, Any] = {"name": "agent__clerk", "arguments": {"task": "All of it."}}
    async with over_http(place.url, "modern", tasks=False) as wire:
        before = (await wire.send("tools/call", name="guarded__stats", arguments={}))["result"]["structuredContent"]["calls"]
        first = (await wire.send("tools/call", **arguments))["result"]
        asked = {key: request["params"]["message"] for key, request in first["inputRequests"].items()}
        assert sorted("text: one" in message for message in asked.values()) == [False, True]
        answers: dict[str, Any] = {
            key: {"action": "accept", "content": {"decision": "approve" if "text: one" in message else "decline"}}
            for key, message in asked.items()
        }
        state = {"requestState": first["requestState"]}
        [open_key, *_] = [key for key, message in asked.items() if "text: two" in message]
        partly = {key: answer for key, answer in answers.items() if key != open_key}
        second = (await wire.send("tools/call", **arguments, **state, inputResponses=partly))["result"]
        assert set(second["inputRequests"]) == {open_key}, "what is answered is not asked again"
        rest = {"requestState": second["requestState"], "inputResponses": {open_key: answers[open_key]}}
        done = (await wire.send("tools/call", **arguments, **rest))["result"]
        after = (await wire.send("tools/call", name="guarded__stats", arguments={}))["result"]["structuredContent"]["calls"]
    assert done["resultType"] == "complete"
    said = {message["tool_call_id"]: message["content"] for message in await ended(place)}
    assert (said["c-add"], said["c-one"]) == ("5", "one") and "did not approve" in said["c-two"]
    assert [after.get(name, 0) - before.get(name, 0) for name in ("add", "echo")] == [1, 1]


@pytest.mark.requirement("AP9", "AP10")
async def test_permanent_approval_matches_arguments_and_is_revocable(place: Place) -> None:
    person = Person(["approve_always_with_arguments"])
    async with client_of(place.url, "legacy", person) as client:
        await place.model.play(calling("same"), ECHO)
        for _ in range(2):
            assert (await ask(client)).content[0].text == "The tool said: same"
        assert len(person.asked) == 1
        assert person.choices == ["approve", "approve_always_with_arguments", "approve_always", "decline"]
        await place.model.play(calling("other"), ECHO)
        person.decisions = ["decline"]
        assert "did not approve" in (await ask(client)).content[0].text
        [rule] = (place.cli("approvals", "rules"))["rules"]
        assert (rule["source"], rule["name"], rule["arguments"]) == ("guarded", "echo", "these")
        assert "text: same" in rule["shown"]
        assert place.cli("approvals", "revoke", rule["id"][:6]) == {"revoked": rule["id"]}
        await place.model.play(calling("same"), ECHO)
        assert "did not approve" in (await ask(client)).content[0].text
        assert len(person.asked) == 3
    async with records(place.path.parent / "gateway-state") as made:
        entries = await (await made.audit()).read(since=0, source="guarded", limit=1000)
    assert {entry.kind for entry in entries if entry.fields.get("id") == rule["id"]} == {"approval.rule", "approval.revoked"}
    assert [entry.fields["outcome"] for entry in entries if entry.fields.get("rule") == rule["id"]] == ["approved"]


@pytest.mark.requirement("AP2", "AP5", "AP9", "AP10")
async def test_agent_without_forms_waits_past_its_deadline_for_approval(place: Place) -> None:
    await place.model.play(calling("over stdio"), ECHO)

    decided: list[Any] = []
    results: list[Any] = []
    async with client_of(place.target("stdio"), "modern") as client:
        async with anyio.create_task_group() as tasks:

            async def decide() -> None:
                async with records(place.path.parent / "gateway-state") as made:
                    asks = await made.questions()
                    while not (waiting := await asks.list(only_open=True)):
                        await anyio.sleep(0.05)  # another process asks
                await anyio.sleep(waiting[0].created_at + WORK_SECONDS - time.time())
                decided.append(await anyio.to_thread.run_sync(place.cli, "approvals", "approve", waiting[0].id, "--always"))

            tasks.start_soon(decide)
            results.append(await ask(client))
        await place.model.play(calling("anything"), ECHO)
        results.append(await ask(client))
    assert decided[0]["taken"] and decided[0]["decision"] == "approved_always"
    assert [result.content[0].text for result in results] == ["The tool said: over stdio", "The tool said: anything"]
    [rule] = place.cli("approvals", "rules")["rules"]
    assert rule["arguments"] == "any"
    place.cli("approvals", "revoke", rule["id"])
