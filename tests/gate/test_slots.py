"""`GuardedTool`: the deadline of a call and the slots of its source, also while the call waits for a slot or an answer."""

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest

from gateway.config.policies import SourcePolicy
from gateway.gate.concurrency import Limiter
from gateway.gate.tool_rules import DEFAULT_TASK_SECONDS, ToolRules
from gateway.json_types import JsonObject
from gateway.tools.base import Complete, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext, CallPorts
from tests.fakes.recorded_events import RecordedEvents
from tests.gate.fake_tools import ASK, LOCAL, Person, Work, asking, complete, echo, guard, told

NOTHING: JsonObject = {}


async def test_call_over_its_deadline_is_cancelled() -> None:
    cancelled = anyio.Event()

    async def hang(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError

    events = RecordedEvents()
    limiter = Limiter(1)
    with anyio.fail_after(20):
        outcome = await complete(guard(hang, events=events, limiter=limiter, timeoutSeconds=0.02), {})
    assert outcome.is_error
    assert outcome.as_text().startswith("Timed out after 0.02 s")
    assert cancelled.is_set()
    assert limiter.held == 0
    assert told(events)[-1] == ("call.finished", "timeout")


async def test_cancelled_call_frees_its_slot() -> None:
    started = anyio.Event()

    async def hang(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        started.set()
        await anyio.sleep_forever()
        raise AssertionError

    events, limiter = RecordedEvents(), Limiter(1)
    returned: list[ToolOutcome] = []

    async def run() -> None:
        returned.append(await guard(hang, events=events, limiter=limiter).call({}, LOCAL))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await started.wait()
            tasks.cancel_scope.cancel()
    assert returned == []
    assert limiter.held == 0
    assert told(events)[-1] == ("call.finished", "cancelled")


async def test_calls_wait_for_slots_and_may_be_cancelled_while_waiting() -> None:
    running: list[int] = []
    most: list[int] = []
    gate = anyio.Event()

    async def work(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        running.append(1)
        most.append(len(running))
        await gate.wait()
        running.pop()
        return Complete.text("")

    limiter = Limiter(2)
    tool = guard(work, limiter=limiter)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(tool.call, NOTHING, LOCAL)
            await anyio.wait_all_tasks_blocked()
            async with anyio.create_task_group() as impatient:
                impatient.start_soon(tool.call, NOTHING, LOCAL)
                await anyio.wait_all_tasks_blocked()
                impatient.cancel_scope.cancel()
            gate.set()
    assert max(most) == 2
    assert limiter.held == 0


async def test_waiting_for_slot_is_not_working_time() -> None:
    deadlines: list[float] = []

    async def look(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        deadlines.append(ctx.limits.clocks[-1].scope.deadline)
        return Complete.text("")

    limiter = Limiter(1)
    assert limiter.acquire_now()
    released_at = float("inf")
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guard(look, limiter=limiter, timeoutSeconds=60).call, NOTHING, LOCAL)
            await anyio.wait_all_tasks_blocked()
            released_at = anyio.current_time()
            limiter.release()
    assert deadlines[0] >= released_at + 60


def keeping(contexts: list[CallContext]) -> Work:
    async def ask(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        contexts.append(ctx)
        return await asking(arguments, ctx)

    return ask


async def test_question_stops_clock_and_frees_slot() -> None:
    person, limiter = Person(), Limiter(1)
    contexts: list[CallContext] = []
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guard(keeping(contexts), limiter=limiter).call, NOTHING, CallContext(ports=CallPorts(caller=person)))
            await person.asked.wait()
            assert (await complete(guard(echo, limiter=limiter), {})).as_text() == "done"
            assert [clock.scope.deadline for clock in contexts[0].limits.clocks] == [float("inf")]
            person.may_answer.set()
    assert contexts[0].limits.clocks[0].scope.deadline < float("inf")
    assert limiter.held == 0


async def test_answered_call_waits_for_slot_again() -> None:
    person, limiter = Person(), Limiter(1)
    finished = anyio.Event()

    async def run() -> None:
        await guard(asking, limiter=limiter).call({}, CallContext(ports=CallPorts(caller=person)))
        finished.set()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await person.asked.wait()
            assert limiter.acquire_now()
            person.may_answer.set()
            await anyio.wait_all_tasks_blocked()
            assert not finished.is_set()
            limiter.release()
            await finished.wait()
    assert limiter.held == 0


async def test_concurrent_questions_keep_slot_count() -> None:
    async def ask_twice(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ctx.ask, ASK)
            tasks.start_soon(ctx.ask, ASK)
        await ctx.ask(ASK)
        return Complete.text("answered")

    person, limiter = Person(), Limiter(1)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(guard(ask_twice, limiter=limiter).call, NOTHING, CallContext(ports=CallPorts(caller=person)))
            await anyio.wait_all_tasks_blocked()
            assert limiter.held == 0
            person.may_answer.set()
    assert limiter.held == 0


async def test_call_cancelled_during_question_leaves_slot_free() -> None:
    person, limiter = Person(), Limiter(1)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guard(asking, limiter=limiter).call, NOTHING, CallContext(ports=CallPorts(caller=person)))
            await person.asked.wait()
            tasks.cancel_scope.cancel()
    assert limiter.held == 0


async def test_nested_call_of_same_source_shares_slot() -> None:
    limiter = Limiter(1)
    leaf = guard(asking, limiter=limiter)
    other = guard(lambda arguments, ctx: leaf.call({}, ctx.child()), limiter=Limiter(1))
    outer = guard(lambda arguments, ctx: other.call({}, ctx.child()), limiter=limiter)
    person = Person()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outer.call, NOTHING, CallContext(ports=CallPorts(caller=person)))
            await person.asked.wait()
            assert limiter.held == 0
            person.may_answer.set()
    assert limiter.held == 0


async def test_question_of_inner_call_stops_outer_clock() -> None:
    contexts: list[CallContext] = []
    inner = guard(keeping(contexts))
    outer = guard(lambda arguments, ctx: inner.call({}, ctx.child()))
    person = Person()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outer.call, NOTHING, CallContext(ports=CallPorts(caller=person)))
            await person.asked.wait()
            assert [clock.scope.deadline for clock in contexts[0].limits.clocks] == [float("inf")] * 2
            person.may_answer.set()
    assert all(clock.scope.deadline < float("inf") for clock in contexts[0].limits.clocks)


@pytest.mark.parametrize(("rules", "is_local", "seconds"), [
    ({}, False, DEFAULT_TASK_SECONDS),
    ({"timeoutSeconds": 2 * DEFAULT_TASK_SECONDS}, False, 2 * DEFAULT_TASK_SECONDS),
    ({"tasks": {"maxWaitSeconds": 5}}, False, 5),
    ({}, True, math.inf),
])  # fmt: skip
def test_remote_task_always_has_a_deadline(rules: dict[str, Any], is_local: bool, seconds: float) -> None:
    gate = ToolRules.build(ToolDefinition("hang", "", {"type": "object"}), SourcePolicy.model_validate(rules), is_local=is_local)
    assert gate.max_task_seconds == seconds
