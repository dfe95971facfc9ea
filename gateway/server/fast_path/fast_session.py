"""`FastSession`: the state of a 2025 session on the fast path: its handshake, its listening GET, and the notifications sent there."""

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
from gateway.wire.rpc_envelope import notification
from gateway.wire.sse import encode_event

if TYPE_CHECKING:
    from starlette.types import Message, Send

MAX_PENDING = 16
"""Maximum number of unsent events of a stream whose client does not read. More are only kept for when the client reconnects."""

MAX_TOLD = 200
"""Maximum number of notifications kept per session, for clients that reconnect."""


@dataclass(slots=True)
class NotificationLog:
    """The last notifications of a session, sent or not, for a client that reconnects its listening GET. Event ids: `<token>.<number>`."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    first: int = 1
    """Number, in its event id, of the oldest notification that is kept."""
    messages: list[tuple[str, JsonObject | None]] = field(default_factory=lambda: list[tuple[str, JsonObject | None]]())

    def keep(self, method: str, params: JsonObject | None) -> bytes:
        """Store a notification, and return it as an encoded server-sent event."""
        self.messages.append((method, params))
        if len(self.messages) > MAX_TOLD:
            del self.messages[0]
            self.first += 1
        number = self.first + len(self.messages) - 1
        return encode_event(to_json(notification(method, params)), f"{self.token}.{number}")


class Stream:
    """The response to a listening GET: the stream on which a 2025 session receives notifications."""

    __slots__ = ("_send", "_turn", "moved", "pending", "scope", "sent", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = anyio.Lock()
        self.pending: deque[bytes] = deque()
        """Events that are not sent yet."""
        self.scope = anyio.CancelScope()
        """Cancelled to end the stream, or to move it to the SDK path."""
        self.sent = time.monotonic()
        self.moved: anyio.Event | None = None
        """Present while the stream moves to the SDK path; set when it has moved, or ended."""
        self.status = 0
        """HTTP status that the SDK path returned for the moved stream."""

    async def write(self, event: bytes) -> None:
        """Send an event after all pending events. If this is cancelled, the event stays pending and is sent before the next one."""
        if len(self.pending) < MAX_PENDING:
            self.pending.append(event)
        if not self._turn.locked():  # else the running `flush` sends this event too
            await self.flush()

    async def flush(self) -> None:
        """Send all pending events. If another `flush` is running, wait for its end first."""
        async with self._turn:
            while self.pending:
                await self._send({"type": "http.response.body", "body": self.pending[0], "more_body": True})
                self.pending.popleft()
                self.sent = time.monotonic()

    async def go_on(self, message: Message) -> None:
        """The ASGI `send` of the SDK path for the moved stream. Its response head is not sent, because the client has one already."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            assert self.moved is not None
            self.moved.set()
        elif self.status == 200:
            await self._send(message)

    async def close(self) -> None:
        """End the response, after a running `flush` has ended."""
        async with self._turn:
            await self._send({"type": "http.response.body", "body": b""})


class FastSession(Channel):
    """A 2025 session on the fast path. Notifications without an open GET are kept for a client that reconnects with `Last-Event-ID`."""

    __slots__ = ("_end", "_heir", "body", "legacy", "moving", "stream", "told", "wire_id")

    legacy: LegacySession

    def __init__(self, wire_id: str, body: bytes, end: Callable[[FastSession], None]) -> None:
        """`end` is called when a new session replaces this session. `body` is the request body of the client's `initialize`."""
        self._end = end
        self.wire_id = wire_id
        self.body = body
        """Body of the client's `initialize`, which is repeated when the session moves to the SDK path."""
        self.stream: Stream | None = None
        self.moving: anyio.Event | None = None
        """Present while the session moves to the SDK path; set when it has moved."""
        self._heir: Channel | None = None
        self.told: NotificationLog | None = None

    async def notify(self, method: str, params: JsonObject | None) -> None:
        """Send a notification on the listening GET, and keep it. Without a GET until now, drop it; after a move, use the SDK path."""
        if self.moving is not None:
            await self.moving.wait()
            if self._heir is not None:
                await self._heir.notify(method, params)
            return
        stream = self.stream
        if self.told is None:
            if stream is None:
                return  # the client never opened a GET, so it cannot resume one
            self.told = NotificationLog()
        event = self.told.keep(method, params)
        if stream is not None:
            await stream.write(event)

    def waits(self) -> tuple[int, float] | None:
        """Return 0 and the time since when the session is idle (monotonic); `None` while it has a stream or a call, or moves."""
        is_busy = self.stream is not None or self.moving is not None or self.legacy.calls
        return None if is_busy else (0, self.legacy.seen)

    def evict(self) -> None:
        """End the session, because a new session replaces it."""
        self._end(self)

    def inherit(self, heir: Channel) -> None:
        """Send notifications through `heir`, the session's channel on the SDK path, from now on."""
        self._heir = heir
