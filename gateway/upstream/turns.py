"""`Turns`: one caller at a time at a server that cannot say whom its questions are for.

A 2025 server over stdio asks on the one pipe all callers share, so while it may ask, only calls of one caller run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from gateway.tools.context import CallContext


class Turns:
    """Hands the server to one caller after the other, first come first served; calls of the same caller run together."""

    def __init__(self) -> None:
        self._owner: object = None
        self._running = 0
        self._queue: deque[tuple[object, anyio.Event]] = deque()

    @asynccontextmanager
    async def turn(self, ctx: CallContext) -> AsyncGenerator[None, None]:
        """Hold the server for the caller of `ctx`. The call's clocks stand still while it waits."""
        owner: object = ctx.client.session_id or object()
        if self._running and owner != self._owner:
            async with AsyncExitStack() as stack:
                for clock in ctx.clocks:
                    await stack.enter_async_context(clock.paused())
                await self._wait(owner)
        else:
            self._owner = owner
            self._running += 1
        try:
            yield
        finally:
            self._leave()

    async def _wait(self, owner: object) -> None:
        mine = (owner, anyio.Event())
        self._queue.append(mine)
        try:
            await mine[1].wait()
        except BaseException:
            if mine in self._queue:
                self._queue.remove(mine)
            else:  # the turn came in the moment of being cancelled
                self._leave()
            raise

    def _leave(self) -> None:
        self._running -= 1
        if self._running or not self._queue:
            return
        self._owner = self._queue[0][0]
        for entry in [e for e in self._queue if e[0] == self._owner]:
            self._queue.remove(entry)
            self._running += 1
            entry[1].set()
