"""`ContextTask`: runs an async context manager in a task of its own, so that different tasks may open and close it.

A program calls `connect()` in one task and `close()` in another, but the task groups of a connection must be entered and left in the same
task. Plain asyncio, because the task outlives the caller of `open`, which a task group forbids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

T = TypeVar("T")

CLOSE_SECONDS = 15.0
"""How long closing may take before the task is cancelled: longer than the grace periods of a child process."""


class ContextTask(Generic[T]):
    """Enters and leaves one context manager at a time, in a task of its own."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def open(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Enter `make()` and return its value, or raise its exception. Cancelling this leaves the context."""
        assert self._task is None, "already open"
        self._stop = asyncio.Event()
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(make, entered, self._stop))
        try:
            return await asyncio.shield(entered)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave the context, if one is open, and wait until it is left. Bounded by `CLOSE_SECONDS`."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stop.set()
        _, late = await asyncio.shield(asyncio.ensure_future(asyncio.wait({task}, timeout=CLOSE_SECONDS)))
        if late:
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_SECONDS)

    async def _hold(self, make: Callable[[], AbstractAsyncContextManager[T]], entered: asyncio.Future[T], stop: asyncio.Event) -> None:
        opening = asyncio.current_task()
        assert opening is not None

        async def cancel_opening() -> None:
            await stop.wait()
            if not entered.done():
                opening.cancel()

        watcher = asyncio.create_task(cancel_opening())
        try:
            async with make() as value:
                if not entered.done():
                    entered.set_result(value)
                await stop.wait()
        except BaseException as error:
            if not entered.done():
                entered.set_exception(error)
                entered.exception()  # retrieved, so that no "exception was never retrieved" is logged if the caller of `open` is gone
        finally:
            watcher.cancel()
