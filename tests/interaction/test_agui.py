"""AG-UI: an agent's run over `/agui/<agent>`, driven over a real socket and read with the protocol's own types."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from ag_ui.core import Event
from pydantic import TypeAdapter

from gateway import Agent, AGUIChatClient, tool
from gateway.errors import ModelError
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.running import gateway_http, upstream_stdio

pytestmark = [pytest.mark.timeout(60), pytest.mark.requirement("UI1")]
HELPER = """---
name: helper
description: Helps with one thing. Use it in tests.
tools: [up/echo]
---
Do what you are asked.
"""
EVENT: TypeAdapter[Any] = TypeAdapter(Event)
CALL = {"name": "up__echo", "arguments": {"text": "from the agent"}}


def config(folder: Path, **policy: Any) -> dict[str, Any]:
    (folder / "agents").mkdir(exist_ok=True)
    (folder / "agents" / "helper.agent.md").write_text(HELPER)
    return {"mcpServers": {"up": upstream_stdio()}, "expose": {"agents": ["agents"]}, "policies": {"up": policy}}


def environment(model: ScriptedServer) -> dict[str, str]:
    return {"OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "scripted", "OPENAI_API_KEY": ""}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, ScriptedServer]]:
    folder = tmp_path_factory.mktemp("agui")
    with openai_server() as model, gateway_http(folder, config(folder), env=environment(model)) as url:
        yield url.removesuffix("/mcp") + "/agui/helper", model


def request(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = [{"id": f"m{n}", **message} for n, message in enumerate(messages)]
    return {"threadId": "t1", "runId": "r1", "messages": given, "tools": [], "context": [], "state": {}, "forwardedProps": {}, **more}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def run(url: str, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    """Run an agent and return the events, after validating each event against the protocol's types."""
    async with httpx2.AsyncClient(timeout=30) as client, client.stream("POST", url, json=body, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[5:]) async for line in answer.aiter_lines() if line.startswith("data:")]
    for event in events:
        EVENT.validate_python(event)
    return events


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


async def test_run_streams_events_from_start_over_tools_to_end(running: tuple[str, ScriptedServer]) -> None:
    url, model = running
    await model.play({"when": {"last_role": "user"}, "tool_calls": [CALL]}, {"when": {"last_role": "tool"}, "text": "It said: {last_tool}"})
    events = await run(url, request(user("Echo something.")))
    assert kinds(events) == [
        *["RUN_STARTED", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT", "TEXT_MESSAGE_START"],
        *["TEXT_MESSAGE_CONTENT"] * (len(events) - 8),
        *["TEXT_MESSAGE_END", "RUN_FINISHED"],
    ]
    by_kind = {event["type"]: event for event in events}
    assert (by_kind["RUN_STARTED"]["threadId"], by_kind["RUN_STARTED"]["runId"]) == ("t1", "r1")
    assert by_kind["TOOL_CALL_START"]["toolCallName"] == "up__echo"
    assert json.loads(by_kind["TOOL_CALL_ARGS"]["delta"]) == CALL["arguments"]
    assert by_kind["TOOL_CALL_RESULT"]["content"] == "from the agent"
    assert by_kind["TOOL_CALL_RESULT"]["toolCallId"] == by_kind["TOOL_CALL_START"]["toolCallId"]
    assert "".join(e["delta"] for e in events if e["type"] == "TEXT_MESSAGE_CONTENT") == "It said: from the agent"
    assert by_kind["RUN_FINISHED"]["usage"] == [{"inputTokens": 22, "outputTokens": 14, "totalTokens": 36}]
    assert by_kind["RUN_FINISHED"]["outcome"] == {"type": "success"}


async def test_application_keeps_conversation_and_model_reads_all_of_it(running: tuple[str, ScriptedServer]) -> None:
    url, model = running
    await model.play({"text": "You are Ada."})
    image = {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}}
    before = [user("I am Ada."), {"role": "assistant", "content": "Hello Ada."}]
    last = user([{"type": "text", "text": "Who am I?"}, image])
    await run(url, request(*before, last, context=[{"description": "page", "value": "profile"}]))
    sent = json.dumps((await model.requests())[-1]["body"])
    assert all(part in sent for part in ("I am Ada.", "Hello Ada.", "Who am I?", "data:image/png;base64,aGk=", "page: profile"))
    assert sent.index("I am Ada.") < sent.index("Hello Ada.") < sent.index("Who am I?")


async def test_application_tool_call_ends_run_and_next_run_has_its_result(
    running: tuple[str, ScriptedServer],
) -> None:
    url, model = running
    own: dict[str, Any] = {"name": "pick_colour", "description": "Asks for a colour.", "parameters": {"type": "object", "properties": {}}}
    await model.play(
        {"when": {"last_role": "user"}, "tool_calls": [{"name": "pick_colour", "id": "call-7"}]},
        {"when": {"last_role": "tool"}, "text": "Painted {last_tool}."},
    )
    events = await run(url, request(user("Paint it."), tools=[own]))
    assert events[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["call-7"]}
    assert "TOOL_CALL_RESULT" not in kinds(events)
    assert "".join(e["delta"] for e in events if e["type"] == "TOOL_CALL_ARGS") == "{}"
    made = {"id": "call-7", "type": "function", "function": {"name": "pick_colour", "arguments": "{}"}}
    answer = [{"role": "assistant", "toolCalls": [made]}, {"role": "tool", "toolCallId": "call-7", "content": "green"}]
    events = await run(url, request(user("Paint it."), *answer, tools=[own]))
    assert "".join(e.get("delta", "") for e in events if e["type"] == "TEXT_MESSAGE_CONTENT") == "Painted green."


async def test_question_to_the_person_interrupts_run_and_answer_resumes_it(tmp_path: Path) -> None:
    with openai_server() as model, gateway_http(tmp_path, config(tmp_path, approval="always"), env=environment(model)) as front:
        url = front.removesuffix("/mcp") + "/agui/helper"
        await model.play({"when": {"last_role": "user"}, "tool_calls": [CALL]}, {"when": {"last_role": "tool"}, "text": "{last_tool}"})
        events = await run(url, request(user("Echo something.")))
        outcome = events[-1]["outcome"]
        assert outcome["type"] == "interrupt"
        (asked,) = outcome["interrupts"]
        assert asked["reason"] == "elicitation/create"
        assert "'echo' of 'up'" in asked["message"]
        payload = {"decision": next(iter(asked["responseSchema"]["properties"]["decision"]["enum"]))}
        resume = [{"interruptId": asked["id"], "status": "resolved", "payload": payload}]
        events = await run(url, request(user("Echo something."), resume=resume))
        assert kinds(events)[:2] == ["RUN_STARTED", "TOOL_CALL_RESULT"]
        assert "".join(e.get("delta", "") for e in events if e["type"] == "TEXT_MESSAGE_CONTENT") == "from the agent"
        late = await run(url, request(user("Echo something."), resume=resume))
        assert late[-1]["type"] == "RUN_ERROR"
        assert "no longer waits" in late[-1]["message"]


async def test_agent_that_is_hidden_from_clients_gets_no_run(tmp_path: Path) -> None:
    hiding = {**config(tmp_path), "policies": {"agent": {"overrides": {"helper": {"listed": False}}}}}
    with openai_server() as model, gateway_http(tmp_path, hiding, env=environment(model)) as front:
        async with httpx2.AsyncClient(timeout=30) as client:
            answer = await client.post(front.removesuffix("/mcp") + "/agui/helper", json=request(user("Echo something.")))
        assert (answer.status_code, await model.requests()) == (404, [])


async def test_failed_run_ends_with_the_reason(running: tuple[str, ScriptedServer]) -> None:
    url, model = running
    await model.play({"status": 401, "message": "no"})
    events = await run(url, request(user("Anything.")))
    assert events[-1]["type"] == "RUN_ERROR"
    assert "OPENAI_API_KEY" in events[-1]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("nobody", request(user("x")), 404, "Unknown agent 'nobody'"),
        ("helper", {"threadId": "t"}, 400, "runId"),
        ("helper", [], 400, "RunAgentInput"),
        ("helper", request({"role": "wizard", "content": "x"}), 400, "messages"),
        ("helper", request(user("x"), resume=[{"interruptId": "made-up", "status": "resolved"}]), 400, "resume"),
        ("helper", request(user("x"), tools=[{"name": "bad name!", "description": ""}]), 400, "bad name!"),
        ("helper", request(user("x" * 5_000_000)), 413, "maxRequestBytes"),
    ],
)
async def test_unrunnable_request_is_rejected_with_the_reason(
    running: tuple[str, ScriptedServer], path: str, body: Any, status: int, says: str
) -> None:
    async with httpx2.AsyncClient(timeout=30) as client:
        answer = await client.post(running[0].removesuffix("helper") + path, json=body)
    assert (answer.status_code, says in answer.json()["message"]) == (status, True), answer.text


async def test_another_origin_gets_no_run(running: tuple[str, ScriptedServer]) -> None:
    async with httpx2.AsyncClient() as client:
        answer = await client.post(running[0], json=request(user("x")), headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403


async def test_application_that_disconnects_ends_the_run(running: tuple[str, ScriptedServer]) -> None:
    url, model = running
    await model.play({"tool_calls": [CALL]}, {"hold": "never", "text": "x"}, {"text": "free"})
    async with httpx2.AsyncClient(timeout=30) as client, client.stream("POST", url, json=request(user("x"))) as answer:
        async for line in answer.aiter_lines():
            if "TOOL_CALL_RESULT" in line:
                break
    assert kinds(await run(url, request(user("again"))))[-1] == "RUN_FINISHED"


async def test_remote_agent_can_call_our_tools(running: tuple[str, ScriptedServer]) -> None:
    url, model = running
    await model.play(
        {"when": {"last_role": "user"}, "tool_calls": [CALL]},
        {"when": {"contains": "from the agent"}, "tool_calls": [{"name": "pick_colour", "id": "call-7"}]},
        {"when": {"last_role": "tool"}, "text": "Painted {last_tool}."},
    )

    @tool
    def pick_colour() -> str:
        """Asks for a colour."""
        return "green"

    agent = Agent(AGUIChatClient(endpoint=url), tools=[pick_colour])
    response = await agent.run("Paint it.")
    assert response.text == "Painted green."
    kinds_seen = [content.type for message in response.messages for content in message.contents]
    assert {"mcp_server_tool_call", "mcp_server_tool_result", "function_call", "function_result"} <= set(kinds_seen)


async def test_unreachable_or_failing_remote_agent_is_reported(running: tuple[str, ScriptedServer]) -> None:
    url, model = running
    await model.play({"status": 500, "message": "down", "repeat": True})
    with pytest.raises(ModelError, match="AG-UI agent failed"):
        await Agent(AGUIChatClient(endpoint=url)).run("x")
    with pytest.raises(ModelError, match="404"):
        await Agent(AGUIChatClient(endpoint=url + "-not")).run("x")
    with pytest.raises(ModelError, match="cannot be reached"):
        await Agent(AGUIChatClient(endpoint="http://127.0.0.1:9/")).run("x")


async def test_truncated_stream_is_not_a_response() -> None:
    async def cut(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
            await stream.send(head + b'data: {"type":"TEXT_MESSAGE_CONTENT","messageId":"1","delta":"half"}\n\n')

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, cut)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        with pytest.raises(ModelError, match="before the run was finished"):
            await Agent(AGUIChatClient(endpoint=f"http://127.0.0.1:{port}/")).run("x")
        tasks.cancel_scope.cancel()
