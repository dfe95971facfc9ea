"""Callers of calls that the fast path started: `PlainCaller` for 2026 requests, `DeferredCaller` for calls in 2025 sessions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext

import anyio

from gateway.json_types import JsonObject, JsonValue
from gateway.server.clients import CloseableCaller
from gateway.server.detached_caller import wants_level
from gateway.tools.ports import LogLevel, Presence, undeclared


class PlainCaller:
    """Implements `Caller` for a 2026 call whose client requested neither progress nor logs. Input is requested in results only."""

    log_level: LogLevel | None = None

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Drop the report."""

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Drop the message."""

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Raise `AskUnavailable`. Calls of clients that support requests for input are parked instead (`parked`)."""
        raise undeclared(request)


class DeferredCaller:
    """Implements `Caller` and `Presence` for a call in a 2025 session: a log message or a request for input hands the call over to the
    SDK path, waits until the SDK path has it, and is then sent there."""

    log_level: LogLevel | None = None
    hand_over: Callable[[], None] | None = None
    """Hands the call over; set by the call while it runs."""
    _real: CloseableCaller | None = None
    _replaced: anyio.Event | None = None
    _sending = _needs = 0
    _all_sent: anyio.Event | None = None

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Drop the report: the fast path does not take requests with a progress token."""

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Send a log message by the SDK path, if the client wants its level."""
        if not wants_level(self.log_level, level):
            return
        self._sending += 1
        try:
            await (await self._reach()).log(level, data, logger)
        finally:
            self._sending -= 1
            if not self._sending and self._all_sent is not None:
                self._all_sent.set()

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Send a request for input by the SDK path and return the answer."""
        return await (await self._reach()).ask(request, key)

    @property
    def is_here(self) -> bool:
        """Whether the client is reachable; true before the hand-over, because only the SDK path notices a lost client."""
        presence = self.presence
        return presence is None or presence.is_here

    async def here(self) -> None:
        """As `Presence`."""
        if (presence := self.presence) is not None:
            await presence.here()

    def need(self) -> None:
        """As `Presence`; takes effect at the hand-over."""
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
        """As `Presence`; hands the call over first."""
        presence = (await self._reach()).presence
        async with nullcontext() if presence is None else presence.waiting():
            yield

    @property
    def presence(self) -> Presence | None:
        """The presence that the SDK path tracks; `None` before the hand-over."""
        return None if self._real is None else self._real.presence

    @property
    def has_more(self) -> bool:
        """Whether `close` has something to do: a message is being sent, or the call was handed over."""
        return self._sending > 0 or self._real is not None

    async def close(self) -> None:
        """Wait until every message is sent, then close the SDK path's caller."""
        if self._sending:  # a tool may send a message and return without waiting for it
            self._all_sent = anyio.Event()
            await self._all_sent.wait()
        if self._real is not None:
            await self._real.close()

    def become(self, caller: CloseableCaller) -> None:
        """Use `caller` from now on: the SDK path has the call."""
        self._real = caller
        if (presence := caller.presence) is not None:
            for _ in range(self._needs):
                presence.need()
        if self._replaced is not None:
            self._replaced.set()

    async def _reach(self) -> CloseableCaller:
        if self._real is None:
            self._replaced = self._replaced or anyio.Event()
            if self.hand_over is not None:
                self.hand_over()
            await self._replaced.wait()
        assert self._real is not None, "`become` sets both"
        return self._real
