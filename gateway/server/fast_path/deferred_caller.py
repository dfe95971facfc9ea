"""Callers of calls that the fast path started: `PlainCaller` for 2026 requests, `DeferredCaller` for calls in 2025 sessions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext

import anyio

from gateway.json_types import JsonObject, JsonValue
from gateway.server.clients import CloseableCaller
from gateway.server.detached_caller import wants_level
from gateway.tools.ports import LogLevel, NoCaller, Presence, undeclared


class PlainCaller(NoCaller):
    """Implements `Caller` for a 2026 call whose client requested neither progress nor logs. Input is requested in results only."""

    log_level: LogLevel | None = None

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Raise `AskUnavailable`. If the client supports requests for input, the fast path does not start calls that may send them."""
        raise undeclared(request)


class DeferredCaller:
    """Implements `Caller` and `Presence` for a call in a 2025 session on the fast path, which cannot send messages itself.

    A log message or a request for input hands the call over to the SDK path, and is sent when the SDK path has the call.
    """

    log_level: LogLevel | None = None
    hand_over: Callable[[], None] | None = None
    """Function that hands the call over to the SDK path; `None` when the call has ended."""
    _real: CloseableCaller | None = None
    _replaced: anyio.Event | None = None
    _sending = _needs = 0
    _all_sent: anyio.Event | None = None

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Drop the progress report: the fast path only takes requests without a progress token."""

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Send a log message through the SDK path, if the client wants messages of this level."""
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
        """Send a request for input through the SDK path, and return the client's answer."""
        return await (await self._reach()).ask(request, key)

    @property
    def is_here(self) -> bool:
        """Whether the client is reachable; true before the hand-over, because only the SDK path notices a lost client."""
        presence = self.presence
        return presence is None or presence.is_here

    async def here(self) -> None:
        """Wait until the client has a stream open; return at once before the hand-over, after which the SDK path tracks streams."""
        if (presence := self.presence) is not None:
            await presence.here()

    def need(self) -> None:
        """End the request if its client is lost before `release`. Takes effect when the SDK path has the call. Calls nest."""
        self._needs += 1
        if (presence := self.presence) is not None:
            presence.need()

    def release(self) -> None:
        """Undo one `need`."""
        self._needs -= 1
        if (presence := self.presence) is not None:
            presence.release()

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None, None]:
        """Hand the call over, then call `need` and `release` around a wait for a person or a queue."""
        presence = (await self._reach()).presence
        async with nullcontext() if presence is None else presence.waiting():
            yield

    @property
    def presence(self) -> Presence | None:
        """The `Presence` of the client, which the SDK path tracks; `None` before the hand-over."""
        return None if self._real is None else self._real.presence

    @property
    def has_more(self) -> bool:
        """Whether `close` has something to do: a message is being sent, or the call was handed over."""
        return self._sending > 0 or self._real is not None

    async def close(self) -> None:
        """Wait until every message of the call is sent, then have the SDK path's caller send what must follow the call."""
        if self._sending:  # a tool may send a message and return without waiting for it
            self._all_sent = anyio.Event()
            await self._all_sent.wait()
        if self._real is not None:
            await self._real.close()

    def become(self, caller: CloseableCaller) -> None:
        """Send all messages through `caller`, the SDK path's caller, from now on: the SDK path has taken the call."""
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
