"""Running graphs written in code: rounds, state, failure, cancellation."""

from __future__ import annotations

import threading
from typing import Any, Never

import anyio
import pytest

from gateway.errors import ToolFailed, WorkflowConvergenceException, WorkflowError
from gateway.tools.context import CallContext
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.edges import Case, Default
from gateway.workflows.events import WorkflowErrorDetails, WorkflowEvent, WorkflowRunState
from gateway.workflows.executor import Executor, handler
from gateway.workflows.function_executor import FunctionExecutor
from gateway.workflows.workflow import Workflow
from gateway.workflows.workflow_context import WorkflowContext
from tests.workflows.scripted import Relay


class Meeting(Executor):
    """Waits until `size` executors run at the same time; the first to arrive is the last to leave."""

    size = 3

    def __init__(self, id: str, arrived: list[str], all_here: anyio.Event, order: list[str]) -> None:
        super().__init__(id)
        self.arrived, self.all_here, self.order = arrived, all_here, order

    @handler
    async def meet(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        self.arrived.append(self.id)
        if len(self.arrived) == self.size:
            self.all_here.set()
        await self.all_here.wait()
        for _ in range(self.size - self.arrived.index(self.id)):
            await anyio.lowlevel.checkpoint()
        self.order.append(self.id)
        await ctx.send_message(self.id)
        await ctx.yield_output(self.id)


def fan(*middle: Executor, end: Executor) -> Workflow:
    start = Relay("s")
    builder = WorkflowBuilder(start_executor=start)
    for item in middle:
        builder.add_edge(start, item)
    for item in middle:
        builder.add_edge(item, end)
    return builder.build()


async def collect(workflow: Workflow, message: Any) -> list[WorkflowEvent]:
    """Return the events of a run that fails with `ToolFailed`."""
    events: list[WorkflowEvent] = []
    with pytest.raises(ToolFailed):
        async for event in workflow.run(message, stream=True):
            events.append(event)  # noqa: PERF401  # kept when the stream raises
    return events


@pytest.mark.requirement("WF1")
async def test_messages_follow_edges_and_every_executor_may_yield_output() -> None:
    a, b, c = Relay("a"), Relay("b"), Relay("c")
    result = await WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(b, c).build().run("-")
    assert result.get_outputs() == ["-a", "-ab", "-abc"]
    assert result.get_final_state() is WorkflowRunState.IDLE


@pytest.mark.requirement("WF1")
async def test_handlers_are_chosen_by_message_type_and_item_type() -> None:
    class Typed(Executor):
        @handler
        async def number(self, message: int | float, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output("number")

        @handler
        async def texts(self, message: list[str], ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output("texts")

        @handler(input="dict[str, int]", workflow_output=str)
        async def counts(self, message: Any, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output("counts")

    for message, expected in ((1, "number"), (1.5, "number"), (["x"], "texts"), ({"a": 1}, "counts")):
        assert (await WorkflowBuilder(start_executor=Typed("t")).build().run(message)).get_outputs() == [expected]
    for message in ("text", [1], {"a": "b"}):
        with pytest.raises(WorkflowError, match=r"Executor 't' cannot handle message of type"):
            await WorkflowBuilder(start_executor=Typed("t")).build().run(message)


@pytest.mark.requirement("WF1")
async def test_conditional_edges_carry_only_messages_they_accept() -> None:
    async def is_long(message: str) -> bool:
        return len(message) > 2

    start, short, long = Relay("s"), Relay("k"), Relay("l")
    builder = WorkflowBuilder(start_executor=start, output_from=[short, long])
    builder.add_edge(start, short, lambda message: len(message) <= 2).add_edge(start, long, is_long)
    workflow = builder.build()
    assert (await workflow.run("x")).get_outputs() == ["xsk"]
    assert (await workflow.run("xyz")).get_outputs() == ["xyzsl"]


@pytest.mark.requirement("WF1")
async def test_switch_takes_the_first_matching_case_and_else_the_default() -> None:
    def broken(message: str) -> bool:
        raise KeyError(message)

    start, small, big, other = Relay("s"), Relay("k"), Relay("l"), Relay("o")
    cases: list[Case | Default] = [
        Default(other),
        Case(broken, other),
        Case(lambda m: m.startswith("k"), small),
        Case(lambda m: len(m) > 3, big),
    ]
    workflow = WorkflowBuilder(start_executor=start, output_from=[small, big, other]).add_switch_case_edge_group(start, cases).build()
    outputs = [(await workflow.run(message)).get_outputs() for message in ("k", "klong", "zzz", "z")]
    assert outputs == [["ksk"], ["klongsk"], ["zzzsl"], ["zso"]]


@pytest.mark.requirement("WF1")
async def test_multi_selection_sends_to_chosen_targets_and_rejects_others() -> None:
    def choose(message: str, targets: list[str]) -> list[str]:
        return [target for target in targets if target in message] or ["nobody"]

    start, x, y = Relay("s"), Relay("x"), Relay("y")
    builder = WorkflowBuilder(start_executor=start, output_from=[x, y])
    workflow = builder.add_multi_selection_edge_group(start, [x, y], choose).build()
    assert (await workflow.run("x")).get_outputs() == ["xsx"]
    assert sorted((await workflow.run("xy")).get_outputs()) == ["xysx", "xysy"]
    with pytest.raises(RuntimeError, match="Invalid selection result: 'nobody' is not a target"):
        await workflow.run("-")


@pytest.mark.requirement("WF1")
async def test_fan_in_waits_for_all_sources_and_keeps_their_order() -> None:
    class Join(Executor):
        @handler
        async def all_of(self, message: list[str], ctx: WorkflowContext[Any, Any]) -> None:
            await ctx.yield_output((message, ctx.source_executor_ids))

    start, x, y, late, join = Relay("s"), Relay("x"), Relay("y"), Relay("z"), Join("j")
    builder = WorkflowBuilder(start_executor=start, output_from=[join]).add_fan_out_edges(start, [x, y])
    workflow = builder.add_edge(y, late).add_fan_in_edges([late, x], join).build()
    assert (await workflow.run("")).get_outputs() == [(["syz", "sx"], ["z", "x"])]
    assert (await workflow.run("-")).get_outputs() == [(["-syz", "-sx"], ["z", "x"])]


@pytest.mark.requirement("WF2")
async def test_messages_of_a_round_are_handled_together_in_edge_order() -> None:
    arrived: list[str] = []
    order: list[str] = []
    heard: list[str] = []
    here = anyio.Event()

    async def hear(message: str) -> None:
        heard.append(message)

    with anyio.fail_after(20):
        await fan(*(Meeting(name, arrived, here, order) for name in "xyz"), end=FunctionExecutor(hear)).run("")
    assert order == ["z", "y", "x"]
    assert heard == ["x", "y", "z"]


@pytest.mark.requirement("WF2")
async def test_state_counts_at_once_and_lives_on_to_the_next_run() -> None:
    seen: list[Any] = []

    async def count(message: str, ctx: WorkflowContext[str]) -> None:
        ctx.set_state("count", ctx.get_state("count", 0) + 1)
        seen.append(ctx.get_state("count"))
        await ctx.send_message(message)
        await ctx.send_message(message)

    async def add(message: str, ctx: WorkflowContext[Never]) -> None:
        ctx.set_state("count", ctx.get_state("count", 0) + 1)
        seen.append(ctx.get_state("count"))

    workflow = WorkflowBuilder(start_executor=FunctionExecutor(count)).add_edge("count", FunctionExecutor(add)).build()
    await workflow.run("x")
    await workflow.run("x")
    assert seen == [1, 2, 3, 4, 5, 6]


@pytest.mark.requirement("WF2")
async def test_state_of_a_failed_round_is_discarded() -> None:
    seen: list[Any] = []

    async def good(message: str, ctx: WorkflowContext[str]) -> None:
        seen.append(ctx.get_state("kept"))
        ctx.set_state("kept", "yes")
        await ctx.send_message(message)

    async def bad(message: str, ctx: WorkflowContext[Never]) -> None:
        ctx.set_state("kept", "no")
        raise ToolFailed("no")

    workflow = WorkflowBuilder(start_executor=FunctionExecutor(good)).add_edge("good", FunctionExecutor(bad)).build()
    for _ in range(2):
        with pytest.raises(ToolFailed):
            await workflow.run("x")
    assert seen == [None, "yes"]


@pytest.mark.requirement("WF2")
async def test_graph_that_never_rests_fails_after_a_hundred_rounds() -> None:
    a, b = Relay("a"), Relay("b")
    workflow = WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(b, a).build()
    events: list[WorkflowEvent] = []
    with pytest.raises(WorkflowConvergenceException, match="still had messages after 100 rounds"):
        async for event in workflow.run("", stream=True):
            events.append(event)  # noqa: PERF401  # kept when the stream raises
    assert max(event.iteration or 0 for event in events) == 100
    assert events[-1].state is WorkflowRunState.FAILED


@pytest.mark.requirement("WF2")
async def test_messages_left_by_a_failed_run_are_not_delivered_later() -> None:
    seen: list[str] = []

    async def pass_on(message: str, ctx: WorkflowContext[str]) -> None:
        seen.append(message)
        if message != "rest":
            await ctx.send_message(message)

    workflow = WorkflowBuilder(start_executor=FunctionExecutor(pass_on), max_iterations=2).add_edge("pass_on", "pass_on").build()
    with pytest.raises(WorkflowConvergenceException):
        await workflow.run("never rests")
    seen.clear()
    await workflow.run("rest")
    assert seen == ["rest"]


async def test_messages_of_a_cancelled_round_are_not_delivered_later() -> None:
    seen: list[str] = []

    async def hang(message: str) -> None:
        await anyio.sleep(60 if message.startswith("cancelled") else 0)

    async def see(message: str) -> None:
        seen.append(message)

    builder = WorkflowBuilder(start_executor=Relay("s")).add_edge("s", Relay("on")).add_edge("s", FunctionExecutor(hang))
    workflow = builder.add_edge("on", FunctionExecutor(see)).build()
    with anyio.move_on_after(0.2) as given_up:
        await workflow.run("cancelled")
    assert given_up.cancelled_caught
    await workflow.run("next")
    assert seen == ["nextson"]


async def test_edge_carries_no_more_messages_than_its_limit() -> None:
    a, b = Relay("a"), Relay("b")
    workflow = WorkflowBuilder(start_executor=a, output_from=[b]).add_edge(a, b).add_edge(b, a, max_traversals=2).build()
    assert (await workflow.run("")).get_outputs() == ["ab", "abab", "ababab"]
    assert len((await workflow.run("")).get_outputs()) == 3


async def test_message_may_be_sent_along_one_edge_only() -> None:
    async def choose(message: str, ctx: WorkflowContext[str, Any]) -> None:
        await ctx.send_message(message, target_id=message)

    builder = WorkflowBuilder(start_executor=FunctionExecutor(choose)).add_edge("choose", Relay("x")).add_edge("choose", Relay("y"))
    workflow = builder.build()
    assert (await workflow.run("y")).get_outputs() == ["yy"]
    lost = await workflow.run("z")
    assert lost.get_outputs() == []
    assert "'choose' sends to 'z', but no edge leads there" in next(event.data for event in lost if event.type == "warning")


async def test_joining_executor_handles_the_messages_of_a_round_as_a_list() -> None:
    class Join(Executor):
        joins = True

        @handler
        async def all_of(self, message: list[str], ctx: WorkflowContext[Any, Any]) -> None:
            await ctx.yield_output((message, ctx.source_executor_ids))

    result = await fan(Relay("x"), Relay("y"), end=Join("e")).run("")
    assert result.get_outputs()[-1] == (["sx", "sy"], ["x", "y"])


@pytest.mark.requirement("WF4")
@pytest.mark.requirement("WF5")
async def test_failing_executor_ends_the_run_with_events_and_its_exception() -> None:
    cause = ToolFailed("the disk is full")

    async def boom(message: Any) -> None:
        raise cause

    workflow = WorkflowBuilder(start_executor=Relay("s")).add_edge("s", FunctionExecutor(boom)).build()
    with pytest.raises(ToolFailed) as caught:
        await workflow.run("")
    assert caught.value is cause
    assert workflow.status is WorkflowRunState.FAILED
    events = await collect(workflow, "")
    assert [event.type for event in events[-3:]] == ["executor_failed", "failed", "status"]
    assert events[-1].state is WorkflowRunState.FAILED
    details = events[-2].details
    assert details is not None
    assert (details.error_type, details.message, details.executor_id) == ("ToolFailed", "the disk is full", "boom")
    assert "raise cause" in (details.traceback or "")
    told = WorkflowErrorDetails.from_exception(cause, executor_id="boom", extra={"disk": "c"})
    assert (told.extra, details.extra) == ({"disk": "c"}, None)


async def test_failure_cancels_the_others_of_its_round_and_is_raised() -> None:
    cancelled: list[str] = []

    async def wait(message: Any) -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append("wait")
            raise

    async def boom(message: Any) -> None:
        raise ToolFailed("no")

    with anyio.fail_after(20):
        events = await collect(fan(FunctionExecutor(wait), FunctionExecutor(boom), end=Relay("e")), "")
    assert cancelled == ["wait"]
    assert "e" not in [event.executor_id for event in events]


async def test_condition_that_raises_fails_the_run_with_its_exception() -> None:
    def broken(message: Any) -> bool:
        raise KeyError("x")

    workflow = WorkflowBuilder(start_executor=Relay("s")).add_edge("s", Relay("e"), broken).build()
    with pytest.raises(KeyError):
        await workflow.run("")


@pytest.mark.requirement("WF4")
async def test_cancelling_the_caller_stops_the_run() -> None:
    started = anyio.Event()

    async def wait(message: Any) -> None:
        started.set()
        await anyio.sleep_forever()

    workflow = WorkflowBuilder(start_executor=FunctionExecutor(wait)).build()

    async def run() -> None:
        await workflow.run("x")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await started.wait()
            tasks.cancel_scope.cancel()
    assert workflow.status is WorkflowRunState.CANCELLED


@pytest.mark.requirement("WF10")
async def test_run_starts_or_resumes_and_never_twice_at_once() -> None:
    release = anyio.Event()
    started = anyio.Event()

    async def wait(message: Any) -> None:
        started.set()
        await release.wait()

    workflow = WorkflowBuilder(start_executor=FunctionExecutor(wait), name="w").build()
    wrong: list[dict[str, Any]] = [{}, {"message": 1, "responses": {}}, {"message": 1, "checkpoint_id": "c"}]
    for arguments in wrong:
        with pytest.raises(ValueError, match=r"Must provide at least one|Cannot provide both"):
            await workflow.run(**arguments)

    async def run() -> None:
        await workflow.run("x")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await started.wait()
            with pytest.raises(RuntimeError, match=r"already running.*'w'"):
                await workflow.run("x")
            release.set()
    await workflow.run("x")


async def test_function_executor_may_be_sync_and_then_runs_in_a_thread() -> None:
    def ident(message: str) -> int:
        return threading.get_ident()

    result = await WorkflowBuilder(start_executor=FunctionExecutor(ident)).build().run("x")
    assert result.get_outputs()[0] != threading.get_ident()


async def test_executors_reach_the_call_they_serve() -> None:
    call = CallContext()
    seen: list[CallContext] = []

    async def look(message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        seen.append(ctx.call)

    await WorkflowBuilder(start_executor=FunctionExecutor(look)).build().run("x", ctx=call)
    assert seen == [call]
