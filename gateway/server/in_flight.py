"""`InFlightCall`: a running tool call that was started without the MCP SDK (on the fast path). `Deadlines` finds slow calls.

`fast_path.plain_calls` decides which calls to start, and encodes their results. If the fast path cannot answer the request of a call, the
request is delegated to the SDK path together with its running `InFlightCall`: over HTTP in the ASGI scope (`in_scope`, `call_in`), over
stdio in the metadata of the message. There `sdk_path.call_methods` awaits the running call instead of calling the tool again.

Decided: every call is an ordinary coroutine in a plain `asyncio.Task`.
Because: compared with coroutines that the callbacks of the connections step by hand (c5bb979), a call of 100 B took 1.00 times the
processor time on Python 3.11 and 3.13 (2026), 0.95 times in 2025 sessions, and 1.03 to 1.06 times for a server over stdio. Tasks with
`eager_start=True` (3.12+) took 1.04 to 1.10 times the processor time: a call that starts one turn of the loop later shares its writes with
other calls.
Revisit when: `make bench-gate AGAINST=c5bb979` finds more than 1.1 times the processor time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import anyio

from gateway.server.clients import CloseableCaller, LegacySession
from gateway.server.deferred_caller import DeferredCaller
from gateway.server.usage import SMALL_BYTES, Usage
from gateway.tools.base import ToolOutcome
from gateway.tools.context import CallClock, LateClock
from gateway.tools.drive import WITHDRAW_SECONDS

if TYPE_CHECKING:
    from starlette.types import Scope

_SCOPE_KEY = "moongate.started"

HAND_OVER_SECONDS = 1.0
"""Maximum seconds for which a call that was started without the MCP SDK runs before it is handed over to the SDK path.

It is handed over up to `HAND_OVER_SECONDS / CHECKS` earlier. The SDK keeps silent connections alive and notices a client's disconnect.
"""

CHECKS = 4
"""Number of checks for slow calls within `HAND_OVER_SECONDS`. A slow call is handed over at the last check before that time."""


class Deadlines:
    """Hands a call that was started without the MCP SDK over to the SDK path, at the latest `HAND_OVER_SECONDS` after its start.

    All calls share one timer.
    """

    def __init__(self) -> None:
        self._watched: deque[set[InFlightCall]] = deque()
        """Running calls, grouped by the interval between two checks in which they started. The next check hands the first group over."""

    def watch(self, call: InFlightCall) -> set[InFlightCall]:
        """Hand `call` over to the SDK path (with the MCP SDK) at the last check before it has run for `HAND_OVER_SECONDS`.

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

    The call is started without the MCP SDK (on the fast path). If it is slow, or only the SDK can send its result, it is handed over: the
    SDK path then waits for the result. `cancel` cancels the task at most once, because a cancelled call may have to send the cancellation
    to its server.
    """

    __slots__ = (
        "_clock",
        "_deferred",
        "_has_begun",
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
        2025 session. Until the call ends, `session` counts the call, and `usage` counts the call and its request body of `size` bytes.
        """
        self._work = work
        self._clock = clock
        self._deferred = deferred
        self._usage, self._size, self._session = usage, size, session
        self._on_settled: Callable[[], None] | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._taken: asyncio.Event | None = None
        self._has_begun = False
        """Whether the task has made its first step, so that `_run` notices its cancellation."""
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

    # -- for the fast path ---------------------------------------------------------------------------------------

    def when_settled(self, then: Callable[[], None]) -> None:
        """Register `then` to be called once, as soon as the call has ended or was handed over to the SDK path (with the MCP SDK).

        A call that has not ended is handed over at the latest `HAND_OVER_SECONDS` after its start.
        """
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

    def in_scope(self, scope: Scope) -> Scope:
        """Return a copy of the ASGI scope of the call's request, in which the SDK path finds the call with `call_in`.

        The call is not added to `scope` itself, because the connection keeps `scope`, and so the call's result, until its next request.
        """
        return {**scope, _SCOPE_KEY: self}

    async def taken(self) -> None:
        """Hand the call over to the SDK path (with the MCP SDK), and wait until the SDK path awaits the call, or the call has ended."""
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
        if not self._has_begun:  # `_run` then never runs; in a later turn, because the caller may iterate over the running requests
            asyncio.get_running_loop().call_soon(self._end_before_start)

    async def end(self) -> None:
        """Cancel the call if it still runs, and wait until its task has ended."""
        if not self.is_over:
            self.cancel()
            await asyncio.wait([self._task])

    @property
    def has_ended_cancelled(self) -> bool:
        """Whether the call has ended because it was cancelled."""
        return isinstance(self.error, asyncio.CancelledError)

    # -- for the SDK path ----------------------------------------------------------------------------------------

    async def outcome(self, caller: CloseableCaller) -> ToolOutcome:
        """Wait, on the SDK path (with the MCP SDK), until the call has ended. Return its outcome, or raise its exception.

        From now on, the call sends messages to its client through `caller`. If this wait is cancelled, the call is cancelled.
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
        self._has_begun = True
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

    def _end_before_start(self) -> None:
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


def call_in(scope: Scope) -> InFlightCall | None:
    """Return the running call with which a request was delegated to the SDK path; `None` if the call was not started yet."""
    return scope.get(_SCOPE_KEY)
