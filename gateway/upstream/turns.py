"""`Turns`: one caller at a time at a server that cannot say whom its questions are for.

A 2025 server over stdio asks on the one pipe all callers share, so while it may ask, only calls of one caller run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import anyio

from gateway.tools.context import CallContext
from gateway.tools.queues import CallerQueues

MAX_JOINED = 32
"""Calls of one client that join its turn while others wait. Not 0: a client may make calls before it answers a question of the server."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    principal: str
    owner: object
    granted: anyio.Event = field(default_factory=anyio.Event)


class Turns:
    """Gives the server to one client after the other, the clients of each principal in rotation; calls of one client run together."""

    def __init__(self) -> None:
        self._owner: object = None
        self._running = 0
        self._joined = 0
        """Calls of the owner that began while others waited."""
        self._waiting: CallerQueues[_Waiter] = CallerQueues()

    @asynccontextmanager
    async def turn(self, ctx: CallContext) -> AsyncGenerator[None, None]:
        """Hold the server for the client of `ctx`. The call's clocks stand still while it waits."""
        owner: object = ctx.client.session_id or object()
        if self._running and (owner != self._owner or (self._waiting and self._joined >= MAX_JOINED)):
            async with AsyncExitStack() as stack:
                for clock in ctx.clocks:
                    await stack.enter_async_context(clock.paused())
                await self._wait(_Waiter(ctx.principal.id, owner))
        else:
            if not self._running:
                self._owner, self._joined = owner, 0
            self._running += 1
            self._joined += bool(self._waiting)
        try:
            yield
        finally:
            self._leave()

    async def _wait(self, waiter: _Waiter) -> None:
        self._waiting.add(waiter.principal, waiter)
        try:
            await waiter.granted.wait()
        except BaseException:
            if not self._waiting.discard(waiter.principal, waiter):  # the turn came in the moment of being cancelled
                self._leave()
            raise

    def _leave(self) -> None:
        self._running -= 1
        if self._running or not self._waiting:
            return
        self._joined = 0
        first = self._waiting.serve_next()
        self._owner = first.owner
        together = [waiter for waiter in self._waiting.of(first.principal) if waiter.owner == first.owner]
        for waiter in (first, *together[: MAX_JOINED - 1]):
            self._waiting.discard(waiter.principal, waiter)
            self._running += 1
            waiter.granted.set()
