"""`InFlightCall`: a tool call that the fast path started; `StartedCall`: its request; `Deadlines`: hands slow calls over to the SDK path.

Nothing is decided here: `plain_calls` starts calls and encodes their results. A request that the fast path cannot answer is delegated with
its running `InFlightCall`, over HTTP in the ASGI scope (`STARTED_SCOPE_KEY`), over lines in the metadata of its message.
`calls.CallHandler` then awaits that call instead of calling again.

Decided: every call is an ordinary coroutine in a plain `asyncio.Task`.
Because: compared with stepping coroutines by hand in the callbacks of the connections (c5bb979), processor time of a call of 100 B was
1.00 times as much on Python 3.11 and 3.13 (2026), 0.95 times in 2025 sessions and 1.03 to 1.06 times for a server over stdio. Tasks with
`eager_start=True` (3.12+) took 1.04 to 1.10 times as much: a call that starts one turn of the loop later shares its writes with others.
Revisit when: `make bench-gate AGAINST=c5bb979` finds more than 1.1 times as much.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import anyio

from gateway.auth.principal import Principal
from gateway.server.clients import PRINCIPAL_SCOPE_KEY, CloseableCaller, LegacySession
from gateway.server.fast_path.deferred_caller import DeferredCaller
from gateway.server.fast_path.started_requests import Body, StartedRequest
from gateway.server.usage import SMALL_BYTES, Usage
from gateway.tools.base import ToolOutcome
from gateway.tools.context import CallClock, LateClock
from gateway.tools.drive import WITHDRAW_SECONDS
from gateway.wire.http1_exchange import Field

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

STARTED_SCOPE_KEY = "moongate.started"
"""ASGI scope key of the `InFlightCall` of a request that the fast path started and delegated."""

HAND_OVER_SECONDS = 1.0
"""A call that takes this long is handed over to the SDK path, which keeps silent connections alive and notices that a client left."""

CHECKS = 4
"""Number of checks for slow calls within `HAND_OVER_SECONDS`. A slow call is handed over at the last check before that time."""


class Deadlines:
    """Hands calls that take longer than `HAND_OVER_SECONDS` over to the SDK path. One timer serves all calls."""

    def __init__(self) -> None:
        self._watched: deque[set[InFlightCall]] = deque()
        """Calls in groups: those that started between the same two checks. The first group is handed over at the next check."""

    def watch(self, call: InFlightCall) -> set[InFlightCall]:
        """Hand `call` over if it takes too long. Return the group of calls from which it must remove itself when it ends."""
        if not self._watched:
            self._watched.extend(set[InFlightCall]() for _ in range(CHECKS))
            self._check_later()
        latest = self._watched[-1]
        latest.add(call)
        return latest

    def _check_later(self) -> None:
        asyncio.get_running_loop().call_later(HAND_OVER_SECONDS / CHECKS, self._check)

    def _check(self) -> None:
        for call in list(self._watched.popleft()):
            call.hand_over()
        if any(self._watched):
            self._watched.append(set())
            self._check_later()
        else:
            self._watched.clear()


class InFlightCall:
    """A tool call in an `asyncio.Task` of its own, which runs on if nobody waits for it any more.

    The call is cancelled at most once, because a cancelled call may have to send the cancellation to its server.
    """

    __slots__ = (
        "_clock",
        "_deferred",
        "_on_settled",
        "_session",
        "_size",
        "_taken",
        "_task",
        "_usage",
        "_watch",
        "_watchdog",
        "_work",
        "error",
        "is_cancelled",
        "is_over",
        "is_taken",
        "result",
    )

    def __init__(
        self,
        work: Coroutine[Any, Any, ToolOutcome],
        clock: LateClock,
        deadlines: Deadlines,
        deferred: DeferredCaller | None = None,
        *,
        usage: Usage | None = None,
        size: int = 0,
        session: LegacySession | None = None,
    ) -> None:
        """Start `work`, which runs the call, in the next turn of the event loop.

        `clock` holds the deadline of the call; `deferred` is the caller of a call in a 2025 session. Until the call ends, it and its
        request body of `size` bytes count for `usage`, and it counts as a call of `session`.
        """
        self._work = work
        self._clock = clock
        self._deferred = deferred
        self._usage, self._size, self._session = usage, size, session
        self._on_settled: Callable[[], None] | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._taken: asyncio.Event | None = None
        self.is_over = self.is_cancelled = self.is_taken = False
        """Whether the call ended; whether `cancel` was called; whether the SDK path awaits the call, and then decides when to cancel it."""
        self.result: ToolOutcome | None = None
        """The outcome of a call that ended without an error."""
        self.error: BaseException | None = None
        """The exception of a call that ended with an exception."""
        if session is not None:
            session.calls += 1
        if usage is not None:
            usage.calls += 1
            if size > SMALL_BYTES:
                usage.hold_bytes(size)
        if deferred is not None:
            deferred.hand_over = self.hand_over
        self._watch = deadlines.watch(self)
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    # -- for the fast path ---------------------------------------------------------------------------------------

    def when_settled(self, then: Callable[[], None]) -> None:
        """Have `then` called once, when the call ended or was handed over: after `HAND_OVER_SECONDS` at the latest."""
        if self.is_over:
            asyncio.get_running_loop().call_soon(then)
        else:
            self._on_settled = then

    def hand_over(self) -> None:
        """Settle the call without an answer, so that its request is delegated to the SDK path. From now on its deadline is enforced."""
        if not self.is_over and self._watchdog is None:
            self._clock.close()
            if self._clock.clock is not None:
                self._watchdog = asyncio.get_running_loop().create_task(self._enforce(self._clock.clock))
        self._settle()

    async def taken(self) -> None:
        """Hand the call over, and wait until the SDK path awaits the call or the call ended."""
        self.hand_over()
        if not self.is_taken and not self.is_over:
            self._taken = self._taken or asyncio.Event()
            await self._taken.wait()

    def cancel(self, msg: object = None) -> None:
        """Cancel the call. `msg` is ignored; uvicorn cancels calls like tasks, with a message."""
        if self.is_over or self.is_cancelled:
            return
        self.is_cancelled = True
        if self._clock.clock is not None:
            self._clock.clock.abandon()
        self._task.cancel()

    async def end(self) -> None:
        """Cancel the call, unless it has ended, and wait until its task has ended."""
        if not self.is_over:
            self.cancel()
            await asyncio.wait([self._task])

    # -- for the SDK path ----------------------------------------------------------------------------------------

    async def outcome(self, caller: CloseableCaller) -> ToolOutcome:
        """Wait for the end of the call; return its outcome or raise its exception. If this wait is cancelled, the call is cancelled.

        `caller` is the SDK path's caller, through which the call sends its messages from now on.
        """
        if self._deferred is not None:
            self._deferred.become(caller)
        self.is_taken = True
        if self._taken is not None:
            self._taken.set()
        if not self.is_over:
            try:
                await asyncio.shield(self._task)
            except asyncio.CancelledError:
                with anyio.move_on_after(WITHDRAW_SECONDS, shield=True):  # cancels the call in the gateway behind this one first
                    await self.end()
                raise
        if self.error is not None:
            raise self.error
        assert self.result is not None, "a call ends with a result or an error"
        return self.result

    # ------------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            result = await self._work
        except BaseException as error:
            self._end(None, error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        else:
            self._end(result, None)

    async def _enforce(self, clock: CallClock) -> None:
        """Cancel the call when the deadline in `clock` has passed."""
        with clock.scope:
            await asyncio.wait([self._task])
        if not (self.is_over or self.is_cancelled or clock.is_left):
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self.is_over:  # it was cancelled before its first step
            self._work.close()
            self._end(None, asyncio.CancelledError())

    def _end(self, result: ToolOutcome | None, error: BaseException | None) -> None:
        self.result, self.error, self.is_over = result, error, True
        if self._usage is not None:
            self._usage.calls -= 1
            if self._size > SMALL_BYTES:
                self._usage.hold_bytes(-self._size)
        if self._session is not None:
            self._session.calls -= 1
        if self._deferred is not None:
            self._deferred.hand_over = None  # breaks a reference cycle, which would keep the result until the next garbage collection
        if self._taken is not None:
            self._taken.set()
        self._settle()

    def _settle(self) -> None:
        self._watch.discard(self)
        then, self._on_settled = self._on_settled, None
        if then is not None:
            then()


class StartedCall(StartedRequest):
    """A `tools/call` request that the fast path started; `running` is its call."""

    __slots__ = ("_app", "_encode", "_in_session", "_key", "_principal", "running")

    def __init__(
        self,
        app: ASGIApp | None,
        running: InFlightCall,
        encode: Callable[[ToolOutcome], Body | None],
        principal: Principal,
        key: tuple[str, int | str] | None,
        in_session: dict[tuple[str, int | str], InFlightCall],
    ) -> None:
        """`app` is the ASGI application of the SDK path; `None` over lines. `encode` returns the response; `None` for an unusual outcome.

        `key` is the session and request id of a 2025 call, and its key in `in_session`, the 2025 calls in flight; `None` for a 2026 call.
        """
        self.running = running
        self._app = app
        self._encode = encode
        self._principal = principal
        self._key = key
        self._in_session = in_session

    @property
    def is_cancelled(self) -> bool:
        """Whether the call was cancelled."""
        return self.running.is_over and isinstance(self.running.error, asyncio.CancelledError)

    def cancel(self, msg: object = None) -> None:
        """Cancel the call."""
        self.running.cancel()

    def left(self) -> None:
        """Cancel a 2026 call, because its client disconnected. In a 2025 session, that is not a cancellation (2025-11-25, Transports)."""
        if self._key is None:
            self.cancel()

    def when_settled(self, then: Callable[[], None]) -> None:
        """Have `then` called once: when the call ended or was handed over."""
        self.running.when_settled(then)

    def answer(self) -> tuple[Field | None, Body] | None:
        """Return the header field of the 2025 session, if any, and the response; `None` unless the call ended with a plain result."""
        outcome = self.running.result
        body = None if outcome is None else self._encode(outcome)
        if body is None:
            return None
        return None if self._key is None else (b"mcp-session-id", self._key[0].encode("latin-1")), body

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Delegate the request to the SDK path, which awaits the running call. After its answer, `end` is called."""
        assert self._app is not None, "calls over lines are delegated by their connection"
        scope[PRINCIPAL_SCOPE_KEY], scope[STARTED_SCOPE_KEY] = self._principal, self.running
        try:
            await self._app(scope, receive, send)
        finally:
            scope.pop(STARTED_SCOPE_KEY, None)  # the connection keeps the scope, and with it the result, until its next request
            await self.end()

    async def end(self) -> None:
        """Cancel the call, unless it has ended.

        A call of a 2025 session that the SDK path has taken continues, because such calls survive a disconnect.
        """
        self.forget()
        if self._key is None or not self.running.is_taken:
            await self.running.end()

    def forget(self) -> None:
        """Remove a 2025 call from the calls in flight, so that its request id can be used again."""
        if self._key is not None and self._in_session.get(self._key) is self.running:
            del self._in_session[self._key]
