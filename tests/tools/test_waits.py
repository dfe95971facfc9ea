"""A call that was begun without a task gets one before it uses what takes one, and the tests see it where it does not."""

from __future__ import annotations

import asyncio  # noqa: TID251  # a gateway may be run by it
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateway.server.underway import Patience, Underway
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import LateClock
from gateway.tools.waits import own_task


async def deadline() -> None:
    with anyio.fail_after(5):
        await anyio.lowlevel.checkpoint()


async def group() -> None:
    async with anyio.create_task_group():
        """Empty."""


async def lock() -> None:
    async with anyio.Lock():
        """Free."""


def by_anyio(work: Coroutine[Any, Any, None]) -> None:
    anyio.run(lambda: work)


@pytest.mark.parametrize("run", [asyncio.run, by_anyio])
@pytest.mark.parametrize("use", [deadline, group, lock])
@pytest.mark.parametrize("has_task", [True, False])
def test_what_takes_a_task_is_refused_to_a_call_that_has_none(
    use: Callable[[], Awaitable[None]], has_task: bool, run: Callable[[Coroutine[Any, Any, None]], None], refused_without_task: list[str]
) -> None:
    async def work() -> ToolOutcome:
        if has_task:
            await own_task()
        await use()
        return Complete.text("done")

    async def make() -> None:
        call = Underway(work(), LateClock(60))
        with anyio.fail_after(5):
            await call.settled(Patience())
        assert (call.error is None, call.result is not None) == (has_task, has_task)

    run(make())
    assert {use.__name__ in stack for stack in refused_without_task} == (set() if has_task else {True})
    refused_without_task.clear()
