"""`ProgressRelay`: receives a server's progress reports on one call, and passes them to the caller. `server_session` uses it."""

from __future__ import annotations

import logging
from collections import deque

import anyio
import anyio.abc

from gateway.tools.context import CallContext

logger = logging.getLogger(__name__)

MAX_WAITING = 10
"""Maximum number of progress reports of one call that wait to be passed to the caller. A further report replaces the oldest."""


class ProgressRelay:
    """Passes the progress reports of one call to its caller, in order and before the call's result, in at most one task at a time."""

    def __init__(self, server: str, ctx: CallContext, tasks: anyio.abc.TaskGroup) -> None:
        """Pass reports to the caller of `ctx` in the task group `tasks`, which ends with the connection to the server."""
        self._server = server
        self._ctx = ctx
        self._tasks = tasks
        self._waiting: deque[tuple[float, float | None, str | None]] = deque(maxlen=MAX_WAITING)
        self._passed_on: anyio.Event | None = None
        """Event that is set when all waiting reports have been passed to the caller; `None` while no report waits."""

    def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Queue a progress report and return at once, because the caller may be slow and other calls share the connection."""
        self._waiting.append((progress, total, message))
        if self._passed_on is None:
            self._passed_on = anyio.Event()
            self._tasks.start_soon(self._pass_on, self._passed_on)

    async def finish(self) -> None:
        """Wait until all queued reports have been passed to the caller."""
        if self._passed_on is not None:
            await self._passed_on.wait()

    async def _pass_on(self, passed_on: anyio.Event) -> None:
        try:
            while self._waiting:
                try:
                    await self._ctx.progress(*self._waiting.popleft())
                except Exception:  # a failure of the caller must not end the connection to the server
                    logger.exception("progress not passed on server=%s", self._server)
        finally:
            self._passed_on = None
            passed_on.set()
