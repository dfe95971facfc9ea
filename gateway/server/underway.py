"""`Underway`: a call that `direct` began, and how the SDK's path takes it over; the ways back of such calls.

Nothing is decided or sent here. Plain asyncio, as in `direct`. A call runs without a task for as long as it waits for nothing but the
plain answer of its server (`tools.waits`): its steps are run by the callbacks of its two connections, in one context. It gets a task, and
the scope of its deadline around the rest of it, as soon as it waits for anything else, takes long, or is cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Protocol, cast

import anyio

from gateway.json_types import JsonObject, JsonValue
from gateway.server.caller import wants_level
from gateway.server.clients import LegacySession
from gateway.server.usage import SMALL_BYTES, Usage
from gateway.tools.base import ToolOutcome
from gateway.tools.context import Caller, LateClock, LogLevel, Presence, undeclared
from gateway.tools.drive import WITHDRAW_SECONDS
from gateway.tools.waits import PlainWait

HAND_ON_SECONDS = 1.0
"""A call that takes as long is handed on: there a silent connection is kept alive, and whoever leaves is noticed on every way."""

LOOKS = 4
"""How often in that time it is looked for such calls."""


class ClosingCaller(Caller, Protocol):
    """A way back that is told when its request is served."""

    @property
    def presence(self) -> Presence | None:
        """Of the client."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether there is something to do then; else it need not be told."""
        ...

    async def close(self) -> None:
        """The request is served."""
        ...


class PlainCaller:
    """The way back of a 2026 call whose client asked for neither progress nor logs, and is asked in results only."""

    log_level: LogLevel | None = None

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Not asked for."""

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Not asked for."""

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Refused: a client that can be asked has such calls parked (`parked`)."""
        raise undeclared(request)


class LateCaller:
    """The way back of a 2025 call: who has something to say or ask on the way has the call handed on, and waits until it is."""

    log_level: LogLevel | None = None
    hand_on: Callable[[], None] | None = None
    _real: ClosingCaller | None = None
    _came: asyncio.Future[None] | None = None
    _speaking = _needs = 0
    _said: asyncio.Future[None] | None = None

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Not asked for: such a request is not taken."""

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """As `WireCaller.log`."""
        if not wants_level(self.log_level, level):
            return
        self._speaking += 1
        try:
            await (await self._reach()).log(level, data, logger)
        finally:
            self._speaking -= 1
            if not self._speaking and self._said is not None and not self._said.done():
                self._said.set_result(None)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """As `WireCaller.ask`."""
        return await (await self._reach()).ask(request, key)

    @property
    def is_here(self) -> bool:
        """As `Presence`: only the SDK path notices a lost client."""
        presence = self.presence
        return presence is None or presence.is_here

    async def here(self) -> None:
        """As `Presence`."""
        if (presence := self.presence) is not None:
            await presence.here()

    def need(self) -> None:
        """As `Presence`, from when the SDK path has the call."""
        self._needs += 1
        if (presence := self.presence) is not None:
            presence.need()

    def release(self) -> None:
        """As `Presence`."""
        self._needs -= 1
        if (presence := self.presence) is not None:
            presence.release()

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None, None]:
        """As `Presence`, once the SDK path has the call."""
        presence = (await self._reach()).presence
        async with nullcontext() if presence is None else presence.waiting():
            yield

    @property
    def presence(self) -> Presence | None:
        """As `ClosingCaller.presence`."""
        return None if self._real is None else self._real.presence

    @property
    def has_more(self) -> bool:
        """As `ClosingCaller.has_more`: something is being said, or it was handed on."""
        return self._speaking > 0 or self._real is not None

    async def close(self) -> None:
        """As `WireCaller.close`, once all is said; what was never handed on opened nothing."""
        if self._speaking:  # the message and the result of a call may come at once
            self._said = asyncio.get_running_loop().create_future()
            await self._said
        if self._real is not None:
            await self._real.close()

    def become(self, caller: ClosingCaller) -> None:
        """The SDK's path has the call: this is its way back from now on."""
        self._real = caller
        if (presence := caller.presence) is not None:
            for _ in range(self._needs):
                presence.need()
        if self._came is not None and not self._came.done():
            self._came.set_result(None)

    async def _reach(self) -> ClosingCaller:
        if self._real is None:
            if self._came is None:
                self._came = asyncio.get_running_loop().create_future()
            if self.hand_on is not None:
                self.hand_on()
            await asyncio.shield(self._came)
        assert self._real is not None
        return self._real


class Patience:
    """Has calls handed on that take `HAND_ON_SECONDS`, or up to a look less; one timer for all. Nothing is kept of one that is over."""

    def __init__(self) -> None:
        self._begun: deque[set[Underway]] = deque()
        """Calls under way by the time they began, a look apart, the latest last; as many as there are looks in the time."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, call: Underway) -> set[Underway]:
        """From now on; the call takes itself out of what this gives when it is over."""
        if self._timer is None:
            self._begun.extend(set[Underway]() for _ in range(LOOKS))
            self._timer = asyncio.get_running_loop().call_later(HAND_ON_SECONDS / LOOKS, self._look)
        latest = self._begun[-1]
        latest.add(call)
        return latest

    def _look(self) -> None:
        for call in list(self._begun.popleft()):
            call.hand_on()
        if any(self._begun):
            self._begun.append(set())
            self._timer = asyncio.get_running_loop().call_later(HAND_ON_SECONDS / LOOKS, self._look)
        else:
            self._begun.clear()
            self._timer = None


class Underway:
    """A call that goes on whoever waits for it.

    It is cancelled at most once, however often who awaits it is: it may have to tell its server.
    """

    __slots__ = (
        "_clock",
        "_context",
        "_has_begun",
        "_is_in_step",
        "_late",
        "_session",
        "_size",
        "_taken",
        "_task",
        "_then",
        "_usage",
        "_waits",
        "_wants_task",
        "_watched",
        "_work",
        "error",
        "is_cancelled",
        "is_over",
        "is_taken",
        "result",
    )

    def __init__(
        self,
        work: Coroutine[Any, None, ToolOutcome],
        clock: LateClock,
        late: LateCaller | None = None,
        usage: Usage | None = None,
        size: int = 0,
        session: LegacySession | None = None,
    ) -> None:
        """Begins, and may have ended when this returns; `clock` is the call's, `late` its way back if it has one.

        The call, with its request of `size` bytes, counts for `usage`, and as a call of `session`, until it ends.
        """
        self._usage, self._size, self._session = usage, size, session
        if session is not None:
            session.calls += 1
        if usage is not None:
            usage.calls += 1
            if size > SMALL_BYTES:
                usage.hold_bytes(size)
        self._work = work
        self._clock = clock
        self._late = late
        self._context = contextvars.copy_context()
        self._waits: object = None
        """What the work waits for."""
        self._task: asyncio.Task[ToolOutcome] | None = None
        self._then: Callable[[], None] | None = None
        self._watched: set[Underway] | None = None
        self._taken: asyncio.Future[None] | None = None
        self._is_in_step = self._wants_task = self._has_begun = False
        self.is_over = self.is_cancelled = self.is_taken = False
        """It has ended in some way; it was cancelled from without; the SDK's path has it, and ends it where nobody waits for it there."""
        self.result: ToolOutcome | None = None
        """What it led to, once it is over."""
        self.error: BaseException | None = None
        """Why it did not, likewise."""
        if late is not None:
            late.hand_on = self.hand_on
        self._go_on()

    # -- for who answers -----------------------------------------------------------------------------------------

    def when_settled(self, patience: Patience, then: Callable[[], None]) -> None:
        """Have `then` called once: when the call is over, handed on, or has taken `HAND_ON_SECONDS`. It goes on in any case."""
        if self.is_over:
            asyncio.get_running_loop().call_soon(then)
        else:
            self._then = then
            self._watched = patience.watch(self)

    async def settled(self, patience: Patience) -> None:
        """Wait for the same."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_settled(patience, lambda: None if over.done() else over.set_result(None))
        await over

    def hand_on(self) -> None:
        """It is not for `direct` any more."""
        self._have_task()
        self._settle()

    async def taken(self) -> None:
        """Hand it on and wait until the SDK's path has it, or it is over."""
        self.hand_on()
        if not self.is_taken and self._task is not None:
            if self._taken is None:
                self._taken = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._task, self._taken], return_when=asyncio.FIRST_COMPLETED)

    async def outcome(self, caller: ClosingCaller) -> ToolOutcome:
        """Its outcome, for the SDK's path, which answers `caller`; the call ends with who awaits this."""
        if self._late is not None:
            self._late.become(caller)
        self.is_taken = True
        if self._taken is not None and not self._taken.done():
            self._taken.set_result(None)
        if self.error is not None:
            raise self.error
        if self._task is None:
            assert self.result is not None, "handed on, or over"
            return self.result
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            with anyio.move_on_after(WITHDRAW_SECONDS, shield=True):  # a call that runs on behind another gateway is ended there first
                await self.end()
            raise

    async def end(self) -> None:
        """Nobody waits for the call any more: end it, and hear its last word."""
        if not self.is_over:
            self.cancel()
            if self._task is not None:
                await asyncio.wait([self._task])

    def cancel(self, msg: object = None) -> None:
        """End it; it may have last words. The reason is for nobody (uvicorn gives one, as to a task)."""
        if self.is_over or self.is_cancelled:
            return
        self.is_cancelled = True
        if self._clock.clock is not None:
            self._clock.clock.abandon()
        if self._task is None:
            self._have_task()  # which begins with it
        elif self._has_begun:
            self._task.cancel()

    # -- without a task ------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """One step, to the next wait."""
        self._is_in_step = True
        try:
            waits = self._waits = self._context.run(self._work.send, None)
        except StopIteration as end:
            self._end(end.value, None)
        except BaseException as error:
            self._end(None, error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        else:
            self._is_in_step = False
            if type(waits) is PlainWait and not self._wants_task:
                waits.then = self._answered
            else:
                self._have_task()

    def _answered(self) -> None:
        waits = self._waits
        if type(waits) is PlainWait and waits.is_plain:
            self._go_on()
        else:
            self._have_task()

    # -- in a task -----------------------------------------------------------------------------------------------

    def _have_task(self) -> None:
        """Go on in a task, with the scope of the deadline around it."""
        if self.is_over or self._task is not None:
            return
        if self._is_in_step:
            self._wants_task = True
            return
        self._clock.close()
        waits = self._waits
        if type(waits) is PlainWait:
            waits.then = None
        self._task = asyncio.get_running_loop().create_task(self._rest(), context=self._context)
        self._task.add_done_callback(self._task_over)

    async def _rest(self) -> ToolOutcome:
        return await self._steps()

    @types.coroutine
    def _steps(self) -> Generator[Any, None, ToolOutcome]:
        """All later steps. Whoever sent the work to sleep wakes this, so what the work waits for is handed on."""
        self._has_begun = True
        clock = self._clock.clock
        error: BaseException | None = asyncio.CancelledError() if self.is_cancelled else None
        if error is not None:
            _leave(self._waits)
        is_over = error is not None and self._step(error)
        if clock is not None and not clock.is_left and not is_over:
            with clock.scope:
                while not is_over and not clock.is_left:
                    error = None
                    try:
                        yield self._waits
                    except BaseException as caught:  # whatever it is, it is the work's
                        error = caught
                    is_over = self._step(error)
                if error is not None and clock.is_over:
                    raise error  # the scope knows its own, and takes it back
        while not is_over:
            error = None
            try:
                yield self._waits
            except BaseException as caught:
                error = caught
            is_over = self._step(error)
        assert self.result is not None, "that is what being over is"
        return self.result

    def _step(self, error: BaseException | None) -> bool:
        """One step of the work, which may raise; whether it was the last."""
        try:
            self._waits = self._work.send(None) if error is None else self._work.throw(error)
        except StopIteration as end:
            self.result = end.value
            return True
        return False

    def _task_over(self, task: asyncio.Task[ToolOutcome]) -> None:
        if task.cancelled():
            self._work.close()  # in vain, unless the task had not begun
            self._end(None, asyncio.CancelledError())
        else:
            self._end(None if task.exception() is not None else task.result(), task.exception())

    # ------------------------------------------------------------------------------------------------------------

    def _end(self, result: ToolOutcome | None, error: BaseException | None) -> None:
        self.result, self.error = result, error
        self.is_over, self._is_in_step = True, False
        usage = self._usage
        if usage is not None:
            usage.calls -= 1
            if self._size > SMALL_BYTES:
                usage.hold_bytes(-self._size)
        if self._session is not None:
            self._session.calls -= 1
        if self._late is not None:
            self._late.hand_on = None  # or the two keep each other, and the result, until garbage is collected
        self._settle()

    def _settle(self) -> None:
        if self._watched is not None:
            self._watched.discard(self)
        then, self._then = self._then, None
        if then is not None:
            then()


def _leave(waits: object) -> None:
    """Nobody waits for this any more, so that what it led to, or will lead to, is no news that went unheard; a task does the same."""
    if isinstance(waits, asyncio.Future):
        future = cast("asyncio.Future[Any]", waits)
        if not future.cancel() and not future.cancelled():
            future.exception()
