"""`SharedDatabase`: the database of gateways that share their state (`storage.url`), for code that runs in worker threads and may block."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import anyio.from_thread

if TYPE_CHECKING:
    from gateway.storage.engine import Database

T = TypeVar("T")


class SharedDatabase:
    """Runs transactions on the shared database for callers in worker threads (`anyio.to_thread`)."""

    def __init__(self, open_database: Callable[[], Awaitable[Database]]) -> None:
        """`open_database` opens the database on first use, and returns it (`Records.database`)."""
        self.open = open_database

    def run(self, work: Callable[[Database], Awaitable[T]]) -> T:
        """Run `work` in the event loop that started the calling worker thread, and return its result. Blocks. Raises `StorageError`."""
        return anyio.from_thread.run(self._run, work)

    async def _run(self, work: Callable[[Database], Awaitable[T]]) -> T:
        return await work(await self.open())
