"""`FastSession`: what is kept of a 2025 session without the SDK (`lean`): its handshake, its listening GET, what it was told there."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
from pydantic_core import to_json

from gateway.json_types import JsonObject
from gateway.server.clients import Channel, LegacySession
from gateway.wire.jsonrpc import notification
from gateway.wire.sse import encode_event

if TYPE_CHECKING:
    from starlette.types import Message, Send

MAX_PENDING = 16
"""Events that wait on one stream for a client that does not read; it may ask for further ones when it comes back."""

MAX_TOLD = 200
"""Notifications remembered of one session."""


@dataclass(slots=True)
class Told:
    """What a client heard, or was to hear, on its listening GET; events are named `<token>.<number>`."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    first: int = 1
    """Number of the oldest that is remembered."""
    messages: list[tuple[str, JsonObject | None]] = field(default_factory=lambda: list[tuple[str, JsonObject | None]]())

    def keep(self, method: str, params: JsonObject | None) -> bytes:
        """Remember a notification; it as an event."""
        self.messages.append((method, params))
        if len(self.messages) > MAX_TOLD:
            del self.messages[0]
            self.first += 1
        number = self.first + len(self.messages) - 1
        return encode_event(to_json(notification(method, params)), f"{self.token}.{number}")


class Stream:
    """A listening GET."""

    __slots__ = ("_send", "_turn", "moved", "pending", "scope", "sent", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = anyio.Lock()
        self.pending: deque[bytes] = deque()
        """What its client has yet to take."""
        self.scope = anyio.CancelScope()
        """Of the wait for its end."""
        self.sent = time.monotonic()
        self.moved: anyio.Event | None = None
        """It goes on with the SDK; set once it does, or is over."""
        self.status = 0
        """What the SDK says of it."""

    async def write(self, event: bytes) -> None:
        """Send, after what waits. Cancelled, it is sent later."""
        if len(self.pending) < MAX_PENDING:
            self.pending.append(event)
        if not self._turn.locked():  # else whoever sends already sends this too
            await self.flush()

    async def flush(self) -> None:
        """Send what waits, after whoever sends already: nothing of theirs comes after this."""
        async with self._turn:
            while self.pending:
                await self._send({"type": "http.response.body", "body": self.pending[0], "more_body": True})
                self.pending.popleft()
                self.sent = time.monotonic()

    async def go_on(self, message: Message) -> None:
        """The `send` of the SDK for a stream that has begun."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            assert self.moved is not None
            self.moved.set()
        elif self.status == 200:
            await self._send(message)

    async def close(self) -> None:
        """It ends here, after what is being sent."""
        async with self._turn:
            await self._send({"type": "http.response.body", "body": b""})


class FastSession(Channel):
    """One session. What it is told while no GET is open is kept for one that says what it saw last."""

    __slots__ = ("_end", "_heir", "body", "legacy", "moving", "stream", "told", "wire_id")

    legacy: LegacySession

    def __init__(self, wire_id: str, body: bytes, end: Callable[[FastSession], None]) -> None:
        """`end` is called when it gives way to another session."""
        self._end = end
        self.wire_id = wire_id
        self.body = body
        """Its `initialize`."""
        self.stream: Stream | None = None
        self.moving: anyio.Event | None = None
        """The SDK is to keep it; set once it does."""
        self._heir: Channel | None = None
        self.told: Told | None = None

    async def notify(self, method: str, params: JsonObject | None) -> None:
        """On the listening GET."""
        if self.moving is not None:
            await self.moving.wait()
            if self._heir is not None:
                await self._heir.notify(method, params)
            return
        stream = self.stream
        if self.told is None:
            if stream is None:
                return  # nobody ever listened, so nobody can ask for it
            self.told = Told()
        event = self.told.keep(method, params)
        if stream is not None:
            await stream.write(event)

    def waits(self) -> tuple[int, float] | None:
        """As `session_table.Kept.waits`."""
        is_busy = self.stream is not None or self.moving is not None or self.legacy.calls
        return None if is_busy else (0, self.legacy.seen)

    def give_way(self) -> None:
        """As `session_table.Kept.give_way`."""
        self._end(self)

    def inherit(self, heir: Channel) -> None:
        """Its channel once it has moved."""
        self._heir = heir
