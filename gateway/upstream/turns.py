"""`Turns`: one caller at a time at a server that cannot say whom its questions are for.

A 2025 server over stdio asks on the one pipe all callers share, so while it may ask, only calls of one caller run.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio

from gateway.errors import AskWithdrawn
from gateway.tools.context import CallContext
from gateway.tools.queues import CallerQueues

MAX_JOINED = 32
"""Calls of one client that join its turn while others wait. Not 0: a client may make calls before it answers a question of the server."""

QUESTION_SECONDS = 60.0
"""How long a question of the server may stay unanswered while calls of other clients wait for the server."""


SETTLE_SECONDS = 0.25
"""How long the server may react to the refusal of a question before the next client gets its turn."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    principal: str
    owner: object
    granted: anyio.Event = field(default_factory=anyio.Event)


class Turns:
    """Gives the server to one client after the other, the clients of each principal in rotation; calls of one client run together."""

    def __init__(self, question_seconds: float = QUESTION_SECONDS) -> None:
        """`question_seconds` counts only while other clients wait."""
        self._question_seconds = question_seconds
        self._questions: set[anyio.CancelScope] = set()
        self._owner: object = None
        self._running = 0
        self._joined = 0
        """Calls of the owner that began while others waited."""
        self._waiting: CallerQueues[_Waiter] = CallerQueues()
        self._settled_at = -math.inf
        """Time (`anyio.current_time`) before which no call begins."""

    @asynccontextmanager
    async def turn(self, ctx: CallContext, lingers: Callable[[], float] = lambda: 0) -> AsyncGenerator[CallContext, None]:
        """Hold the server for the client of `ctx`, and yield the context to make the call with. Waiting for it is `CallContext.waiting`.

        When the call has ended, `lingers` returns the seconds before which no other call begins.
        """
        owner: object = ctx.client.session_id or object()
        if self._running and (owner != self._owner or (self._waiting and self._joined >= MAX_JOINED)):
            async with ctx.waiting():
                await self._wait(_Waiter(ctx.principal.id, owner))
        else:
            if not self._running:
                self._owner, self._joined = owner, 0
            self._running += 1
            self._joined += bool(self._waiting)
        try:
            if (seconds := self._settled_at - anyio.current_time()) > 0:
                async with ctx.waiting():
                    await anyio.sleep(seconds)
            yield self.limited(ctx)
        finally:
            self.leave_after(lingers())

    def adopt(self, calls: int, asking: CallContext | None) -> None:
        """Count calls that began before anybody took turns; each calls `leave` at its end. The server asks about `asking`."""
        self._running, self._owner = calls, asking.client.session_id if asking is not None else None

    def limited(self, ctx: CallContext) -> CallContext:
        """The context of a call that may keep others waiting while the server asks something."""
        return replace(ctx, waits=(*ctx.waits, self._asking))

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return len(self._waiting)

    @asynccontextmanager
    async def _asking(self) -> AsyncGenerator[None, None]:
        """Entered around each question of the owner's calls (`CallContext.waits`). An unanswered question must not hold up all others.

        Raises:
            AskWithdrawn: Others waited too long.
        """
        with anyio.CancelScope() as scope:
            self._questions.add(scope)
            self._limit_questions()
            try:
                yield
            finally:
                self._questions.discard(scope)
        if scope.cancelled_caught:
            raise AskWithdrawn(
                f"Nobody answered within {self._question_seconds:g} s while other callers waited for the server, so this did not go on. "
                "With `callers: separate` in the server's policy each client has a process of its own."
            )

    def _limit_questions(self) -> None:
        deadline = anyio.current_time() + self._question_seconds
        for scope in self._questions:
            scope.deadline = min(scope.deadline, deadline) if self._waiting else math.inf

    async def _wait(self, waiter: _Waiter) -> None:
        self._waiting.add(waiter.principal, waiter)
        self._limit_questions()
        try:
            await waiter.granted.wait()
        except BaseException:
            if not self._waiting.discard(waiter.principal, waiter):  # the turn came in the moment of being cancelled
                self.leave()
            self._limit_questions()
            raise

    def leave_after(self, seconds: float) -> None:
        """A call of the owner ended; the next begins after these seconds, because a question of the call is still open at the server."""
        if seconds:
            self._settled_at = max(self._settled_at, anyio.current_time() + seconds)
        self.leave()

    def leave(self) -> None:
        """A call of the owner ended."""
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
