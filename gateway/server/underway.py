"""`Underway`: a call that `direct` began, and how the SDK's path takes it over; the ways back of such calls.

Nothing is decided or sent here. Plain asyncio, as in `direct`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Protocol

from gateway.errors import AskUnavailable
from gateway.json_types import JsonObject, JsonValue
from gateway.server.caller import wants_level
from gateway.tools.base import ToolOutcome
from gateway.tools.context import Caller, LateClocks, LogLevel, capability_of

HAND_ON_SECONDS = 0.25
"""A call that takes longer is handed on: there a client that leaves ends it, and a silent connection is kept alive."""


class ClosingCaller(Caller, Protocol):
    """A way back that is told when its request is served."""

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

    async def ask(self, request: JsonObject) -> JsonObject:
        """Refused, as by every modern client."""
        raise AskUnavailable("This client is asked through input_required results only.", capability=capability_of(request))


class LateCaller:
    """The way back of a 2025 call: who has something to say or ask on the way has the call handed on, and waits until it is."""

    def __init__(self) -> None:
        self.log_level: LogLevel | None = None
        self.hand_on: Callable[[], None] | None = None
        self._real: ClosingCaller | None = None
        self._came: asyncio.Future[None] | None = None
        self._speaking = 0
        self._said: asyncio.Future[None] | None = None

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

    async def ask(self, request: JsonObject) -> JsonObject:
        """As `WireCaller.ask`."""
        return await (await self._reach()).ask(request)

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
    """Has calls handed on that take longer than `HAND_ON_SECONDS`; one timer for all of them."""

    def __init__(self) -> None:
        self._begun: deque[tuple[float, list[Underway]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, call: Underway) -> list[Underway]:
        """From now on; the caller empties what it gets when the call is over."""
        loop = asyncio.get_running_loop()
        kept = [call]
        self._begun.append((loop.time() + HAND_ON_SECONDS, kept))
        if self._timer is None:
            self._timer = loop.call_later(HAND_ON_SECONDS, self._look)
        return kept

    def _look(self) -> None:
        loop, begun = asyncio.get_running_loop(), self._begun
        while begun and (not begun[0][1] or begun[0][0] <= loop.time()):
            for call in begun.popleft()[1]:
                call.hand_on()
        self._timer = loop.call_at(begun[0][0], self._look) if begun else None


class Underway:
    """A call in a task of its own. It is cancelled at most once, however often who awaits it is: it may have to tell its server."""

    def __init__(self, work: Coroutine[None, None, ToolOutcome], clocks: LateClocks, late: LateCaller | None = None) -> None:
        """Begins; `clocks` are the call's, `late` is its way back where it has one."""
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(work)
        self._clocks = clocks
        self._late = late
        self._then: Callable[[], None] | None = None
        self._watched: list[Underway] | None = None
        self._is_taken = self._is_ended = False
        self._taken: asyncio.Future[None] | None = None
        if late is not None:
            late.hand_on = self.hand_on

    def when_settled(self, patience: Patience, then: Callable[[], None]) -> None:
        """Have `then` called once: when the call is over, handed on, or has taken `HAND_ON_SECONDS`. It goes on in any case."""
        self._then = then
        self._watched = patience.watch(self)
        self.task.add_done_callback(self._settle)

    async def settled(self, patience: Patience) -> None:
        """Wait for the same."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_settled(patience, lambda: None if over.done() else over.set_result(None))
        await over

    def hand_on(self) -> None:
        """It is not for `direct` any more."""
        self._clocks.arm()
        self._settle()

    async def taken(self) -> None:
        """Hand it on and wait until the SDK's path has it, or it is over."""
        self.hand_on()
        if not self._is_taken:
            if self._taken is None:
                self._taken = asyncio.get_running_loop().create_future()
            await asyncio.wait([self.task, self._taken], return_when=asyncio.FIRST_COMPLETED)

    async def outcome(self, caller: ClosingCaller) -> ToolOutcome:
        """Its outcome, for the SDK's path, which answers `caller`; the call ends with who awaits this."""
        if self._late is not None:
            self._late.become(caller)
        self._is_taken = True
        if self._taken is not None and not self._taken.done():
            self._taken.set_result(None)
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            self._cancel()
            raise

    async def end(self) -> None:
        """Nobody waits for the call any more: end it, and hear its last word."""
        if not self.task.done():
            self._clocks.arm()
            self._cancel()
            await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.exception()

    def _settle(self, _: object = None) -> None:
        if self._watched is not None:
            self._watched.clear()
        then, self._then = self._then, None
        if then is not None:
            then()

    def _cancel(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self.task.cancel()
