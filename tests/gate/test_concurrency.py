"""Waiting for a place in a source's limiter: calls get places in turn, and a cancelled call loses none."""

from __future__ import annotations

import asyncio  # noqa: TID251  # tasks are counted
from collections.abc import Awaitable, Callable

import anyio
import pytest

from gateway.gate.concurrency import Limiter, run_within
from gateway.server.in_flight import Deadlines, InFlightCall
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import CallContext, CallLimits, LateClock
from tests.fakes.settled import settled


def started(work: Callable[[], Awaitable[ToolOutcome]]) -> InFlightCall:
    """A call as the server's fast path starts it."""

    async def run() -> ToolOutcome:
        return await work()

    return InFlightCall(run(), LateClock(60), Deadlines())


async def test_waiting_calls_get_slots_in_turn() -> None:
    limiter, order = Limiter(1), list[int]()
    answers = [anyio.Event() for _ in range(50)]

    async def work(number: int) -> ToolOutcome:
        await limiter.acquire("anna")
        order.append(number)
        try:
            await answers[number].wait()
            return Complete.text("yes")
        finally:
            limiter.release()

    calls = [started(lambda number=number: work(number)) for number in range(len(answers))]
    with anyio.fail_after(20):
        for number, answer in enumerate(answers):
            await anyio.wait_all_tasks_blocked()
            assert (order, limiter.held) == (list(range(number + 1)), 1)
            answer.set()
            await settled(calls[number])
    assert limiter.held == 0


async def test_many_calls_that_fail_at_once_do_not_nest() -> None:
    limiter = Limiter(1)
    assert limiter.acquire_now()

    async def work() -> ToolOutcome:
        await limiter.acquire("anna")
        limiter.release()
        raise ValueError

    calls = [started(work) for _ in range(3_000)]
    limiter.release()
    with anyio.fail_after(20):
        await settled(calls[-1])
    assert all(isinstance(call.error, ValueError) for call in calls)
    assert limiter.held == 0


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_cancelled_waiter_leaves_slot_to_next(turns: int) -> None:
    limiter = Limiter(1)
    assert limiter.acquire_now()
    gate, took, calls = anyio.Event(), list[str](), list[InFlightCall]()

    async def wait(name: str) -> None:
        await limiter.acquire("anna")
        took.append(name)
        try:
            await gate.wait()
        finally:
            limiter.release()

    async def plainly() -> ToolOutcome:
        await limiter.acquire("anna")
        limiter.release()
        return Complete.text("")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(wait, "leaves")
                await anyio.wait_all_tasks_blocked()
                calls.append(started(plainly))
                tasks.start_soon(wait, "stays")
                await anyio.wait_all_tasks_blocked()
                limiter.release()
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                calls[0].cancel()
                leaving.cancel_scope.cancel()
            while "stays" not in took:
                await anyio.lowlevel.checkpoint()
            assert limiter.held == 1
            gate.set()
    await calls[0].end()
    assert limiter.held == 0


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_cancelled_call_releases_slot(turns: int) -> None:
    limiter, deferred, cancelled = Limiter(1), LateClock(1.0), list[str]()

    async def work(ctx: CallContext) -> ToolOutcome:
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            cancelled.append("work")
            raise
        raise AssertionError

    async def run() -> ToolOutcome:
        outcome = await run_within(limiter, 60, CallContext(limits=CallLimits(late_clock=deferred)), work)
        assert outcome is not None
        return outcome

    call = InFlightCall(run(), deferred, Deadlines())
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()
    call.hand_over()
    with anyio.fail_after(20):
        call.cancel()
        await call.end()
    assert isinstance(call.error, asyncio.CancelledError)
    assert (cancelled, limiter.held) == (["work"] if turns else [], 0)
