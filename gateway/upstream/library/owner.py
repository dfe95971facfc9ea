"""`Owner`: runs an async context manager in a task of its own, so that it may be opened and closed from different tasks.

A program calls `connect()` here and `close()` there; the task groups inside a connection must be entered and left in one
task (requirements MC14). Nothing else in Moongate needs this: everywhere else a resource lives in its owner's task group.
Plain asyncio, because the owning task must outlive whoever called `open`, which a task group forbids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

T = TypeVar("T")

CLOSE_SECONDS = 15.0
"""How long closing may take before the task is cancelled: longer than a child process gets to leave."""


class Owner(Generic[T]):
    """Holds one entered context at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def open(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Enter `make()` and return what it yields; what entering raises is raised here. Cancelling this leaves it again."""
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
        """Leave the context and wait for that, bounded. Does nothing when none is open."""
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
                entered.exception()  # read, so that nothing complains when the one who opened is gone
        finally:
            watcher.cancel()
