"""`ProgressRelay`: passes progress reports of one call from the server's connection to the caller. Used by `server_session`."""

from __future__ import annotations

import logging
from collections import deque

import anyio
import anyio.abc

from gateway.tools.context import CallContext

logger = logging.getLogger(__name__)

MAX_WAITING = 10
"""Reports of one call that wait; a further one replaces the oldest."""


class ProgressRelay:
    """Passes the progress reports of one call on, in order and before the call's result, in at most one task at a time."""

    def __init__(self, server: str, ctx: CallContext, tasks: anyio.abc.TaskGroup) -> None:
        """The task group `tasks` ends with the connection to the server."""
        self._server = server
        self._ctx = ctx
        self._tasks = tasks
        self._waiting: deque[tuple[float, float | None, str | None]] = deque(maxlen=MAX_WAITING)
        self._passed_on: anyio.Event | None = None
        """Event that is set when all waiting reports are passed on; `None` while no report waits."""

    def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Add a report without waiting, because the caller may be slow and other calls share the connection."""
        self._waiting.append((progress, total, message))
        if self._passed_on is None:
            self._passed_on = anyio.Event()
            self._tasks.start_soon(self._pass_on, self._passed_on)

    async def finish(self) -> None:
        """Wait until all reports are passed on."""
        if self._passed_on is not None:
            await self._passed_on.wait()

    async def _pass_on(self, passed_on: anyio.Event) -> None:
        try:
            while self._waiting:
                try:
                    await self._ctx.progress(*self._waiting.popleft())
                except Exception:  # a failure of the caller must not end the server's connection
                    logger.exception("progress not passed on server=%s", self._server)
        finally:
            self._passed_on = None
            passed_on.set()
