"""The events of a run: their order and data, the result that lists them, and the stream that yields them."""

from __future__ import annotations

from typing import Any, Never

import anyio
import pytest

from gateway.errors import ToolFailed
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.events import WorkflowEvent, WorkflowRunResult, WorkflowRunState
from gateway.workflows.function_executor import FunctionExecutor, executor
from gateway.workflows.workflow_context import WorkflowContext
from tests.workflows.scripted import Relay


@pytest.mark.requirement("WF6")
async def test_run_emits_its_events_in_order() -> None:
    problem = ToolFailed("not the end")

    async def note(message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.add_event(WorkflowEvent.warning("careful"))
        await ctx.add_event(WorkflowEvent.error(problem))
        await ctx.add_event(WorkflowEvent("started"))

    workflow = WorkflowBuilder(start_executor=Relay("s")).add_edge("s", FunctionExecutor(note)).build()
    events = [event async for event in workflow.run("x", stream=True)]
    assert [(event.type, event.executor_id or event.state or event.iteration or event.data) for event in events] == [
        ("started", None),
        ("status", WorkflowRunState.IN_PROGRESS),
        ("executor_invoked", "s"),
        ("output", "s"),
        ("executor_completed", "s"),
        ("superstep_started", 1),
        ("executor_invoked", "note"),
        ("warning", "careful"),
        ("error", problem),
        ("warning", "Executor 'note' reported 'started', which only the engine may report; the event was dropped."),
        ("executor_completed", "note"),
        ("superstep_completed", 1),
        ("status", WorkflowRunState.IDLE),
    ]
    assert [repr(event) for event in events[:3]] == [
        "WorkflowEvent(type='started')",
        "WorkflowEvent(type='status', state=IN_PROGRESS)",
        "WorkflowEvent(type='executor_invoked', executor_id='s', data='x')",
    ]
    invoked = next(event for event in events if event.type == "executor_invoked")
    completed = next(event for event in events if event.type == "executor_completed")
    assert invoked.data == "x"
    assert completed.data == ["xs", "xs"]


@pytest.mark.requirement("WF6")
async def test_event_keeps_the_message_as_delivered() -> None:
    async def grow(message: list[str]) -> None:
        message.append("more")

    result = await WorkflowBuilder(start_executor=FunctionExecutor(grow)).build().run(["one"])
    assert next(event.data for event in result if event.type == "executor_invoked") == ["one"]


@pytest.mark.requirement("WF8")
async def test_result_lists_events_outputs_state_and_timeline() -> None:
    result = await WorkflowBuilder(start_executor=Relay("s")).build().run("x")
    assert isinstance(result, list)
    assert {event.type for event in result} & {"started", "status"} == set()
    assert result.get_outputs() == ["xs"]
    assert [event.state for event in result.status_timeline()] == [WorkflowRunState.IN_PROGRESS, WorkflowRunState.IDLE]
    result = await WorkflowBuilder(start_executor=Relay("s")).build().run("x", include_status_events=True)
    assert [event.type for event in result].count("status") == 2
    with pytest.raises(RuntimeError):
        WorkflowRunResult([]).get_final_state()


async def test_stream_yields_events_while_an_executor_runs() -> None:
    release = anyio.Event()

    async def slow(message: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("early")
        await release.wait()
        await ctx.yield_output("late")

    stream = WorkflowBuilder(start_executor=FunctionExecutor(slow)).build().run("x", stream=True)
    outputs: list[str] = []
    with anyio.fail_after(20):
        async for event in stream:
            if event.type == "output":
                outputs.append(event.data)
                release.set()
    assert outputs == ["early", "late"]
    assert (await stream.get_final_response()).get_outputs() == ["early", "late"]


async def test_stream_closed_early_runs_no_further_round() -> None:
    runs: list[str] = []

    @executor(id="first")
    async def first(message: str) -> str:
        runs.append("first")
        return message

    @executor
    async def second(message: str) -> None:
        runs.append("second")

    workflow = WorkflowBuilder(start_executor=first).add_edge(first, second).build()
    stream = workflow.run("x", stream=True)
    async for event in stream:
        if event.type == "executor_completed":
            break
    await stream.aclose()
    assert runs == ["first"]
    assert workflow.status is WorkflowRunState.CANCELLED
    await workflow.run("x")
    assert runs == ["first", "first", "second"]
