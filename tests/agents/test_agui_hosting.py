"""A program's own agent over AG-UI, in a Starlette application, over a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
import uvicorn
from ag_ui.core import Event, RunAgentInput
from pydantic import TypeAdapter
from starlette.applications import Starlette

from gateway import Agent, AGUIChatClient, Content, FunctionTool, ScriptedChatClient, WorkflowBuilder
from gateway.ag_ui import AgentFrameworkAgent, add_agent_framework_fastapi_endpoint
from gateway.errors import ModelError
from tests.fakes.running import free_port

pytestmark = [pytest.mark.timeout(60), pytest.mark.requirement("UI1")]
EVENT: TypeAdapter[Any] = TypeAdapter(Event)


@contextmanager
def served(app: Starlette) -> Generator[str]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.02)
        assert thread.is_alive()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


class Hosted:
    """One application; each test adds its agent."""

    def __init__(self, app: Starlette, url: str) -> None:
        self._app = app
        self._url = url
        self._count = 0

    def __call__(self, agent: Any) -> str:
        self._count += 1
        add_agent_framework_fastapi_endpoint(self._app, agent, path := f"/{self._count}")
        return self._url + path


@pytest.fixture(scope="module")
def host() -> Generator[Hosted]:
    app = Starlette()
    with served(app) as url:
        yield Hosted(app, url)


def request(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = [{"id": f"m{n}", **message} for n, message in enumerate(messages)]
    return {"threadId": "t1", "runId": "r1", "messages": given, "tools": [], "context": [], "state": {}, "forwardedProps": {}, **more}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def called(call_id: str, name: str) -> dict[str, Any]:
    return {"role": "assistant", "toolCalls": [{"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}]}


async def run(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with httpx2.AsyncClient(timeout=30) as client, client.stream("POST", url, json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        events = [json.loads(line[5:]) async for line in answer.aiter_lines() if line.startswith("data:")]
    for event in events:
        EVENT.validate_python(event)
    return events


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def asking(replies: Sequence[Any]) -> tuple[Agent, list[str]]:
    done: list[str] = []

    def remove() -> str:
        done.append("removed")
        return "gone"

    tools = [FunctionTool(remove, name="remove", approval_mode="always_require")]
    return Agent(ScriptedChatClient(replies), name="cleaner", tools=tools), done


async def test_own_agent_streams_start_text_and_end(host: Hosted) -> None:
    client = ScriptedChatClient(["Hello there."])
    events = await run(host(Agent(client, "Greet.")), request(user("Hi."), threadId="thread-7"))
    assert kinds(events)[:2] == ["RUN_STARTED", "TEXT_MESSAGE_START"] and kinds(events)[-2:] == ["TEXT_MESSAGE_END", "RUN_FINISHED"]
    assert "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT") == "Hello there."
    assert {event["threadId"] for event in events if "threadId" in event} == {"thread-7"}


async def test_application_sends_the_conversation_and_gateway_keeps_nothing(host: Hosted) -> None:
    client = ScriptedChatClient(["One.", "Two."])
    url = host(Agent(client))
    await run(url, request(user("First.")))
    await run(url, request(user("First."), {"role": "assistant", "content": "One."}, user("Second.")))
    assert [message.text for message in client.requests[1][0]] == ["First.", "One.", "Second."]


async def test_factory_makes_agent_for_each_request(host: Hosted) -> None:
    threads: list[str] = []

    async def make(wanted: RunAgentInput) -> Any:
        threads.append(wanted.thread_id)
        return WorkflowBuilder(start_executor=Agent(ScriptedChatClient(["Done."]), name="a")).build().as_agent()

    url = host(make)
    ended = [kinds(await run(url, request(user("Go."), threadId=thread)))[-1] for thread in ("a", "b")]
    assert (threads, ended) == (["a", "b"], ["RUN_FINISHED"] * 2)


async def test_tools_of_application_end_run_with_pending_calls(host: Hosted) -> None:
    client = ScriptedChatClient([[Content.from_function_call("c1", "pick", "{}")]])
    tool: dict[str, Any] = {"name": "pick", "description": "Pick a colour.", "parameters": {"type": "object", "properties": {}}}
    events = await run(host(Agent(client)), request(user("Paint."), tools=[tool]))
    assert events[-1]["outcome"]["pendingToolCallIds"] == ["c1"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, ["removed"]),
        ({"status": "resolved", "payload": True}, ["removed"]),
        ({"status": "resolved", "payload": {"approved": False}}, []),
        ({"status": "resolved", "payload": "yes"}, []),
        ({"status": "resolved"}, []),
        ({"status": "resolved", "payload": {"approved": "yes"}}, []),
        ({"status": "cancelled"}, []),
    ],
)
async def test_approval_is_an_interrupt_and_only_clear_yes_runs_call(
    host: Hosted, answer: dict[str, Any], expected: list[str]
) -> None:
    agent, done = asking([[Content.from_function_call("c1", "remove", "{}")], "As you wish."])
    url = host(agent)
    events = await run(url, request(user("Clean.")))
    (interrupt,) = events[-1]["outcome"]["interrupts"]
    assert "remove" in interrupt["message"] and interrupt["responseSchema"]["required"] == ["approved"] and done == []
    resume = [{"interruptId": interrupt["id"], **answer}]
    ended = await run(url, request(user("Clean."), called("c1", "remove"), resume=resume))
    assert (kinds(ended)[-1], done) == ("RUN_FINISHED", expected)
    again = await run(url, request(user("Clean."), called("c1", "remove"), resume=resume))
    assert (kinds(again)[-1], done) == ("RUN_ERROR", expected)


async def test_answer_to_unknown_request_runs_nothing(host: Hosted) -> None:
    agent, done = asking([[Content.from_function_call("c1", "remove", "{}")], "Gone."])
    url = host(agent)
    resume = [{"interruptId": "c1", "status": "resolved", "payload": {"approved": True}}]
    answered = request(user("Clean."), called("c1", "remove"), resume=resume)
    events = await run(url, answered)
    assert (kinds(events), done) == (["RUN_STARTED", "RUN_ERROR"], [])
    assert "is not an open request" in events[-1]["message"]
    await run(url, request(user("Clean.")))
    assert kinds(await run(url, {**answered, "resume": [*resume, {**resume[0], "interruptId": "c2"}]}))[-1] == "RUN_ERROR"
    assert done == []
    assert (kinds(await run(url, answered))[-1], done) == ("RUN_FINISHED", ["removed"])


def test_objects_that_are_not_agents_are_rejected_when_added() -> None:
    app: Any = Starlette()
    flow: Any = WorkflowBuilder(start_executor=Agent(ScriptedChatClient(["Done."]), name="a")).build()
    with pytest.raises(TypeError, match=r"not a Workflow\. .* returns its as_agent\(\)"):
        add_agent_framework_fastapi_endpoint(app, flow, "/flow")
    nothing: Any = "gpt"
    with pytest.raises(TypeError, match=r"not a str\.$"):
        AgentFrameworkAgent(nothing)
    assert app.routes == []


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (ModelError("no credit"), "no credit"),
        (KeyError("/etc/secret"), "internal error"),
        (ValueError("/etc/secret"), "internal error"),
    ],
)
async def test_failure_is_a_run_error_without_its_inside(
    host: Hosted, failure: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    events = await run(host(Agent(ScriptedChatClient([failure]))), request(user("Go.")))
    assert (kinds(events)[-1], said in events[-1]["message"], "secret" in json.dumps(events)) == ("RUN_ERROR", True, False)


async def test_body_that_is_not_a_run_is_refused_with_its_reason(host: Hosted) -> None:
    async with httpx2.AsyncClient() as client:
        answer = await client.post(host(Agent(ScriptedChatClient([]))), json={"threadId": 1})
    assert answer.status_code == 400 and "not a RunAgentInput" in answer.json()["message"]


async def test_hosted_agent_serves_remote_chat_client_and_event_stream(host: Hosted) -> None:
    hosted = AgentFrameworkAgent(Agent(ScriptedChatClient(["Far away.", "Near."]), name="far"))
    assert hosted.name == "far"
    response = await Agent(AGUIChatClient(endpoint=host(hosted))).run("Where?")
    assert response.text == "Far away."
    assert [str(event.type.value) async for event in hosted.run(request(user("Where?")))][-1] == "RUN_FINISHED"
