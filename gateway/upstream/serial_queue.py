"""`SerialQueue`: lets one client at a time use a server that cannot tell which call a request for input belongs to.

A 2025 server over stdio sends such requests on the pipe that all callers share. While it may send them, only calls of one client run.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from gateway.errors import AskWithdrawn
from gateway.gate.concurrency import CallerQueues
from gateway.tools.context import CallContext
from gateway.tools.ports import Presence

MAX_JOINED = 32
"""Maximum number of calls that one client adds to its turn while others wait. A client may need calls to answer
a request for input.
"""

SETTLE_SECONDS = 0.25
"""Time for the server to react to a rejected request for input before the next client's turn."""


Leave = Callable[[CallContext, bool], None]
"""Called with the context of a call that has ended, and whether the call was cancelled: then the server may still work on it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    principal: str
    owner: object
    granted: anyio.Event = field(default_factory=anyio.Event)


class SerialQueue:
    """Gives turns to clients, rotating among principals. Calls of one client run together."""

    def __init__(self, question_seconds: float) -> None:
        """While calls of other clients wait, a request for input may stay open for at most `question_seconds`."""
        self._question_seconds = question_seconds
        self._questions: set[anyio.CancelScope] = set()
        self._owner: object = None
        self._running = 0
        self._joined = 0
        """Number of calls of the current client that began while calls of other clients waited."""
        self._waiting: CallerQueues[_Waiter] = CallerQueues()
        self._holders: list[Presence] = []
        """The running calls whose clients may disconnect and reconnect, each with the object that tells whether its client is connected."""
        self._is_wanted = False
        """Whether calls of other clients wait for their turn."""
        self._settled_at = -math.inf
        """Time (`anyio.current_time`) before which no call begins."""

    @asynccontextmanager
    async def turn(self, ctx: CallContext, leave: Leave | None = None) -> AsyncGenerator[CallContext, None]:
        """Wait for the turn of the client of `ctx`, hold the server for the call, and yield the context for the call.

        The wait does not count against the call's deadline. When the call has ended, the callback `leave` must call `SerialQueue.leave`, at
        once or later.
        """
        await self._take(ctx, ctx.facts.client.session_id or object())
        self._hold(ctx)
        is_cancelled = False
        try:
            yield self.limited(ctx)
        except anyio.get_cancelled_exc_class():
            is_cancelled = True
            raise
        finally:
            (leave or self._leave_at_once)(ctx, is_cancelled)

    async def _take(self, ctx: CallContext, owner: object) -> None:
        """Wait for the turn. While the client of a call is disconnected, other calls go first."""
        while True:
            is_held = self._join(owner)
            try:
                if not is_held:
                    async with ctx.waiting():
                        await self._wait(_Waiter(ctx.facts.principal.id, owner))
                        is_held = True
                if (seconds := self._settled_at - anyio.current_time()) > 0:
                    async with ctx.waiting():
                        await anyio.sleep(seconds)
            except BaseException:
                if is_held:
                    self._next()
                raise
            if ctx.ports.presence is None or ctx.ports.presence.is_here:
                return
            self._next()
            async with ctx.waiting():
                await ctx.here()

    def _join(self, owner: object) -> bool:
        """Take the turn if the server is free or serves this client."""
        if self._running and (owner != self._owner or (self._waiting and self._joined >= MAX_JOINED)):
            return False
        if not self._running:
            self._owner, self._joined = owner, 0
        self._running += 1
        self._joined += bool(self._waiting)
        return True

    def adopt(self, calls: Collection[CallContext], asking: CallContext | None) -> None:
        """Count `calls` that began before callers took turns, as one turn; each calls `leave` at its end.

        `asking` is the call with the first request for input.
        """
        self._running, self._owner = len(calls), asking.facts.client.session_id if asking is not None else None
        for ctx in calls:
            self._hold(ctx)

    def limited(self, ctx: CallContext) -> CallContext:
        """Return the context of a call whose requests for input have a time limit while calls of other clients wait."""
        return ctx.with_wait(self._asking)

    @property
    def waiting(self) -> int:
        """Number of calls that wait for their turn."""
        return len(self._waiting)

    @property
    def question_ends_at(self) -> float:
        """Loop time at which the first open request for input ends because calls of other clients wait; else infinite."""
        return min((scope.deadline for scope in self._questions), default=math.inf)

    @asynccontextmanager
    async def _asking(self) -> AsyncGenerator[None, None]:
        """Limit the time of a request for input of the current client (`CallContext.waits`), because it blocks all other clients.

        Raises:
            AskWithdrawn: Other clients waited too long.
        """
        with anyio.CancelScope() as scope:
            self._questions.add(scope)
            self._waiting_changed()
            try:
                yield
            finally:
                self._questions.discard(scope)
        if scope.cancelled_caught:
            raise AskWithdrawn(
                f"Nobody answered within {self._question_seconds:g} s while other callers waited for the server, so this did not go on. "
                "With `callers: separate` in the server's policy each client has a process of its own; `serialAskSeconds` is the time."
            )

    def _hold(self, ctx: CallContext) -> None:
        """Register a running call. It ends if its client disconnects while other clients wait."""
        if ctx.ports.presence is not None:
            self._holders.append(ctx.ports.presence)
            if self._is_wanted:
                ctx.ports.presence.need()

    def _waiting_changed(self) -> None:
        """Start or stop the time limit of open requests for input. While calls wait, a running call ends if its client disconnects."""
        is_wanted = bool(self._waiting)
        deadline = anyio.current_time() + self._question_seconds
        for scope in self._questions:
            scope.deadline = min(scope.deadline, deadline) if is_wanted else math.inf
        if is_wanted is not self._is_wanted:
            self._is_wanted = is_wanted
            for presence in self._holders:
                presence.need() if is_wanted else presence.release()

    async def _wait(self, waiter: _Waiter) -> None:
        self._waiting.add(waiter.principal, waiter)
        self._waiting_changed()
        try:
            await waiter.granted.wait()
        except BaseException:
            if not self._waiting.discard(waiter.principal, waiter):  # the turn was granted just when the wait was cancelled
                self._next()
            self._waiting_changed()
            raise

    def leave(self, ctx: CallContext, seconds: float = 0) -> None:
        """End the call of `ctx`. If its request for input is still open at the server, the next call begins after `seconds`."""
        if ctx.ports.presence in self._holders:
            self._holders.remove(ctx.ports.presence)
            if self._is_wanted:
                ctx.ports.presence.release()
        if seconds:
            self._settled_at = max(self._settled_at, anyio.current_time() + seconds)
        self._next()

    def _leave_at_once(self, ctx: CallContext, is_cancelled: bool) -> None:
        self.leave(ctx)

    def _next(self) -> None:
        """Remove a call from the current turn. After the last call of a client, the next client gets its turn."""
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
        self._waiting_changed()
