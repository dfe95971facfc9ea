"""`ContextTask`: enters and leaves an async context manager in a separate task, so that different tasks may open and close it.

A program may call `connect()` in one task and `close()` in another, but the task groups of a connection must be entered and left in the
same task. The module uses asyncio instead of anyio, because the task outlives the caller of `open`, which a task group does not allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

T = TypeVar("T")

CLOSE_SECONDS = 15.0
"""Seconds that closing may take before the task is cancelled. It is longer than the grace periods of a child process."""


class ContextTask(Generic[T]):
    """Enters one async context manager at a time in a separate task, and leaves it in the same task."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def open(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Enter the context manager that `make()` returns, and return its value or raise its exception.

        If this method is cancelled, the context manager is left again.
        """
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
        """Leave the open context manager, if there is one, and wait until it has been left. After `CLOSE_SECONDS`, cancel its task."""
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
                entered.exception()  # avoids the log message "exception was never retrieved" if the caller of `open` was cancelled
        finally:
            watcher.cancel()
