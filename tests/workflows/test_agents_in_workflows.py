"""Agents as executors, and workflows as agents."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Never

import pytest

from gateway.agents.agent import Agent
from gateway.chat.scripted import Reply, ScriptedChatClient
from gateway.errors import AgentError
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.workflows.agent_executor import AgentExecutor, AgentExecutorRequest, AgentExecutorResponse
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.checkpoints import InMemoryCheckpointStorage
from gateway.workflows.executor import Executor, handler, response_handler
from gateway.workflows.workflow_agent import WorkflowAgent
from gateway.workflows.workflow_context import WorkflowContext


def agent(name: str, *answers: Reply) -> tuple[Agent, ScriptedChatClient]:
    client = ScriptedChatClient(answers)
    return Agent(client, "Do.", name=name), client


def said(client: ScriptedChatClient, call: int = 0) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in client.requests[call][0] if message.role != "system"]


def first_only(messages: list[Message]) -> list[Message]:
    return messages[:1]


@pytest.mark.requirement("WF1")
async def test_agents_hand_on_the_whole_conversation() -> None:
    (writer, _), (reviewer, seen) = agent("writer", "draft"), agent("reviewer", "fine")
    workflow = WorkflowBuilder(start_executor=writer).add_edge(writer, reviewer).build()
    result = await workflow.run("write")
    outputs = result.get_outputs()
    assert all(isinstance(output, AgentResponse) for output in outputs)
    assert [output.text for output in outputs] == ["draft", "fine"]
    assert said(seen) == [("user", "write"), ("assistant", "draft")]
    assert list(workflow.executors) == ["writer", "reviewer"]


@pytest.mark.requirement("WF1")
@pytest.mark.parametrize(
    ("mode", "keep", "expected"),
    [
        ("last_agent", None, [("assistant", "draft")]),
        ("custom", first_only, [("user", "write")]),
    ],
)
async def test_agent_may_take_over_less(
    mode: Any, keep: Callable[[list[Message]], list[Message]] | None, expected: list[tuple[str, str]]
) -> None:
    (writer, _), (reviewer, seen) = agent("writer", "draft"), agent("reviewer", "fine")
    node = AgentExecutor(reviewer, context_mode=mode, context_filter=keep)
    await WorkflowBuilder(start_executor=writer).add_edge(writer, node).build().run(Message("user", "write"))
    assert said(seen) == expected
    with pytest.raises(ValueError, match="context_filter must be provided"):
        AgentExecutor(reviewer, context_mode="custom")


async def test_messages_can_be_collected_before_an_agent_answers() -> None:
    class Feed(Executor):
        @handler
        async def run(self, message: str, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
            await ctx.send_message(AgentExecutorRequest([Message("user", "first")], should_respond=False))
            await ctx.send_message(AgentExecutorRequest([Message("user", message)]))

    class Read(Executor):
        @handler
        async def run(self, message: AgentExecutorResponse, ctx: WorkflowContext[Never, list[str]]) -> None:
            replaced = message.with_text("other")
            await ctx.yield_output([item.text for item in replaced.full_conversation])

    one, client = agent("one", "answer")
    builder = WorkflowBuilder(start_executor=Feed("feed"), output_from=["read"]).add_edge("feed", one).add_edge(one, Read("read"))
    assert (await builder.build().run("second")).get_outputs() == [["first", "second", "other"]]
    assert len(client.requests) == 1


async def test_stream_of_a_workflow_has_the_parts_of_its_agents() -> None:
    one, _ = agent("one", ["a long", " answer"])
    stream = WorkflowBuilder(start_executor=one).build().run("go", stream=True)
    parts = [event.data async for event in stream if event.type == "output"]
    assert all(isinstance(part, AgentResponseUpdate) for part in parts)
    assert len(parts) == 2
    assert "".join(part.text for part in parts) == "a long answer"


class Picky:
    """An agent that is not a Moongate class, and whose first response is an approval request."""

    id = "picky"
    name = "picky"
    description = None

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.kwargs: dict[str, Any] = {}

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        return AgentSession(session_id=session_id)

    def get_session(self, service_session_id: str, *, session_id: str | None = None) -> AgentSession:
        return AgentSession(session_id=session_id, service_session_id=service_session_id)

    async def run(self, messages: Any, *, stream: bool = False, session: Any = None, **kwargs: Any) -> AgentResponse:
        self.heard, self.kwargs = list(messages), kwargs
        if any(content.type == "function_approval_response" for message in self.heard for content in message.contents):
            return AgentResponse([Message("assistant", "done")])
        call = Content.from_function_call("c", "delete", {"path": "x"})
        request = Content.from_function_approval_request("r1", call)
        return AgentResponse([Message("assistant", [request])])


def picky() -> tuple[Picky, SupportsAgentRun]:
    made = Picky()
    return made, made  # pyright: ignore[reportReturnType]  # it does not support streaming


@pytest.mark.requirement("WF9")
async def test_agent_question_becomes_a_request_of_the_workflow() -> None:
    made, node = picky()
    storage = InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(name="w", start_executor=node).build()
    result = await workflow.run("go", checkpoint_storage=storage, function_invocation_kwargs={"user": "ann"})
    assert made.kwargs["function_invocation_kwargs"] == {"user": "ann"}
    (event,) = result.get_request_info_events()
    assert event.request_id == "r1"
    answer = Content("function_approval_response", id="r1", approved=True)
    assert [output.text for output in (await workflow.run(responses={"r1": answer})).get_outputs()] == ["done"]
    assert [(message.role, message.contents) for message in made.heard] == [("user", [answer])]

    latest = await storage.get_latest(workflow_name="w")
    assert latest is not None
    _, other = picky()
    restored = WorkflowBuilder(name="w", start_executor=other).build()
    result = await restored.run(checkpoint_id=latest.checkpoint_id, checkpoint_storage=storage, responses={"r1": answer})
    assert [output.text for output in result.get_outputs()] == ["done"]


async def test_keyword_arguments_may_be_given_by_executor() -> None:
    made, node = picky()
    workflow = WorkflowBuilder(start_executor=node).build()
    await workflow.run("go", function_invocation_kwargs={"picky": {"user": "ann"}, "other": {"user": "bob"}})
    assert made.kwargs["function_invocation_kwargs"] == {"user": "ann"}


@dataclass
class HowMany:
    question: str


# -- a workflow as an agent ----------------------------------------------------------------------------------------


@pytest.mark.requirement("WF14")
async def test_workflow_as_agent_returns_its_selected_outputs() -> None:
    class Start(Executor):
        @handler
        async def run(self, messages: list[Message], ctx: WorkflowContext[str, str]) -> None:
            await ctx.send_message(messages[-1].text)

    class Many(Executor):
        @handler
        async def run(self, message: str, ctx: WorkflowContext[Never, Any]) -> None:
            await ctx.yield_output("text " + message)
            await ctx.yield_output(Message("assistant", ["mess", "age"], additional_properties={"kept": True}))
            await ctx.yield_output([Message("assistant", "listed")])
            await ctx.yield_output({"a": 1})

    def build() -> WorkflowAgent:
        return WorkflowBuilder(start_executor=Start("s"), name="flow").add_edge("s", Many("many")).build().as_agent(description="d")

    made = build()
    assert (made.name, made.description) == ("flow", "d")
    assert isinstance(made, SupportsAgentRun)
    response = await made.run("hello")
    assert [(m.role, m.text, m.author_name) for m in response.messages] == [
        ("assistant", "text hello", "many"),
        ("assistant", "mess age", "many"),
        ("assistant", "listed", "many"),
        ("assistant", "{'a': 1}", "many"),
    ]
    assert (response.messages[1].additional_properties, len(response.messages[1].contents)) == ({"kept": True}, 2)
    assert response.messages[3].raw_representation == {"a": 1}
    stream = build().run(["hello"], stream=True)
    assert [update.text async for update in stream] == ["text hello", "message", "listed", "{'a': 1}"]
    assert [m.text for m in (await stream.get_final_response()).messages] == ["text hello", "message", "listed", "{'a': 1}"]


@pytest.mark.requirement("WF14")
async def test_start_that_takes_no_messages_cannot_be_an_agent() -> None:
    class Number(Executor):
        @handler
        async def run(self, message: int, ctx: WorkflowContext[Never]) -> None: ...

    with pytest.raises(ValueError, match=r"cannot handle list\[Message\]"):
        WorkflowBuilder(start_executor=Number("n")).build().as_agent()


@pytest.mark.requirement("WF14")
async def test_request_crosses_as_function_call_and_its_result_returns() -> None:
    class Asks(Executor):
        @handler
        async def run(self, messages: list[Message], ctx: WorkflowContext[Never, str]) -> None:
            await ctx.request_info(HowMany("how many?"), int, request_id="q")

        @response_handler
        async def take(self, original_request: HowMany, response: int, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(f"{response} it is")

    made = WorkflowBuilder(start_executor=Asks("a")).build().as_agent("flow")
    (message,) = (await made.run("go")).messages
    (call,) = message.contents
    assert (call.type, call.name, call.call_id) == ("function_call", "request_info", "q")
    arguments = json.loads(json.dumps(call.parse_arguments()))
    asked = WorkflowAgent.RequestInfoFunctionArgs.from_dict(arguments).request_event
    assert (asked.data, asked.response_type, asked.source_executor_id) == (HowMany("how many?"), int, "a")
    with pytest.raises(ValueError, match="need 'request_id'"):
        WorkflowAgent.RequestInfoFunctionArgs.from_dict({"request_id": "q"})
    arguments["request_event"]["data"] = {"$type": "subprocess:Popen", "state": {}}
    with pytest.raises(ValueError, match="subprocess:Popen"):
        WorkflowAgent.RequestInfoFunctionArgs.from_dict(arguments)
    assert list(made.pending_requests) == ["q"]
    with pytest.raises(AgentError, match="waits for answers"):
        await made.run("seven")
    assert (await made.run(Message("tool", [Content.from_function_result("q", 7)]))).text == "7 it is"


@pytest.mark.requirement("WF14")
async def test_session_gives_a_workflow_agent_the_earlier_messages() -> None:
    one, client = agent("one", "first answer", "second answer")
    made = WorkflowBuilder(start_executor=one).build().as_agent()
    session = made.create_session()
    await made.run("one", session=session)
    await made.run("two", session=session)
    texts = [text for _, text in said(client, 1)]
    assert texts[-3:] == ["one", "first answer", "two"]
    assert len(made.context_providers) == 1
