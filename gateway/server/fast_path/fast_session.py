"""`FastSession`: the state of a 2025 HTTP session without the MCP SDK: handshake, notifications, and the GET on which they are sent."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from gateway.json_types import JsonObject
from gateway.server.clients import Channel, LegacySession
from gateway.server.handover import NotificationLog

if TYPE_CHECKING:
    from starlette.types import Message, Send

MAX_PENDING = 16
"""Maximum number of server-sent events (notifications) that wait to be sent on a stream whose client does not read.

Further events are not sent on this stream, but a client that reconnects with `Last-Event-ID` receives them."""


class Stream:
    """The open response to a listening GET: the SSE stream on which the client of a 2025 session receives notifications."""

    __slots__ = ("_send", "_turn", "moved", "pending", "scope", "sent", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = anyio.Lock()
        self.pending: deque[bytes] = deque()
        """Encoded server-sent events that were not sent yet, oldest first."""
        self.scope = anyio.CancelScope()
        """Cancel scope of the code that serves the GET. It is cancelled to end the stream, or to let the MCP SDK continue it."""
        self.sent = time.monotonic()
        self.moved: anyio.Event | None = None
        """Exists while the MCP SDK takes over the stream. It is set when the SDK has taken it over, or when it ended."""
        self.status = 0
        """HTTP status with which the MCP SDK answered the GET that it took over; 0 before."""

    async def write(self, event: bytes) -> None:
        """Send a server-sent event after all pending events. Drop the event if `MAX_PENDING` events are pending.

        If this method is cancelled, the event stays pending, and is sent before the next event.
        """
        if len(self.pending) < MAX_PENDING:
            self.pending.append(event)
        if not self._turn.locked():  # else the running `flush` sends this event too
            await self.flush()

    async def flush(self) -> None:
        """Send all pending server-sent events in order. If another call of `flush` is running, wait for its end first."""
        async with self._turn:
            while self.pending:
                await self._send({"type": "http.response.body", "body": self.pending[0], "more_body": True})
                self.pending.popleft()
                self.sent = time.monotonic()

    async def go_on(self, message: Message) -> None:
        """Send an ASGI message of the MCP SDK to the client. The SDK uses this as `send` for the GET after it has taken over the stream.

        The response head is not sent, because the client has already received one.
        """
        if message["type"] == "http.response.start":
            self.status = message["status"]
            assert self.moved is not None
            self.moved.set()
        elif self.status == 200:
            await self._send(message)

    async def close(self) -> None:
        """End the HTTP response. If `flush` is running, wait for its end first."""
        async with self._turn:
            await self._send({"type": "http.response.body", "body": b""})


class FastSession(Channel):
    """A 2025 HTTP session that the fast path serves without the MCP SDK.

    After the first notification on a listening GET, the last notifications (`NotificationLog`) are stored, for a client that reconnects
    with `Last-Event-ID`.
    """

    __slots__ = ("_end", "_heir", "_replica", "body", "legacy", "log", "moving", "stream", "wire_id")

    legacy: LegacySession

    def __init__(self, wire_id: str, body: bytes, end: Callable[[FastSession], None], replica: str = "") -> None:
        """`wire_id` is the `Mcp-Session-Id`, and `body` the request body of the client's `initialize`.

        `replica` is the id of this replica of the gateway, or empty.

        `end` is called when this session must end to make room for a new session.
        """
        self._end = end
        self._replica = replica
        self.wire_id = wire_id
        self.body = body
        """Body of the client's `initialize` request, which is sent to the MCP SDK when the session moves to the SDK path."""
        self.stream: Stream | None = None
        self.moving: anyio.Event | None = None
        """Exists once the MCP SDK begins to take over the session. It is set when this is finished or has failed."""
        self._heir: Channel | None = None
        self.log: NotificationLog | None = None

    async def notify(self, method: str, params: JsonObject | None) -> None:
        """Send a notification on the client's listening GET, and store it for a client that reconnects.

        The notification is dropped if the client has no GET open, and no notification was sent on an earlier GET. If the MCP SDK takes over
        the session, or has done so, the SDK sends the notification.
        """
        if self.moving is not None:
            await self.moving.wait()
            if self._heir is not None:
                await self._heir.notify(method, params)
            return
        stream = self.stream
        if self.log is None:
            if stream is None:
                return  # the client never opened a GET, so it cannot resume one
            self.log = NotificationLog(self._replica)
        event = self.log.keep(method, params)
        if stream is not None:
            await stream.write(event)

    def waits(self) -> tuple[int, float] | None:
        """Return 0 and the monotonic time at which the session became idle.

        Return `None` while the session is busy: it has an open stream or a call in progress, or the MCP SDK is taking it over.
        """
        is_busy = self.stream is not None or self.moving is not None or self.legacy.calls
        return None if is_busy else (0, self.legacy.seen)

    def evict(self) -> None:
        """End the session to make room for a new session."""
        self._end(self)

    def inherit(self, heir: Channel) -> None:
        """From now on, send notifications through `heir`, the session's connection at the MCP SDK, which has taken over the session."""
        self._heir = heir
