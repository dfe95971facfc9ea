"""A call on the fast path runs in a task of its own, is settled however it ends, and keeps its deadline after a hand-over."""

from __future__ import annotations

import asyncio  # noqa: TID251  # how a cancelled call ends

import anyio
import pytest

from gateway.errors import InputExpired
from gateway.gate.concurrency import run_within
from gateway.server import in_flight
from gateway.server.deferred_caller import PlainCaller
from gateway.server.in_flight import Deadlines, InFlightCall
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import CallContext, CallLimits, LateClock
from tests.fakes.settled import settled


class Closable(PlainCaller):
    """A caller of the SDK path."""

    presence = None
    has_more = False

    async def close(self) -> None:
        """Do nothing."""


async def never() -> ToolOutcome:
    await anyio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize("turns", [0, 1])
async def test_cancelled_call_is_settled_before_and_after_its_first_step(turns: int) -> None:
    settled = anyio.Event()
    call = InFlightCall(never(), LateClock(60), Deadlines())
    call.when_settled(settled.set)
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()
    call.cancel()
    assert not settled.is_set()  # the caller may iterate over the calls that it cancels
    with anyio.fail_after(20):
        await settled.wait()
        await call.end()
    assert call.is_over and isinstance(call.error, asyncio.CancelledError)


async def test_slow_call_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "HAND_OVER_SECONDS", 0.02)
    release = anyio.Event()

    async def work() -> ToolOutcome:
        await release.wait()
        return Complete.text("done")

    call = InFlightCall(work(), LateClock(60), Deadlines())
    with anyio.fail_after(20):
        await settled(call)
        assert not call.is_over
        release.set()
        outcome = await call.outcome(Closable())
    assert isinstance(outcome, Complete) and outcome.as_text() == "done"


async def test_handed_over_call_ends_when_its_clock_ends() -> None:
    deferred = LateClock(1)

    async def work(ctx: CallContext) -> ToolOutcome:
        ctx.limits.clocks[-1].end("nobody answered")
        return await never()

    async def run() -> ToolOutcome:
        outcome = await run_within(None, 60, CallContext(limits=CallLimits(late_clock=deferred)), work)
        assert outcome is not None
        return outcome

    call = InFlightCall(run(), deferred, Deadlines())
    await anyio.wait_all_tasks_blocked()
    assert not call.is_over
    call.hand_over()
    with anyio.fail_after(20), pytest.raises(InputExpired, match="nobody answered"):
        await call.outcome(Closable())


async def test_cancelled_waiter_of_the_sdk_path_cancels_the_call() -> None:
    call = InFlightCall(never(), LateClock(60), Deadlines())
    call.hand_over()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.outcome, Closable())
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert call.is_over and call.is_cancelled
