"""Workflows run as agent-framework's documents say: one run at a time, ids of inner workflows, results beside their calls."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import anyio
import pytest

from gateway import (
    Agent,
    AgentResponseUpdate,
    Content,
    Executor,
    FunctionTool,
    InMemoryCheckpointStorage,
    Message,
    ScriptedChatClient,
    WorkflowAgent,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    workflow,
)


@workflow
async def patient(message: str) -> str:
    await anyio.sleep(0.01)
    return message


class Upper(Executor):
    @handler
    async def run(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(message.upper())


# -- one run at a time ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("WF10", "WF15")
@pytest.mark.parametrize("kind", ["functional", "graph"])
@pytest.mark.parametrize("stream", [False, True])
async def test_second_run_is_refused_at_once(kind: str, stream: bool) -> None:
    one: Any = patient.build() if kind == "functional" else WorkflowBuilder(start_executor=Upper("u"), name="w").build()
    first = one.run("a", stream=stream)
    with pytest.raises(RuntimeError, match="already running"):
        one.run("b")
    with pytest.raises(RuntimeError, match="already running"):
        one.run("b", stream=True)
    result = await (first.get_final_response() if stream else first)
    assert [str(output).lower() for output in result.get_outputs()] == ["a"]
    assert [str(output).lower() for output in (await one.run("b")).get_outputs()] == ["b"]


@pytest.mark.requirement("WF10", "WF15")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_run_that_is_dropped_unread_gives_its_turn_back() -> None:
    one = patient.build()
    stream = one.run("a", stream=True)
    del stream
    waiting = one.run("b")
    del waiting
    gc.collect()
    assert (await one.run("c")).get_outputs() == ["c"]
    with pytest.raises(ValueError, match="nothing to answer"):
        await one.run(responses={"no": 1})
    assert (await one.run("d")).get_outputs() == ["d"]


# -- inner workflows -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("WF11")
async def test_workflow_executor_id_defaults_to_workflow_id() -> None:
    unnamed = WorkflowBuilder(start_executor=Upper("u")).build()
    assert WorkflowExecutor(unnamed).id == unnamed.id
    named = [WorkflowBuilder(start_executor=Upper("u"), name="inner").build() for _ in range(2)]
    assert [WorkflowExecutor(one).id for one in named] == [named[0].id] * 2  # a checkpoint is of use after a restart
    assert WorkflowExecutor(named[0], id="mine").id == "mine"
    with pytest.raises(ValueError, match="non-empty id"):
        WorkflowExecutor(named[0], id="")
    result = await WorkflowBuilder(start_executor=WorkflowExecutor(unnamed, allow_direct_output=True)).build().run("tea")
    assert result.get_outputs() == ["TEA"]


# -- results beside their calls ------------------------------------------------------------------------------------


def call(name: str, call_id: str) -> Content:
    return Content.from_function_call(call_id, name, "{}")


def look() -> str:
    return "seen"


def kinds(messages: Sequence[Any]) -> list[tuple[str, list[tuple[str, str | None]]]]:
    return [(str(message.role), [(content.type, content.call_id) for content in message.contents]) for message in messages]


class Start(Executor):
    @handler
    async def start(self, messages: list[Message], ctx: WorkflowContext[list[Message]]) -> None:
        await ctx.send_message(messages)


@pytest.mark.requirement("WF14")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ids", [("x1", "y1"), ("same", "same")])
async def test_results_follow_their_calls_over_parallel_branches(stream: bool, ids: tuple[str, str]) -> None:
    branches = [
        Agent(ScriptedChatClient([[call("look", call_id)], f"End {name}."]), name=name, tools=[look])
        for name, call_id in zip("xy", ids, strict=True)
    ]
    start = Start("start")
    agent = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, branches).build().as_agent()
    response = await (agent.run("go", stream=True).get_final_response() if stream else agent.run("go"))
    for index, message in enumerate(response.messages):
        if message.role == "tool":
            before = response.messages[index - 1]
            assert (before.author_name, before.contents[0].call_id) == (message.author_name, message.contents[0].call_id)
    assert sorted(message.role for message in response.messages) == ["assistant"] * 4 + ["tool"] * 2
    assert response.response_id


@pytest.mark.requirement("WF14")
async def test_merged_updates_put_results_behind_their_calls() -> None:
    updates = [
        AgentResponseUpdate([call("look", "a1")], "assistant", response_id="a", message_id="a-1"),
        AgentResponseUpdate([call("look", "b1")], "assistant", response_id="b", message_id="b-1"),
        AgentResponseUpdate([Content.from_function_result("b1", "seen")], "tool", message_id="t-2"),
        AgentResponseUpdate([Content.from_function_result("a1", "seen")], "tool", message_id="t-1"),
        AgentResponseUpdate([Content.from_text("End.")], "assistant", response_id="a", message_id="a-2"),
    ]
    merged = WorkflowAgent.merge_updates(updates, "all")
    assert [content.call_id for message in merged.messages for content in message.contents] == ["a1", "a1", None, "b1", "b1"]


@pytest.mark.requirement("WF14")
async def test_merged_updates_keep_each_agent_run_together() -> None:
    def agent(name: str) -> Agent:
        client = ScriptedChatClient([call("look", f"{name}1"), f"{name} end"])
        return Agent(client, name=name, tools=[FunctionTool(name="look", func=lambda: "seen")])

    runs = [[update async for update in agent(name).run("go", stream=True)] for name in "ab"]
    between_each_other = [update for pair in zip_longest(*runs) for update in pair if update is not None]
    merged = WorkflowAgent.merge_updates(between_each_other, "all")
    assert [message.role for message in merged.messages] == ["assistant", "tool", "assistant"] * 2
    assert [message.text for message in merged.messages if message.text] == ["a end", "b end"]


def asking(script: list[Any]) -> tuple[Agent, ScriptedChatClient, list[str]]:
    done: list[str] = []

    def remove() -> str:
        done.append("removed")
        return "removed"

    client = ScriptedChatClient(script)
    tools = [FunctionTool(remove, name="remove", approval_mode="always_require"), look]
    return Agent(client, name="cleaner", tools=tools), client, done


@pytest.mark.requirement("WF14", "AP3", "AP4")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("approved", [False, True])
async def test_answered_approval_leaves_results_beside_calls(stream: bool, approved: bool) -> None:
    agent, client, done = asking([[call("remove", "c1"), call("look", "c2")], "Done.", "More."])
    runner = WorkflowBuilder(start_executor=agent).build().as_agent()
    session = runner.create_session()

    async def run(given: Any) -> Any:
        if stream:
            return await runner.run(given, session=session, stream=True).get_final_response()
        return await runner.run(given, session=session)

    (request,) = (await run("go")).user_input_requests
    await run(Message("user", [request.to_function_approval_response(approved)]))
    await run("again")
    shown = kinds(client.requests[2][0])
    calls, results = (
        ("assistant", [("function_call", "c1"), ("function_call", "c2")]),
        ("tool", [("function_result", "c1"), ("function_result", "c2")]),
    )
    places = [index for index, message in enumerate(shown) if message == calls]
    assert places and all(shown[index + 1] == results for index in places)
    assert sum(role == "tool" or any(kind == "function_call" for kind, _ in contents) for role, contents in shown) == 2 * len(places)
    assert done == (["removed"] if approved else [])


@pytest.mark.requirement("WF14", "AP3")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("approved", [0, 1])
@pytest.mark.parametrize("nested", [False, True])
async def test_approvals_of_branches_with_one_call_id_are_answered_apart(stream: bool, approved: int, nested: bool) -> None:
    agents: list[Agent | WorkflowExecutor] = []
    done: dict[str | None, list[str]] = {}
    for name in "xy":
        agent, _, removed = asking([[call("remove", "call_0")], f"End {name}."])
        agent.name = name
        inner = WorkflowBuilder(start_executor=agent).build()
        agents.append(WorkflowExecutor(inner, id=name, allow_direct_output=True, propagate_request=True) if nested else agent)
        done[name] = removed
    start = Start("start")
    runner = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, agents).build().as_agent()
    session = runner.create_session()

    async def run(given: Any) -> Any:
        if stream:
            return await runner.run(given, session=session, stream=True).get_final_response()
        return await runner.run(given, session=session)

    asked = [(m.author_name, c) for m in (await run("go")).messages for c in m.contents if c.type == "function_approval_request"]
    assert len({request.id for _, request in asked}) == 2
    answers = [request.to_function_approval_response(index == approved) for index, (_, request) in enumerate(asked)]
    response = await run(Message("user", answers))
    assert sorted(message.text for message in response.messages if message.text) == ["End x.", "End y."]
    assert [name for name, removed in done.items() if removed] == [asked[approved][0]]


@pytest.mark.requirement("WF14", "AP3", "WF12")
async def test_next_agent_gets_whole_conversation_after_an_approval() -> None:
    storage = InMemoryCheckpointStorage()
    agent, _, done = asking([[call("remove", "c1")], "Done."])
    reader = ScriptedChatClient(["Read."])
    after = Agent(reader, name="reader")
    built = WorkflowBuilder(name="w", start_executor=agent, checkpoint_storage=storage).add_edge(agent, after).build()
    (event,) = (await built.run("go")).get_request_info_events()
    latest = await storage.get_latest(workflow_name="w")
    assert latest is not None
    fresh, _, done = asking(["Done."])
    again = WorkflowBuilder(name="w", start_executor=fresh, checkpoint_storage=storage).add_edge(fresh, after).build()
    await again.run(checkpoint_id=latest.checkpoint_id, responses={event.request_id: event.data.to_function_approval_response(True)})
    assert done == ["removed"]
    assert kinds(reader.requests[0][0]) == [
        ("user", [("text", None)]),
        ("assistant", [("function_call", "c1")]),
        ("tool", [("function_result", "c1")]),
        ("assistant", [("text", None)]),
    ]
