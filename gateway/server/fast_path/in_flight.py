"""`InFlightCall`: a running tool call that was started without the MCP SDK (on the fast path). `StartedCall`: the request of the call.

`Deadlines` finds slow calls. `plain_calls` decides which calls to start, and encodes their results. If the fast path cannot answer the
request of a call, the request is delegated to the SDK path together with its running `InFlightCall`: over HTTP in the ASGI scope
(`STARTED_SCOPE_KEY`), over stdio in the metadata of the message. There `calls.CallHandler` awaits the running call instead of calling the
tool again.

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
"""ASGI scope key of the running `InFlightCall` of a request that was started without the MCP SDK and then delegated to the SDK path."""

HAND_OVER_SECONDS = 1.0
"""Seconds after which a call that was started without the MCP SDK is handed over to the SDK path. The SDK keeps silent connections alive
and notices a client's disconnect."""

CHECKS = 4
"""Number of checks for slow calls within `HAND_OVER_SECONDS`. A slow call is handed over at the last check before that time."""


class Deadlines:
    """Hands calls that were started without the MCP SDK over to the SDK path after `HAND_OVER_SECONDS`. All calls share one timer."""

    def __init__(self) -> None:
        self._watched: deque[set[InFlightCall]] = deque()
        """Running calls, grouped by the interval between two checks in which they started. The next check hands the first group over."""

    def watch(self, call: InFlightCall) -> set[InFlightCall]:
        """Hand `call` over to the SDK path (with the MCP SDK) if it takes longer than `HAND_OVER_SECONDS`.

        Return a set, from which the call must remove itself when it ends.
        """
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
    """A tool call that runs in its own `asyncio.Task`, so that it continues if the code that waits for its result is cancelled.

    It is started without the MCP SDK (on the fast path). If it is slow, or only the SDK can send its result, it is handed over: the SDK
    path then waits for the result. The task is cancelled at most once, because a cancelled call may have to send the cancellation to its
    server.
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
        """Start the call: schedule `work`, the coroutine that runs the tool, as a task.

        `clock` has the deadline of the call. `deadlines` hands the call over when it is slow. `deferred` sends the messages of a call in a
        2025 session. Until the call ends, it counts in `session`, and it and its request body of `size` bytes count in `usage`.
        """
        self._work = work
        self._clock = clock
        self._deferred = deferred
        self._usage, self._size, self._session = usage, size, session
        self._on_settled: Callable[[], None] | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._taken: asyncio.Event | None = None
        self.is_over = self.is_cancelled = self.is_taken = False
        """Whether the call ended; whether `cancel` was called; whether the call was handed over to the MCP SDK, which now awaits it."""
        self.result: ToolOutcome | None = None
        """The outcome of the call; `None` until it ended, and if it ended with an exception."""
        self.error: BaseException | None = None
        """The exception with which the call ended; `None` otherwise."""
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
        """Register `then` to be called once, when the call has ended or was handed over: after `HAND_OVER_SECONDS` at the latest."""
        if self.is_over:
            asyncio.get_running_loop().call_soon(then)
        else:
            self._on_settled = then

    def hand_over(self) -> None:
        """Stop waiting for the call here, so that its request is delegated to the SDK path (with the MCP SDK). The call continues to run.

        From now on, the deadline of the call is enforced.
        """
        if not self.is_over and self._watchdog is None:
            self._clock.close()
            if self._clock.clock is not None:
                self._watchdog = asyncio.get_running_loop().create_task(self._enforce(self._clock.clock))
        self._settle()

    async def taken(self) -> None:
        """Hand the call over to the SDK path (with the MCP SDK), and wait until the call is awaited there or has ended."""
        self.hand_over()
        if not self.is_taken and not self.is_over:
            self._taken = self._taken or asyncio.Event()
            await self._taken.wait()

    def cancel(self, msg: object = None) -> None:
        """Cancel the call. `msg` is ignored: it exists because uvicorn cancels requests like `asyncio` tasks, with a message."""
        if self.is_over or self.is_cancelled:
            return
        self.is_cancelled = True
        if self._clock.clock is not None:
            self._clock.clock.abandon()
        self._task.cancel()

    async def end(self) -> None:
        """Cancel the call if it still runs, and wait until its task has ended."""
        if not self.is_over:
            self.cancel()
            await asyncio.wait([self._task])

    # -- for the SDK path ----------------------------------------------------------------------------------------

    async def outcome(self, caller: CloseableCaller) -> ToolOutcome:
        """Wait, on the SDK path (with the MCP SDK), until the call has ended. Return its outcome, or raise its exception.

        `caller` is the object through which the call sends messages to its client from now on. If this wait is cancelled, the call is
        cancelled.
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
        """Wait until the call has ended, and cancel it when the deadline in `clock` passes."""
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
    """A `tools/call` request whose call was started without the MCP SDK (on the fast path). `running` is the call, which runs in a task."""

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
        """`app` is the ASGI application that serves requests with the MCP SDK; `None` over stdio. `principal` is the caller.

        `encode` converts the outcome of the call to the response; it returns `None` for an outcome that only the SDK can encode.
        `in_session` contains the calls in flight of all 2025 sessions, and `key` (`Mcp-Session-Id` and JSON-RPC id) is the key of this call
        in it; `None` for a 2026 call.
        """
        self.running = running
        self._app = app
        self._encode = encode
        self._principal = principal
        self._key = key
        self._in_session = in_session

    @property
    def is_cancelled(self) -> bool:
        """Whether the call has ended because it was cancelled."""
        return self.running.is_over and isinstance(self.running.error, asyncio.CancelledError)

    def cancel(self, msg: object = None) -> None:
        """Cancel the call."""
        self.running.cancel()

    def left(self) -> None:
        """Handle a disconnect of the client: cancel the call of a 2026 client, and do nothing for a call of a 2025 session.

        In a 2025 session, a disconnect does not cancel a request (2025-11-25, Transports).
        """
        if self._key is None:
            self.cancel()

    def when_settled(self, then: Callable[[], None]) -> None:
        """Register `then` to be called once, when the call has ended or was handed over to the SDK path (with the MCP SDK)."""
        self.running.when_settled(then)

    def answer(self) -> tuple[Field | None, Body] | None:
        """Return the `Mcp-Session-Id` header field (`None` for a 2026 call) and the encoded response.

        Return `None` alone if the MCP SDK must answer: the call still runs, failed, or has a result that only the SDK can encode.
        """
        outcome = self.running.result
        body = None if outcome is None else self._encode(outcome)
        if body is None:
            return None
        return None if self._key is None else (b"mcp-session-id", self._key[0].encode("latin-1")), body

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Delegate the request to the SDK path, which awaits the running call and answers with the MCP SDK. Then call `end`."""
        assert self._app is not None, "calls over lines are delegated by their connection"
        scope[PRINCIPAL_SCOPE_KEY], scope[STARTED_SCOPE_KEY] = self._principal, self.running
        try:
            await self._app(scope, receive, send)
        finally:
            scope.pop(STARTED_SCOPE_KEY, None)  # else the connection would keep the call's result in memory until its next request
            await self.end()

    async def end(self) -> None:
        """Cancel the call if it still runs, because its request was answered or its client disconnected.

        A call of a 2025 session that was handed over to the MCP SDK continues, because calls of 2025 sessions survive a disconnect.
        """
        self.forget()
        if self._key is None or not self.running.is_taken:
            await self.running.end()

    def forget(self) -> None:
        """Remove a call of a 2025 session from the calls in flight, so that the client can use its JSON-RPC id again."""
        if self._key is not None and self._in_session.get(self._key) is self.running:
            del self._in_session[self._key]
