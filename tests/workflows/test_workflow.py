"""Running graphs written in code: rounds, state, events, failure, cancellation, streams."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from gateway.errors import ToolFailed, WorkflowFailed
from gateway.tools.context import CallContext
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.events import WorkflowEvent, WorkflowRunState
from gateway.workflows.executor import Executor, FunctionExecutor, WorkflowContext, executor, handler
from gateway.workflows.workflow import Workflow


class Relay(Executor):
    """Appends its id to the text, sends it on and yields it."""

    @handler
    async def text(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.send_message(message + self.id)
        await ctx.yield_output(message + self.id)


class Meeting(Executor):
    """Goes on only when `size` of them run at the same time; the first to arrive is the last to leave."""

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
    events: list[WorkflowEvent] = []

    async def listen(event: WorkflowEvent) -> None:
        events.append(event)

    with pytest.raises(WorkflowFailed):
        await workflow.run(message, on_event=listen)
    return events


@pytest.mark.requirement("WF1")
async def test_messages_follow_edges_and_every_executor_may_yield_output() -> None:
    a, b, c = Relay("a"), Relay("b"), Relay("c")
    result = await WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(b, c).build().run("-")
    assert result.get_outputs() == ["-a", "-ab", "-abc"]
    assert result.get_final_state() is WorkflowRunState.IDLE


@pytest.mark.requirement("WF1")
async def test_handlers_are_chosen_by_the_type_of_the_message() -> None:
    class Typed(Executor):
        @handler
        async def number(self, message: int | float, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output("number")

        @handler
        async def items(self, message: list[str], ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output("list")

    for message, expected in ((1, "number"), (1.5, "number"), (["x"], "list")):
        assert (await WorkflowBuilder(start_executor=Typed("t")).build().run(message)).get_outputs() == [expected]
    with pytest.raises(WorkflowFailed, match=r"'t' failed: It takes int \| float, list\[str\], not str"):
        await WorkflowBuilder(start_executor=Typed("t")).build().run("text")


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


@pytest.mark.requirement("WF2")
async def test_messages_of_a_round_are_handled_together_and_results_keep_the_order_of_edges() -> None:
    arrived: list[str] = []
    order: list[str] = []
    here = anyio.Event()
    with anyio.fail_after(5):
        workflow = fan(*(Meeting(name, arrived, here, order) for name in "xyz"), end=Relay("e"))
        result = await workflow.run("")
    assert order == ["z", "y", "x"]
    assert result.get_outputs() == ["s", "x", "y", "z", "xe", "ye", "ze"]


@pytest.mark.requirement("WF2")
async def test_state_written_in_a_round_is_seen_by_its_writer_at_once_and_by_others_in_the_next() -> None:
    seen: dict[str, Any] = {}

    def write(name: str) -> Executor:
        async def run(message: Any, ctx: WorkflowContext[Any, Any]) -> str:
            ctx.set_state("who", name)
            ctx.set_state(name, 1)
            seen[name] = (ctx.get_state("who"), ctx.get_state("x", 0), ctx.get_state("y", 0))
            return name

        return FunctionExecutor(run, name)

    async def read(message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        seen["e"] = (ctx.get_state("who"), ctx.get_state("x"), ctx.get_state("y"))

    result = await fan(write("x"), write("y"), end=FunctionExecutor(read, "e")).run("")
    assert seen["x"] == ("x", 1, 0)
    assert seen["y"] == ("y", 0, 1)
    assert seen["e"] == ("y", 1, 1)
    assert result.state == {"who": "y", "x": 1, "y": 1}


@pytest.mark.requirement("WF2")
async def test_state_of_a_failed_round_is_discarded() -> None:
    async def good(message: Any, ctx: WorkflowContext[Any, Any]) -> str:
        ctx.set_state("kept", "yes")
        return message

    async def bad(message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        ctx.set_state("kept", "no")
        raise ToolFailed("no")

    builder = WorkflowBuilder(start_executor=FunctionExecutor(good))
    stream = builder.add_edge("good", FunctionExecutor(bad)).build().run("x", stream=True)
    with pytest.raises(WorkflowFailed):
        await stream.get_final_response()
    assert (await stream.get_final_response()).state == {"kept": "yes"}


@pytest.mark.requirement("WF2")
async def test_a_graph_that_never_rests_fails_after_a_hundred_rounds() -> None:
    a, b = Relay("a"), Relay("b")
    workflow = WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(b, a).build()
    events: list[WorkflowEvent] = []

    async def listen(event: WorkflowEvent) -> None:
        events.append(event)

    with pytest.raises(WorkflowFailed, match="did not come to rest within 100 rounds; still to run: 'a'") as caught:
        await workflow.run("", on_event=listen)
    assert caught.value.executor == "a"
    assert max(event.iteration or 0 for event in events) == 100
    assert events[-1].state is WorkflowRunState.FAILED


async def test_an_edge_carries_no_more_messages_than_its_limit() -> None:
    a, b = Relay("a"), Relay("b")
    workflow = WorkflowBuilder(start_executor=a, output_from=[b]).add_edge(a, b).add_edge(b, a, max_traversals=2).build()
    assert (await workflow.run("")).get_outputs() == ["ab", "abab", "ababab"]
    assert len((await workflow.run("")).get_outputs()) == 3


async def test_a_message_may_be_sent_along_one_edge_only() -> None:
    async def choose(message: str, ctx: WorkflowContext[str, Any]) -> None:
        await ctx.send_message(message, target_id=message)

    builder = WorkflowBuilder(start_executor=FunctionExecutor(choose)).add_edge("choose", Relay("x")).add_edge("choose", Relay("y"))
    workflow = builder.build()
    assert (await workflow.run("y")).get_outputs() == ["yy"]
    with pytest.raises(WorkflowFailed, match="'choose' failed: It sends to 'z', but no edge leads there"):
        await workflow.run("z")


async def test_an_executor_that_joins_handles_the_messages_of_a_round_as_one_list() -> None:
    class Join(Executor):
        joins = True

        @handler
        async def all_of(self, message: list[str], ctx: WorkflowContext[Any, Any]) -> None:
            await ctx.yield_output((message, ctx.source_executor_ids))

    result = await fan(Relay("x"), Relay("y"), end=Join("e")).run("")
    assert result.get_outputs()[-1] == (["sx", "sy"], ("x", "y"))


@pytest.mark.requirement("WF4")
@pytest.mark.requirement("WF5")
async def test_a_failing_executor_ends_the_run_with_events_and_an_error_that_names_it() -> None:
    cause = ToolFailed("the disk is full")

    async def boom(message: Any) -> None:
        raise cause

    builder = WorkflowBuilder(start_executor=Relay("s")).add_edge("s", FunctionExecutor(boom))
    events: list[WorkflowEvent] = []

    async def listen(event: WorkflowEvent) -> None:
        events.append(event)

    with pytest.raises(WorkflowFailed, match=r"^Executor 'boom' failed: the disk is full$") as caught:
        await builder.build().run("", on_event=listen)
    assert caught.value.executor == "boom"
    assert caught.value.__cause__ is cause
    assert [event.type for event in events[-3:]] == ["executor_failed", "failed", "status"]
    assert events[-1].state is WorkflowRunState.FAILED
    details = events[-2].details
    assert details is not None
    assert (details.error_type, details.message, details.executor_id) == ("ToolFailed", "the disk is full", "boom")
    assert "raise cause" in (details.traceback or "")


async def test_what_an_unexpected_exception_says_stays_inside() -> None:
    async def boom(message: Any) -> None:
        raise RuntimeError("hunter2")

    with pytest.raises(WorkflowFailed, match=r"^Executor 'boom' failed unexpectedly \(RuntimeError\)\.$"):
        await WorkflowBuilder(start_executor=FunctionExecutor(boom)).build().run("")


async def test_a_failure_cancels_the_others_of_its_round() -> None:
    cancelled: list[str] = []

    async def wait(message: Any) -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append("wait")
            raise

    async def boom(message: Any) -> None:
        raise ToolFailed("no")

    with anyio.fail_after(5):
        events = await collect(fan(FunctionExecutor(wait), FunctionExecutor(boom), end=Relay("e")), "")
    assert cancelled == ["wait"]
    assert "e" not in [event.executor_id for event in events]


async def test_a_condition_that_raises_fails_the_run_at_its_source() -> None:
    def broken(message: Any) -> bool:
        raise KeyError("x")

    workflow = WorkflowBuilder(start_executor=Relay("s")).add_edge("s", Relay("e"), broken).build()
    with pytest.raises(WorkflowFailed) as caught:
        await workflow.run("")
    assert caught.value.executor == "s"


@pytest.mark.requirement("WF4")
async def test_cancelling_the_caller_stops_the_run() -> None:
    started = anyio.Event()

    async def wait(message: Any) -> None:
        started.set()
        await anyio.sleep_forever()

    stream = WorkflowBuilder(start_executor=FunctionExecutor(wait)).build().run("x", stream=True)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.get_final_response)
            await started.wait()
            tasks.cancel_scope.cancel()
    result = await stream.get_final_response()
    assert result.get_final_state() is WorkflowRunState.CANCELLED


@pytest.mark.requirement("WF6")
async def test_a_run_tells_its_events_in_order() -> None:
    async def note(message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.add_event(WorkflowEvent("warning", "careful"))

    workflow = WorkflowBuilder(start_executor=Relay("s")).add_edge("s", FunctionExecutor(note)).build()
    events = [event async for event in workflow.run("x", stream=True)]
    assert [(event.type, event.executor_id or event.state or event.iteration or event.data) for event in events] == [
        ("started", None),
        ("status", WorkflowRunState.IN_PROGRESS),
        ("superstep_started", 1),
        ("executor_invoked", "s"),
        ("output", "s"),
        ("executor_completed", "s"),
        ("superstep_completed", 1),
        ("superstep_started", 2),
        ("executor_invoked", "note"),
        ("warning", "careful"),
        ("executor_completed", "note"),
        ("superstep_completed", 2),
        ("status", WorkflowRunState.IDLE),
    ]


@pytest.mark.requirement("WF8")
async def test_the_result_has_outputs_final_state_and_timeline() -> None:
    result = await WorkflowBuilder(start_executor=Relay("s")).build().run("x")
    assert result.outputs == (("s", "xs"),)
    assert result.status_timeline() == [WorkflowRunState.IN_PROGRESS, WorkflowRunState.IDLE]


@pytest.mark.requirement("WF4")
async def test_a_stream_gives_the_failure_events_before_it_raises() -> None:
    async def boom(message: Any) -> None:
        raise ToolFailed("no")

    seen: dict[str, None] = {}
    with pytest.raises(WorkflowFailed):
        async for event in WorkflowBuilder(start_executor=FunctionExecutor(boom)).build().run("x", stream=True):
            seen[event.type] = None
    assert list(seen)[-2:] == ["executor_failed", "failed"]


async def test_a_stream_that_is_closed_early_runs_no_further_round_and_frees_the_workflow() -> None:
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
        if event.type == "superstep_completed":
            break
    await stream.aclose()
    assert runs == ["first"]
    assert (await stream.get_final_response()).get_final_state() is WorkflowRunState.CANCELLED
    await workflow.run("x")
    assert runs == ["first", "first", "second"]


@pytest.mark.requirement("WF10")
async def test_a_workflow_needs_a_message_and_runs_one_at_a_time() -> None:
    release = anyio.Event()
    started = anyio.Event()

    async def wait(message: Any) -> None:
        started.set()
        await release.wait()

    workflow = WorkflowBuilder(start_executor=FunctionExecutor(wait), name="w").build()
    with pytest.raises(ValueError, match="message"):
        await workflow.run()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(workflow.run, "x")
            await started.wait()
            with pytest.raises(RuntimeError, match="'w' is already running"):
                await workflow.run("x")
            release.set()
    await workflow.run("x")


async def test_a_function_executor_may_be_sync_and_then_runs_in_a_thread() -> None:
    def ident(message: str) -> int:
        return threading.get_ident()

    result = await WorkflowBuilder(start_executor=FunctionExecutor(ident)).build().run("x")
    assert result.get_outputs()[0] != threading.get_ident()
    with pytest.raises(WorkflowFailed, match="It takes str, not int"):
        await WorkflowBuilder(start_executor=FunctionExecutor(ident)).build().run(1)


async def test_executors_reach_the_call_they_serve() -> None:
    call = CallContext()
    seen: list[CallContext] = []

    async def look(message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        seen.append(ctx.call)

    await WorkflowBuilder(start_executor=FunctionExecutor(look)).build().run("x", ctx=call)
    assert seen == [call]
