"""Questions of workflows and runs in code: branches, steps and calls that ask the same at once, whichever comes first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.agents.batch import ToolBatch
from gateway.chat.loop_options import LoopOptions
from gateway.json_types import JsonObject
from gateway.tasks.task_executor import CallTool
from gateway.tools.base import Complete
from gateway.tools.context import CallContext
from gateway.tools.drive import drive
from gateway.tools.invocation import FunctionInvocationContext
from gateway.types.content import Content
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.executor import Executor, handler, response_handler
from gateway.workflows.functional import FunctionalWorkflow
from gateway.workflows.functional_steps import RunContext, step
from gateway.workflows.messages import WorkflowMessage
from gateway.workflows.snapshots import restore_snapshot, take_snapshot
from gateway.workflows.workflow_context import WorkflowContext
from tests.tasks.killing import Ended, Fuse, Ledger, Person, in_code, run_killed, tools
from tests.workflows.scripted import ScriptedToolBox

pytestmark = [pytest.mark.timeout(120), pytest.mark.fault(3), pytest.mark.requirement(97)]


async def use(box: ScriptedToolBox, name: str, ctx: CallContext, x: str = "same") -> str:
    """The text that a tool of the box gives."""
    (tool,) = await box.tools([f"t/{name}"])
    outcome: Any = await drive(tool, {"x": x}, ctx.child())
    return str(outcome.as_text())


class Payer(Executor):
    """An executor that asks a question, and pays when it has received the answer."""

    def __init__(self, name: str, box: ScriptedToolBox, delay: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(name)
        self._box = box
        self._delay = delay

    @handler
    async def start(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        if self.id == "start":
            await ctx.send_message(message)
            return
        await anyio.sleep(self._delay())
        await ctx.yield_output(f"{self.id} {await use(self._box, 'pay', ctx.call)}")
        await ctx.request_info("Sure?", str)

    @response_handler
    async def said(self, original_request: str, response: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{self.id} {response} {await use(self._box, 'act', ctx.call)}")


def payers(box: ScriptedToolBox, fuse: Fuse) -> Any:
    """Build two parallel executors that ask the same question. The last process makes executor `two` ask first."""
    start, one, two = Payer("start", box), Payer("one", box, lambda: 0.2 * (fuse.kill_at is None)), Payer("two", box)
    return WorkflowBuilder(start_executor=start, output_from=[one, two]).add_fan_out_edges(start, [one, two]).build()


MANY = [pytest.param(number, marks=pytest.mark.faults) for number in (10, 14)]


@pytest.mark.parametrize("kill_at", [2, 3, 6, 8, 12, *MANY])
def test_concurrent_equal_questions_get_their_own_answers(kill_at: int, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ended = run_killed(tmp_path / "state", in_code(payers), ledger, [kill_at])
    own_answers(ended, ledger, {"one", "two"})


def own_answers(ended: Ended, ledger: Ledger, branches: set[str]) -> None:
    """Check that each branch got the answer to its own question, and that it had each effect once unless a person chose to retry."""
    said = [text for text in ended.texts if "A /" in text]
    assert {text.partition(" ")[0] for text in said} == branches
    for text in said:
        branch = text.partition(" ")[0]
        assert f"{branch}@" in text or f"{branch}::" in text, text
    keys = [key for key, _ in ledger.answered()]
    assert len(keys) == len(set(keys))
    retries = sum(text.startswith("The gateway stopped") for _, text in ledger.answered())
    assert len(ledger.effects.lines()) <= 2 * len(branches) + retries


def test_step_in_flight_after_an_answer_is_not_repeated_unasked(tmp_path: Path) -> None:
    """The run goes on from a checkpoint in which the question is open: the answer is delivered in the round it had before."""
    state, ledger = tmp_path / "state", Ledger(tmp_path / "ledger")

    def alone(box: ScriptedToolBox, fuse: Fuse) -> Any:
        start, one = Payer("start", box), Payer("one", box)
        return WorkflowBuilder(start_executor=start, output_from=[one]).add_edge(start, one).build()

    ended = run_killed(state, in_code(alone), ledger, [4 + 4])
    assert ended.kills == 1
    assert [text.startswith("The gateway stopped") for _, text in ledger.answered()] == [False, False, True]
    assert len(ledger.effects.lines()) == 3


class Speaker(Executor):
    """Sends its messages on in the order it got them."""

    @handler
    async def hear(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        for word in message.split():
            await ctx.send_message(f"{message} {self.id}", target_id=word if word in ("x", "y") else None)


async def test_messages_keep_their_order_over_a_checkpoint() -> None:
    """Labels of deliveries depend on the order of messages, and these labels identify steps and questions."""
    a, b = Speaker("a"), Speaker("b")
    built = WorkflowBuilder(start_executor=a).add_edge(a, b).build()
    sent = [WorkflowMessage("1", "a"), WorkflowMessage("2", "b"), WorkflowMessage("3", "a")]
    built.run_state.messages = list(sent)
    checkpoint = await take_snapshot(built)
    built.run_state.messages = []
    await restore_snapshot(built, checkpoint)
    assert [message.data for message in built.run_state.messages] == ["1", "2", "3"]


def in_steps(box: ScriptedToolBox, fuse: Fuse) -> Any:
    """A function whose two steps run side by side; every other process has the second ask first."""

    @step
    async def one(ctx: RunContext) -> str:
        await anyio.sleep(0.2 * (fuse.kill_at is None))
        paid = await use(box, "pay", ctx.call)
        return f"one {await ctx.request_info('Sure?', str)} {paid} {await use(box, 'act', ctx.call)}"

    @step
    async def two(ctx: RunContext) -> str:
        paid = await use(box, "pay", ctx.call)
        return f"two {await ctx.request_info('Sure?', str)} {paid} {await use(box, 'act', ctx.call)}"

    async def both(message: str, ctx: RunContext) -> str:
        said: dict[str, str] = {}

        async def note(name: str, work: Any) -> None:
            said[name] = await work()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note, "one", one)
            tasks.start_soon(note, "two", two)
        return f"{said['one']}; {said['two']}"

    return FunctionalWorkflow(both)


@pytest.mark.parametrize("kill_at", [2, 6, pytest.param(8, marks=pytest.mark.faults), 11])
def test_steps_that_ask_the_same_at_once_get_their_own_answers(kill_at: int, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ended = run_killed(tmp_path / "state", in_code(in_steps), ledger, [kill_at])
    (text,) = ended.texts
    one, two = text.split("; ")
    assert (one.partition(" ")[0], two.partition(" ")[0]) == ("one", "two")
    said = [part.split(" A ")[1].partition(" ")[0] for part in (one, two)]
    assert len(set(said)) == 2
    keys = [key for key, _ in ledger.answered()]
    assert len(keys) == len(set(keys))
    retries = sum(text.startswith("The gateway stopped") for _, text in ledger.answered())
    assert len(ledger.effects.lines()) <= 4 + retries


class TwoQuestions(Executor):
    """Asks twice at once, and acts on each answer."""

    def __init__(self, box: ScriptedToolBox) -> None:
        super().__init__("two")
        self._box = box

    @handler
    async def start(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        for name in ("a", "b"):
            await ctx.request_info(name, str)

    @response_handler
    async def said(self, original_request: str, response: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(await use(self._box, "act", ctx.call, original_request))


def test_order_of_answers_does_not_move_the_steps_that_follow(tmp_path: Path) -> None:
    """The second question is answered first. After the kill both answers arrive at once, and each step is still recognized."""
    ledger = Ledger(tmp_path / "ledger")
    work = in_code(lambda box, fuse: WorkflowBuilder(start_executor=TwoQuestions(box)).build())
    ended = run_killed(tmp_path / "state", work, ledger, [8], Person(last_first=True))
    assert (ended.kills, ended.texts) == (1, ["did(a)", "did(b)"])
    retries = sum(text.startswith("The gateway stopped") for _, text in ledger.answered())
    assert len(ledger.effects.lines()) == 2 + retries


def test_function_code_outside_its_steps_has_its_effects_once(tmp_path: Path) -> None:
    """The function runs again after each answer."""

    def outside(box: ScriptedToolBox, fuse: Fuse) -> Any:
        async def twice(message: str, ctx: RunContext) -> str:
            acted = await use(box, "act", ctx.call)
            return f"{acted} {await ctx.request_info('Sure?', str)} {await ctx.request_info('Sure?', str)}"

        return FunctionalWorkflow(twice)

    ledger = Ledger(tmp_path / "ledger")
    run_killed(tmp_path / "state", in_code(outside), ledger, [])
    assert len(ledger.effects.lines()) == 1
    assert len({key for key, _ in ledger.answered()}) == 2


def test_calls_of_a_finished_step_are_not_those_of_the_next(tmp_path: Path) -> None:
    def in_a_row(box: ScriptedToolBox, fuse: Fuse) -> Any:
        @step
        async def one(ctx: RunContext) -> str:
            return await use(box, "act", ctx.call)

        @step
        async def two(ctx: RunContext) -> str:
            return await use(box, "act", ctx.call)

        async def both(message: str) -> str:
            return f"{await one()} {await two()}"

        return FunctionalWorkflow(both)

    ledger = Ledger(tmp_path / "ledger")
    ended = run_killed(tmp_path / "state", in_code(in_a_row), ledger, [4])  # after the effect of the second
    assert ended.kills == 1
    assert [text.partition(" while")[0] for _, text in ledger.answered()] == ["The gateway stopped"]
    assert len(ledger.effects.lines()) == 3


def test_question_that_a_sibling_cut_short_is_put_again(tmp_path: Path) -> None:
    """One step asks, which suspends the run while the other step waits for an approval."""

    def cut(box: ScriptedToolBox, fuse: Fuse) -> Any:
        @step
        async def asks(ctx: RunContext) -> str:
            await anyio.sleep(0.1)
            return await ctx.request_info("Sure?", str)

        @step
        async def pays(ctx: RunContext) -> str:
            return await use(box, "pay", ctx.call)

        async def both(message: str) -> str:
            said: list[str] = []

            async def note(work: Callable[[], Awaitable[str]]) -> None:
                said.append(await work())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(note, asks)
                tasks.start_soon(note, pays)
            return " ".join(sorted(text.partition(" ")[0] for text in said))

        return FunctionalWorkflow(both)

    ledger = Ledger(tmp_path / "ledger")
    ended = run_killed(tmp_path / "state", in_code(cut), ledger, [], Person(patience=0.5))
    assert ended.texts == ["A did(same)"]


class Slowly:
    """Function middleware that delays each call of a batch by the seconds that `delays` has for its call id."""

    def __init__(self, delays: JsonObject) -> None:
        self._delays = delays

    async def __call__(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        await anyio.sleep(self._delays[str(context.metadata["call_id"])])
        await call_next()


def batch_of_two(ledger: Ledger, fuse: Fuse) -> CallTool:
    """Make two equal calls of one model response, which both need approval. In the last process the second call asks first."""

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        (pay,) = await tools(ledger, fuse, {}).tools(["t/pay"])
        delays = {"a": 0.0, "b": 0.2} if fuse.kill_at is not None else {"a": 0.2, "b": 0.0}
        batch = ToolBatch(tools=[pay], ctx=ctx, options=LoopOptions(), middleware=[Slowly(delays)])
        calls = [Content.from_function_call(name, "pay", {"x": "same"}) for name in ("a", "b")]
        outcome = await batch.run(calls)
        fuse.event()
        return Complete.text("; ".join(str(result.result) for result in outcome.results))

    return call


def test_equal_calls_of_one_model_response_keep_their_approvals(tmp_path: Path) -> None:
    """The first call is approved and the second declined. After the kill the calls ask in reverse order."""
    ledger = Ledger(tmp_path / "ledger")
    decisions = iter(["approve", "decline"])
    ended = run_killed(tmp_path / "state", batch_of_two, ledger, [7], Person(decide=lambda: next(decisions)))
    (text,) = ended.texts
    assert ended.kills == 1
    assert [part.startswith("did(same)") for part in text.split("; ")] == [True, False]
    assert len(ledger.effects.lines()) == 1
