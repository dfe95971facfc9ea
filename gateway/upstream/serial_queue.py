"""`SerialQueue`: lets one client at a time use a server whose requests for input do not name the call that they belong to.

An MCP 2025 server over stdio or HTTP+SSE sends requests for input (sampling, elicitation, roots) on the one stream that all clients share.
To attribute each request to the right client, the queue lets only the calls of one client run at a time. This time is the client's "slot".
"""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from gateway.errors import InputWithdrawn
from gateway.gate.concurrency import CallerQueues
from gateway.tools.context import CallContext
from gateway.tools.ports import Presence

MAX_JOINED = 32
"""Maximum number of waiting calls with which a client's exclusive use of a server (its slot) begins.

Also the maximum number of further calls that the client may begin in its slot while other clients wait.
More than one is allowed, because a client may need further calls of the server to answer a request for input.
"""

SETTLE_SECONDS = 0.25
"""Seconds that the server gets to react to a rejected request for input before the next client may use the server."""


Leave = Callable[[CallContext, bool], None]
"""Callback for the end of a call. It receives the call's context, and whether the call was cancelled.

The server may still work on a cancelled call.
"""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    principal: str
    owner: str
    granted: anyio.Event = field(default_factory=anyio.Event)


class SerialQueue:
    """Lets the clients of a shared server use the server one after another, each in its slot.

    Slots rotate among the principals. The clients of one principal get slots in order of arrival. In a client's slot, all its calls may run
    at the same time; calls of other clients wait. A client is a client session; each call without a client session (MCP 2026) counts as a
    client of its own.
    """

    def __init__(self, question_seconds: float) -> None:
        """`question_seconds` limits how long a request for input stays open while calls of other clients wait for the server."""
        self._question_seconds = question_seconds
        self._questions: set[anyio.CancelScope] = set()
        self._owner: str | None = None
        self._running = 0
        self._joined = 0
        """Number of calls that the client which now uses the server has begun while calls of other clients waited."""
        self._waiting: CallerQueues[_Waiter] = CallerQueues()
        self._holders: list[Presence] = []
        """For each running call whose client may disconnect and reconnect: the object that reports whether the client is connected."""
        self._is_wanted = False
        """Whether calls of other clients wait to use the server."""
        self._settled_at = -math.inf
        """Time (`anyio.current_time`) before which no further call begins, so that the server can react to a rejected request for input."""

    @asynccontextmanager
    async def slot(self, ctx: CallContext, leave: Leave) -> AsyncGenerator[CallContext, None]:
        """Wait until the client of `ctx` may use the server, and yield the context for the call. The call must run inside this block.

        The wait does not count against the call's deadline. When the call has ended, the callback `leave` must call `SerialQueue.leave`, at
        once or later.
        """
        await self._take(ctx, ctx.facts.client.session_id or secrets.token_hex(8))
        self._hold(ctx)
        is_cancelled = False
        try:
            yield self.limited(ctx)
        except anyio.get_cancelled_exc_class():
            is_cancelled = True
            raise
        finally:
            leave(ctx, is_cancelled)

    async def _take(self, ctx: CallContext, owner: str) -> None:
        """Wait until the client `owner` may use the server. While the client is disconnected, calls of other clients go first."""
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

    def _join(self, owner: str) -> bool:
        """Begin a call of the client `owner` at once if no call runs, or if only calls of this client run. Return whether the call began.

        A client that began `MAX_JOINED` calls in its slot while other clients waited must wait like them.
        """
        if self._running and (owner != self._owner or (self._waiting and self._joined >= MAX_JOINED)):
            return False
        if not self._running:
            self._owner, self._joined = owner, 0
        self._running += 1
        self._joined += bool(self._waiting)
        return True

    def adopt(self, calls: Collection[CallContext], asking: CallContext | None) -> None:
        """Let other clients wait until the running `calls` have ended, which began before clients had to use the server one at a time.

        `asking` is the call to which the first request for input belongs, or `None` if that is unknown. The client of `asking` gets the
        slot. `leave` must be called at the end of each of the `calls`.
        """
        self._running, self._owner = len(calls), asking.facts.client.session_id if asking is not None else None
        for ctx in calls:
            self._hold(ctx)

    def limited(self, ctx: CallContext) -> CallContext:
        """Return `ctx` with a time limit for the call's requests for input. The limit applies while calls of other clients wait."""
        return ctx.with_wait(self._asking)

    @property
    def waiting(self) -> int:
        """Number of calls that wait until their client may use the server."""
        return len(self._waiting)

    @property
    def question_ends_at(self) -> float:
        """Event loop time at which the first open request for input ends because other clients wait; infinite if no other client waits."""
        return min((scope.deadline for scope in self._questions), default=math.inf)

    @asynccontextmanager
    async def _asking(self) -> AsyncGenerator[None, None]:
        """Limit how long a request for input to the current client may stay open, because it blocks all other clients.

        The context manager is entered while the request for input is open. The limit applies only while calls of other clients wait.

        Raises:
            InputWithdrawn: The request had no answer in time while other clients waited.
        """
        with anyio.CancelScope() as scope:
            self._questions.add(scope)
            self._waiting_changed()
            try:
                yield
            finally:
                self._questions.discard(scope)
        if scope.cancelled_caught:
            raise InputWithdrawn(
                f"Nobody answered within {self._question_seconds:g} s while other callers waited for the server, so the call was ended. "
                "Raise `serialAskSeconds` in the server's policy, or set `callers: separate` there for one process per client."
            )

    def _hold(self, ctx: CallContext) -> None:
        """Register a running call, so that the call ends if its client disconnects while other clients wait."""
        if ctx.ports.presence is not None:
            self._holders.append(ctx.ports.presence)
            if self._is_wanted:
                ctx.ports.presence.need()

    def _waiting_changed(self) -> None:
        """Start or stop the limits on the current client, because the number of waiting calls of other clients has changed.

        While calls of other clients wait, open requests for input have a deadline, and a running call ends if its client disconnects.
        """
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
            if not self._waiting.discard(waiter.principal, waiter):  # the slot was granted just when the wait was cancelled
                self._next()
            self._waiting_changed()
            raise

    def leave(self, ctx: CallContext, seconds: float = 0) -> None:
        """End the call of `ctx`. When the last running call of this client has ended, calls of other clients can begin.

        No call begins for `seconds`. Pass `seconds` if the server may still wait for the answer to a request for input of the ended call.
        """
        if ctx.ports.presence in self._holders:
            self._holders.remove(ctx.ports.presence)
            if self._is_wanted:
                ctx.ports.presence.release()
        if seconds:
            self._settled_at = max(self._settled_at, anyio.current_time() + seconds)
        self._next()

    def _next(self) -> None:
        """Count one running call fewer. After the last running call, let the waiting calls of the next client begin."""
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
