"""Places in a source: who waits for one needs no task, gets it in turn, and loses none by leaving."""

from __future__ import annotations

import asyncio  # noqa: TID251  # tasks are counted
from collections.abc import Awaitable, Callable

import anyio
import pytest

from gateway.server.underway import Patience, Underway
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import CallContext, LateClock
from gateway.tools.slot import Limiter, run_within
from gateway.tools.waits import PlainWait


def begun(work: Callable[[], Awaitable[ToolOutcome]]) -> Underway:
    """A call without a task."""

    async def run() -> ToolOutcome:
        return await work()

    return Underway(run(), LateClock(60))


async def test_calls_without_a_task_wait_for_a_place_without_one_and_go_on_in_turn() -> None:
    limiter, answers, order = Limiter(1), [PlainWait[str]() for _ in range(200)], list[int]()

    async def work(number: int) -> ToolOutcome:
        await limiter.take("anna")
        order.append(number)
        try:
            return Complete.text(await answers[number])
        finally:
            limiter.give_back()

    before = len(asyncio.all_tasks())
    calls = [begun(lambda number=number: work(number)) for number in range(len(answers))]
    assert (order, limiter.held) == ([0], 1)
    for number, answer in enumerate(answers):
        answer.settle("yes", is_plain=True)
        assert calls[number].is_over
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert order == list(range(min(number + 2, len(answers))))
        assert len(asyncio.all_tasks()) == before
    assert limiter.held == 0


async def test_a_crowd_whose_calls_all_fail_at_once_ends_without_running_inside_each_other() -> None:
    limiter = Limiter(1)
    assert limiter.take_now()

    async def work() -> ToolOutcome:
        await limiter.take("anna")
        limiter.give_back()
        raise ValueError

    calls = [begun(work) for _ in range(3_000)]
    limiter.give_back()
    with anyio.fail_after(20):
        await calls[-1].settled(Patience())
    assert all(isinstance(call.error, ValueError) for call in calls)
    assert limiter.held == 0


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_who_leaves_while_waiting_or_just_when_its_turn_comes_leaves_the_place_to_the_next(turns: int) -> None:
    limiter = Limiter(1)
    assert limiter.take_now()
    gate, took, calls = anyio.Event(), list[str](), list[Underway]()

    async def wait(name: str) -> None:
        await limiter.take("anna")
        took.append(name)
        try:
            await gate.wait()
        finally:
            limiter.give_back()

    async def plainly() -> ToolOutcome:
        await limiter.take("anna")
        limiter.give_back()
        return Complete.text("")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(wait, "leaves")
                await anyio.wait_all_tasks_blocked()
                calls.append(begun(plainly))
                tasks.start_soon(wait, "stays")
                await anyio.wait_all_tasks_blocked()
                limiter.give_back()
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


async def test_more_places_let_those_in_who_wait_and_fewer_take_none_away() -> None:
    limiter, inside = Limiter(1), list[int]()
    gate = anyio.Event()

    async def work(number: int) -> None:
        await limiter.take("anna")
        inside.append(number)
        await gate.wait()
        limiter.give_back()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(work, number)
                await anyio.wait_all_tasks_blocked()
            assert inside == [0]
            limiter.total = 3
            await anyio.wait_all_tasks_blocked()
            assert inside == [0, 1, 2]
            limiter.total = 1
            assert not limiter.take_now()
            gate.set()
    assert (inside, limiter.held) == ([0, 1, 2, 3], 0)


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_call_that_is_handed_on_and_ended_at_once_hears_of_it_and_gives_its_place_back(turns: int) -> None:
    limiter, late, heard = Limiter(1), LateClock(1.0), list[str]()

    async def work(ctx: CallContext) -> ToolOutcome:
        try:
            return Complete.text(await PlainWait[str]())
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    async def run() -> ToolOutcome:
        outcome = await run_within(limiter, 60, CallContext(late_clock=late), work)
        assert outcome is not None
        return outcome

    call = Underway(run(), late)
    call.hand_on()
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()
    with anyio.fail_after(20):
        call.cancel()
        await call.end()
        while not call.is_over:
            await anyio.lowlevel.checkpoint()
    assert isinstance(call.error, asyncio.CancelledError)
    assert (heard, limiter.held) == (["cancelled"], 0)


async def test_free_places_go_to_callers_in_rotation() -> None:
    limiter, order = Limiter(1), list[str]()
    assert limiter.take_now()

    async def work(caller: str) -> None:
        async with limiter.place(caller):
            order.append(caller)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for caller in ("anna", "anna", "anna", "anna", "bob", "bob", "carl"):
                tasks.start_soon(work, caller)
                await anyio.wait_all_tasks_blocked()
            limiter.give_back()
    assert order == ["anna", "bob", "carl", "anna", "bob", "anna", "anna"]
    assert limiter.held == 0


@pytest.mark.parametrize("turns", [0, 1])
async def test_place_freed_right_after_waiter_is_cancelled_goes_to_next(turns: int) -> None:
    limiter, inside = Limiter(1), list[str]()
    assert limiter.take_now()

    async def work(caller: str) -> None:
        async with limiter.place(caller):
            inside.append(caller)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as leaving:
            leaving.start_soon(work, "anna")
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(work, "bob")
            await anyio.wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
            for _ in range(turns):
                await anyio.lowlevel.cancel_shielded_checkpoint()
            limiter.give_back()
    assert (inside, limiter.held) == (["bob"], 0)
