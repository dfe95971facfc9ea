"""Asks that meet in unusual places, under policy: several of one result, over pipes, through two gateways, inside agents and tasks."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types as t
import pytest
from mcp.client.client import Client

from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.running import gateway_http, raw_stdio, upstream_stdio
from tests.interaction.tasks import start, until
from tests.interaction.ways import MODERN, Era
from tests.interaction.wire import over_http

pytestmark = [pytest.mark.timeout(60)]
ERAS: list[Era] = ["legacy", "modern"]
QUESTION: dict[str, Any] = {"role": "user", "content": {"type": "text", "text": "Capital of France?"}}
SAMPLING: dict[str, Any] = {"method": "sampling/createMessage", "params": {"messages": [QUESTION], "maxTokens": 10}}
FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
NAME: dict[str, Any] = {"method": "elicitation/create", "params": {"mode": "form", "message": "Your name?", "requestedSchema": FORM}}
PLAIN: dict[str, Any] = {"type": "object"}
BOTH: dict[str, Any] = {
    "tools": [{"name": "job", "inputSchema": PLAIN}],
    "results": {"job": [{"resultType": "input_required", "inputRequests": {"word": SAMPLING, "name": NAME}, "requestState": "s1"}]},
}
AGENT = "---\nname: clerk\ndescription: Echoes.\nmodel: openai:scripted\ntools: [guarded/echo]\n---\nEcho the text.\n"
WORKFLOW = """\
name: routine
description: Echoes.
input: {text: {type: string}}
executors:
  say: {tool: guarded/echo, arguments: {text: "{{text}}"}}
start: say
output: say
"""


@dataclass(frozen=True)
class Gateways:
    """A gateway whose servers send requests for input, a second gateway in front that answers them, and the model of both."""

    url: str
    second: str
    model: ScriptedServer


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Generator[Gateways]:
    folder = tmp_path_factory.mktemp("mixes")
    (folder / "own").mkdir()
    (folder / "own" / "clerk.agent.md").write_text(AGENT)
    (folder / "own" / "routine.workflow.yaml").write_text(WORKFLOW)
    answer, ask, relay = ({"sampling": {"mode": mode, "maxRequests": None}} for mode in ("answer", "ask", "relay"))
    failing = {"sampling": {"mode": "answer", "model": "openai:broken"}}
    servers = {
        "both": raw_stdio(BOTH, "--modern"),
        "answer-new": upstream_stdio(),
        "answer-old": upstream_stdio("--legacy"),
        "ask-new": upstream_stdio(),
        "ask-old": upstream_stdio("--legacy"),
        "relayed": upstream_stdio("--legacy"),
        "failing": raw_stdio({"tools": [{"name": "job", "inputSchema": PLAIN}], "asks": SAMPLING}),
        "guarded": upstream_stdio(),
    }
    policies: dict[str, Any] = {name: ask if name.startswith("ask") else answer for name in servers}
    policies |= {"relayed": relay, "failing": failing, "guarded": {"approval": "always", "tasks": {"promote": ["echo"]}}}
    document = {"mcpServers": servers, "policies": policies, "expose": {"agents": ["own"]}}
    called = {"when": {"last_role": "user", "contains": "Echo this"}, "repeat": True}
    turns: list[dict[str, Any]] = [
        {"when": {"model": "broken"}, "status": 400, "message": "no", "repeat": True},
        {**called, "tool_calls": [{"name": "guarded__echo", "arguments": {"text": "from the agent"}, "id": "c1"}]},
        {"when": {"last_role": "tool"}, "text": "{last_tool}", "repeat": True},
        {"text": "Paris", "repeat": True},
    ]
    with openai_server(*turns) as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "sk-test", "OPENAI_MODEL": "scripted"}
        with gateway_http(folder, document, env=env) as url:
            hub = {"mcpServers": {"hub": {"type": "http", "url": url}}, "policies": {"hub": answer}}
            with gateway_http(folder, hub, "second", env=env) as second:
                yield Gateways(url, second, model)


@asynccontextmanager
async def client_of(url: str, era: Era, asked: list[Any], *, samples: bool = False) -> AsyncGenerator[Client]:
    """A client whose person approves and is called Ada, and whose model, if it has one, says Lyon."""

    async def elicit(context: Any, params: Any) -> t.ElicitResult:
        asked.append(params)
        answers = {"decision": "approve", "name": "Ada"}
        return t.ElicitResult(action="accept", content={k: v for k, v in answers.items() if k in params.requested_schema["properties"]})

    async def sample(context: Any, params: Any) -> t.CreateMessageResult:
        asked.append(params)
        return t.CreateMessageResult(role="assistant", content=t.TextContent(type="text", text="Lyon"), model="own")

    mode = "legacy" if era == "legacy" else MODERN
    async with Client(url, mode=mode, cache=None, elicitation_callback=elicit, sampling_callback=sample if samples else None) as client:
        yield client


def text(result: Any) -> str:
    return result.content[0].text


@pytest.mark.requirement(48)
async def test_model_answers_sampling_and_person_answers_the_rest(gateways: Gateways) -> None:
    async with over_http(gateways.url, "modern") as wire:
        first = (await wire.send("tools/call", name="both__job", arguments={}))["result"]
        assert set(first["inputRequests"]) == {"name"}
        assert "Paris" not in json.dumps(first), "what our model said is sealed in the state"
        given = {"name": {"action": "accept", "content": {"name": "Ada"}}}
        asked = {"inputResponses": given, "requestState": first["requestState"]}
        before = len(await gateways.model.requests())
        done = (await wire.send("tools/call", name="both__job", arguments={}, **asked))["result"]
    got = done["structuredContent"]["got"]
    assert got["requestState"] == "s1"
    assert got["inputResponses"]["name"] == given["name"]
    assert got["inputResponses"]["word"]["content"] == {"type": "text", "text": "Paris"}
    assert len(await gateways.model.requests()) == before, "the model is asked once"


@pytest.mark.requirement(47, 49)
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("server", ["answer-new", "answer-old", "ask-new", "ask-old"])
async def test_stdio_server_is_answered_by_model_after_approval(gateways: Gateways, era: Era, server: str) -> None:
    asked: list[Any] = []
    async with client_of(gateways.url, era, asked) as client:
        assert text(await client.call_tool(f"{server}__ask_model", {})) == "Paris"
    assert len(asked) == server.startswith("ask")


@pytest.mark.requirement(50)
@pytest.mark.parametrize("era", ERAS)
async def test_outer_gateway_answers_what_inner_gateway_relays(gateways: Gateways, era: Era) -> None:
    asked: list[Any] = []
    async with client_of(gateways.second, era, asked, samples=True) as client:
        assert text(await client.call_tool("hub__relayed__ask_model", {})) == "Paris"
    assert asked == []


@pytest.mark.requirement(47)
@pytest.mark.parametrize("era", ERAS)
async def test_clients_model_answers_after_approval_without_our_own_model(tmp_path: Path, era: Era) -> None:
    asked: list[Any] = []
    servers = {"new": upstream_stdio(), "old": upstream_stdio("--legacy")}
    policies = {name: {"sampling": {"mode": "ask"}} for name in servers}
    none = {"OPENAI_BASE_URL": "", "OPENAI_API_KEY": "", "OPENAI_MODEL": ""}
    with gateway_http(tmp_path, {"mcpServers": servers, "policies": policies}, env=none) as url:
        async with client_of(url, era, asked, samples=True) as client:
            said = [text(await client.call_tool(f"{name}__ask_model", {})) for name in servers]
    assert said == ["Lyon", "Lyon"]
    kinds = ["sampling" if hasattr(params, "messages") else "form" for params in asked]
    assert kinds == ["form", "sampling"] * 2


@pytest.mark.requirement(29, 42)
@pytest.mark.parametrize("era", ERAS)
async def test_failing_model_is_an_internal_error_to_the_server(gateways: Gateways, era: Era) -> None:
    async with client_of(gateways.url, era, []) as client:
        error = json.loads(text(await client.call_tool("failing__job", {})))
    assert error["code"] == -32603
    assert "sk-test" not in error["message"]


@pytest.mark.requirement("MC6")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("tool", "arguments"), [("agent__clerk", {"task": "Echo this"}), ("workflow__routine", {"text": "from the flow"})])
async def test_approval_inside_agent_or_workflow_goes_to_the_caller(gateways: Gateways, era: Era, tool: str, arguments: Any) -> None:
    asked: list[Any] = []
    async with client_of(gateways.url, era, asked) as client:
        result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    [params] = asked
    assert "echo" in params.message
    assert "from the" in text(result)


@pytest.mark.parametrize("era", ERAS)
async def test_approval_of_a_call_run_as_task_waits_with_the_task(gateways: Gateways, era: Era) -> None:
    async with over_http(gateways.url, era) as wire:
        made = await start(wire, era, "guarded__echo", text="hi")
        waiting = await until(wire, made["taskId"], "input_required")
        if era == "modern":
            [(key, ask)] = waiting["inputRequests"].items()
            assert "echo" in ask["params"]["message"]
            given = {key: {"action": "accept", "content": {"decision": "approve"}}}
            await wire.send("tasks/update", taskId=made["taskId"], inputResponses=given)
            done = await until(wire, made["taskId"], "completed", "failed")
            assert done["result"]["structuredContent"] == {"got": {"text": "hi"}}
        else:
            await wire.send("tasks/cancel", taskId=made["taskId"])
            assert (await until(wire, made["taskId"], "cancelled"))["status"] == "cancelled"
