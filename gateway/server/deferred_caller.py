"""Implementations of `Caller`, which sends the messages of a call to its client, for calls that were started without the MCP SDK.

`PlainCaller` is for requests of protocol version 2026-07-28, and `DeferredCaller` for requests of 2025 sessions. When a call sends its
first message, `DeferredCaller` hands the call over to the SDK path and sends the message there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext

import anyio

from gateway.json_types import JsonObject, JsonValue
from gateway.server.clients import CloseableCaller
from gateway.server.detached_caller import wants_level
from gateway.tools.ports import LogLevel, NoCaller, Presence, undeclared


class PlainCaller(NoCaller):
    """The `Caller` (sends a call's messages to its client) of a 2026-07-28 call whose client requested neither progress nor log messages.

    It drops progress and log messages. It cannot request input, because 2026 clients receive requests for input in results.
    """

    log_level: LogLevel | None = None

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Raise `InputUnavailable`, because the client does not support requests for input.

        If a client supports them, the MCP SDK handles its calls of tools that may request input, so `PlainCaller` is not used.
        """
        raise undeclared(request)


class DeferredCaller:
    """The `Caller` (sends a call's messages to its client) of a tool call in a 2025 session that was started without the MCP SDK.

    Messages can only be sent with the SDK. The first log message or request for input therefore hands the call over to the SDK path, and
    waits until the SDK path has the call. The class also implements `Presence`, which reports whether the client is reachable.
    """

    log_level: LogLevel | None = None
    hand_over: Callable[[], None] | None = None
    """Function that hands the call over to the SDK path (with the MCP SDK); `None` before the call was started and when it has ended."""
    _real: CloseableCaller | None = None
    _replaced: anyio.Event | None = None
    _sending = _needs = 0
    _all_sent: anyio.Event | None = None

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Drop the progress report, because calls are only started without the MCP SDK if their client did not request progress."""

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Hand the call over to the MCP SDK, and send a log message to the client with the SDK.

        If the level of the message is below the client's log level, drop the message and do not hand the call over.
        """
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
        """Hand the call over to the MCP SDK, send a request for input to the client with the SDK, and return the client's answer."""
        return await (await self._reach()).ask(request, key)

    @property
    def is_here(self) -> bool:
        """Whether the client is reachable. True until the call is handed over to the MCP SDK, which alone notices a lost client."""
        presence = self.presence
        return presence is None or presence.is_here

    async def here(self) -> None:
        """Wait until the client has a stream open. Before the call is handed over to the MCP SDK, which tracks streams, return at once."""
        if (presence := self.presence) is not None:
            await presence.here()

    def need(self) -> None:
        """From now until `release`, end the request if its client is lost. This has no effect until the call is handed over to the MCP SDK.

        Each `need` requires its own `release`.
        """
        self._needs += 1
        if (presence := self.presence) is not None:
            presence.need()

    def release(self) -> None:
        """Undo one call of `need`: a lost client no longer ends the request, unless other calls of `need` are still in effect."""
        self._needs -= 1
        if (presence := self.presence) is not None:
            presence.release()

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None, None]:
        """Enter this context around a wait for a person or a queue. If the client is lost during the wait, the request ends.

        Entering hands the call over to the MCP SDK (on the SDK path), which notices a lost client.
        """
        presence = (await self._reach()).presence
        async with nullcontext() if presence is None else presence.waiting():
            yield

    @property
    def presence(self) -> Presence | None:
        """The object that reports whether the client is reachable; `None` over stdio, and until the call is handed over to the MCP SDK."""
        return None if self._real is None else self._real.presence

    @property
    def has_more(self) -> bool:
        """Whether `close` must be called: a message of the call is being sent, or the call was handed over to the MCP SDK."""
        return self._sending > 0 or self._real is not None

    async def close(self) -> None:
        """Wait until every message of the call was sent, then send the messages that may only be sent when the call's result is known."""
        if self._sending:  # a tool may send a message and return without waiting for it
            self._all_sent = anyio.Event()
            await self._all_sent.wait()
        if self._real is not None:
            await self._real.close()

    def become(self, caller: CloseableCaller) -> None:
        """From now on, send all messages of the call through `caller`, including messages that wait for the hand-over.

        `caller` sends messages with the MCP SDK. The SDK path calls this method when the call was handed over to it.
        """
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
