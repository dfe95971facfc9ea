"""`Exchange`, one HTTP request with its response, and `ConnectionWriter`, which writes the responses of a connection of `http1_server`.

An exchange is given to an ASGI application, or to the fast path, which answers plain requests without the MCP SDK. The writer adds the
header fields that every response has, writes small responses of one event loop iteration together, and limits for how long and how many
bytes of responses a client may leave unread.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from gateway.wire.heap import Heap
from gateway.wire.http1_interfaces import Admission, Field, StartedRequest
from gateway.wire.http1_messages import RequestHead, WriteBatch

if TYPE_CHECKING:
    from starlette.types import Message, Scope
    from uvicorn.server import ServerState

HIGH_WATER_BYTES = 262_144
"""Number of request body bytes that may wait for the application; above this number, the connection stops reading."""

_JOINED_BYTES = 65_536
"""Maximum bytes of a response body that is joined with its head and written in one piece. A larger body is written separately."""

_JSON_HEAD = b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\ncontent-type: application/json\r\n%b%b"
"""Template of the head of a response of the fast path (no MCP SDK). Its arguments: the header lines that every response has, the body's
length, one additional header line or nothing, and the last lines: `connection: close` if needed, and the empty line.
"""

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}
"""HTTP status code → status line, with its line break."""

LATE_SECONDS = 1.0
"""Seconds by which a timeout may fire late. If it fires later, this process was blocked and may not have read bytes that the peer sent in
time, so the peer gets this many seconds more.
"""

UNREAD_SECONDS = 0.1
"""Seconds after which a new connection counts as unused. Before, its request may have arrived without having been read."""

_DISCONNECT: Message = {"type": "http.disconnect"}


def error_response(status: int, text: bytes, *fields: bytes) -> bytes:
    """Return a complete plain-text HTTP response, after which the connection closes."""
    lines = [b"connection: close", b"content-type: text/plain; charset=utf-8", b"content-length: %d" % len(text), *fields, b"\r\n"]
    return STATUS_LINES[status] + b"\r\n".join(lines) + text


HeadT = TypeVar("HeadT", bound=RequestHead)


class Exchange(Generic[HeadT]):
    """One HTTP request and its response; `receive` and `send` are those of ASGI."""

    __slots__ = (
        "_chunked", "_connection", "_head_bytes", "_is_received", "_is_until_close", "_missing", "_parts", "_size", "_waiter",
        "admission", "client_gone", "head", "is_answered", "is_complete", "is_fast", "is_rejected", "is_responding", "is_started",
        "keep_alive", "known_scope", "received_bytes", "started", "wants_continue",
    )

    def __init__(
        self,
        connection: ConnectionWriter[HeadT],
        head: HeadT,
        *,
        keep_alive: bool,
        wants_continue: bool = False,
        body: bytes | None = None,
    ) -> None:
        """`body` is the request's whole body, or `None` if it has not arrived completely."""
        self.head = head
        self.keep_alive = keep_alive
        self.is_complete = body is not None
        """Whether the whole request, with its body, has arrived."""
        self.is_started = self.is_fast = self.is_rejected = False
        """Whether the request was given to an ASGI application or to the fast path, the code that works without the MCP SDK; whether it was
        given to the fast path; whether its body is dropped.
        """
        self.is_responding = self.is_answered = self.client_gone = False
        """Whether the response has begun; whether the response is complete; whether the client has disconnected."""
        self.admission: Admission | None = None
        """Caller of the request, if it was determined from the request's head while the body was incomplete; otherwise `None`."""
        self.received_bytes = 0
        """Number of body bytes that arrived after the head, which counts towards the limit on the bytes of incomplete requests."""
        self.started: StartedRequest | None = None
        """Handle of the request while the fast path (code without the MCP SDK) processes it; `None` before and afterwards."""
        self.known_scope: Scope | None = None
        """The ASGI scope, or `None` until the property `scope` is first read."""
        self.wants_continue = wants_continue
        self._connection = connection
        self._parts: list[bytes] = [] if body is None else [body]
        self._size = 0 if body is None else len(body)
        self._is_received = False
        """Whether the application has received the whole body."""
        self._waiter: asyncio.Event | None = None
        self._head_bytes: bytes | None = None
        """Bytes of the response's head, until they are sent with the first part of the body."""
        self._missing = 0
        self._chunked = self._is_until_close = False

    @property
    def scope(self) -> Scope:
        """The ASGI scope, made on first access because the fast path (which answers requests without the MCP SDK) does not need it."""
        if self.known_scope is None:
            self.known_scope = self.head.scope()
        return self.known_scope

    # -- for the connection ----------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bool:
        """Add a part of the request's body; return whether the connection may read more."""
        self.received_bytes += len(data)
        if self.is_answered or self.is_rejected:
            return True
        self._parts.append(data)
        self._size += len(data)
        self.wake()
        return self._size <= HIGH_WATER_BYTES

    def reject(self) -> None:
        """Mark the request as rejected, and drop its body, including parts that arrive later."""
        self.is_started = self.is_rejected = True
        self._parts, self._size = [], 0

    def wake(self) -> None:
        """Wake a waiting `receive`, because a part of the body arrived, the response is complete, or the client disconnected."""
        if self._waiter is not None:
            self._waiter.set()

    def body(self) -> bytes:
        """Return the part of the body received so far, without removing it: `receive` returns it again."""
        if len(self._parts) != 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]

    def answer(self, field: Field | None, body: Sequence[bytes | memoryview]) -> None:
        """Send a response of the fast path (no MCP SDK): JSON `body` and an additional header `field`. No effect if the client has left."""
        if self.client_gone:
            return
        connection = self._connection
        size = len(body[0]) if len(body) == 1 else sum(map(len, body))
        field_line = b"" if field is None else b"%b: %b\r\n" % field
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        head = _JSON_HEAD % (connection.common_fields(), size, field_line, end)
        self.is_responding = True
        if len(body) == 1 and size <= _JOINED_BYTES:
            connection.write_soon(head + body[0])
        else:
            connection.write_parts((head, *body))
        self.is_answered = True
        self._parts = []  # or a connection would keep its last request's body until the next request
        self.wake()
        connection.answered(self)

    # -- for the application ---------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Return the next part of the request's body, or `http.disconnect` after the response or if the client disconnects.

        If the fast path (code without the MCP SDK) hands the request over to the application, the application gets the body even if the
        client has disconnected.
        """
        while not self.is_answered and (not self.client_gone or (self.is_fast and not self._is_received)):
            if self._parts or (self.is_complete and not self._is_received):
                parts = self._parts
                body = parts[0] if len(parts) == 1 else b"".join(parts)
                self._parts, self._size, self._is_received = [], 0, self.is_complete
                return {"type": "http.request", "body": body, "more_body": not self.is_complete}
            if self.wants_continue and not self.is_responding:
                self.wants_continue = False
                self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._connection.resume_reading()
            if self._waiter is None:
                self._waiter = asyncio.Event()
            self._waiter.clear()
            await self._waiter.wait()
        return _DISCONNECT

    async def send(self, message: Message) -> None:
        """Send the head or a part of the response's body. A head with `content-length` is sent together with the first part of the body."""
        connection, body = self._connection, message.get("body") or b""
        # A head is written while the client does not read, so that its body is then counted as unread.
        if connection.drained is not None and self.is_responding and not self.client_gone:
            await connection.wait_drained(len(body))
        if self.client_gone:
            return
        if not self.is_responding:
            assert message["type"] == "http.response.start", message["type"]
            self._begin_response(message["status"], message.get("headers") or ())
            return
        assert message["type"] == "http.response.body" and not self.is_answered, message["type"]
        self._write_body(body, is_last=not message.get("more_body"))

    def _begin_response(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        lines = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, self._connection.common_fields()]
        length = None
        has_close = False
        for name, value in headers:
            name = name.lower()
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                has_close = has_close or b"close" in value.lower()
            elif name == b"transfer-encoding":
                continue  # this connection chooses the framing
            lines.append(b"%s: %s\r\n" % (name, value))
        has_body = self.head.method != "HEAD" and status not in (204, 304)
        self._chunked = has_body and length is None and self.head.version == "1.1"
        self._is_until_close = has_body and length is None and not self._chunked
        self._missing = (length or 0) if has_body else 0
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if has_close:
            self.keep_alive = False
        elif not (self.keep_alive and self.is_complete):  # the rest of the request's body would be read as the next request
            self.keep_alive = False
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) + self._connection.common_count - 1 or head.count(b"\r") != head.count(b"\n") or b"\0" in head:
            raise ValueError("a header of the response holds a line break")
        self.is_responding = True
        self._head_bytes = head + b"\r\n"
        if self._chunked or self._is_until_close:
            self._connection.write(self._head_bytes)
            self._head_bytes = None

    def _write_body(self, body: bytes, *, is_last: bool) -> None:
        if self._chunked:
            data = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
            if is_last:
                data += b"0\r\n\r\n"
            self._connection.write(data)
        elif self._is_until_close:  # HTTP/1.0: the body ends with the connection
            self._connection.write(body)
        else:
            if self.head.method == "HEAD":
                body = b""
            self._missing -= len(body)
            if self._missing < 0 or (is_last and self._missing):
                raise ValueError("the body of the response does not have its `content-length`")
            head, self._head_bytes = self._head_bytes, None
            if head is None:
                self._connection.write(body)
            elif len(body) <= _JOINED_BYTES:
                self._connection.write(head + body)
            else:
                self._connection.write_parts((head, body))
        if is_last:
            self.is_answered = True
            self.wake()
            self._connection.answered(self)


def is_late(timer: asyncio.TimerHandle, loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether `timer` fires so late that bytes which the peer sent in time may still be unread."""
    return loop.time() - timer.when() > LATE_SECONDS


def is_new(opened: float, loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether a connection was opened, at the time `opened` of the loop, so recently that its request may still be unread."""
    return loop.time() - opened < UNREAD_SECONDS


class UnreadConnection(Protocol):
    """A connection whose client leaves responses unread, as counted by `UnreadResponses`."""

    def cut(self) -> None:
        """Close the connection and drop all unsent bytes."""
        ...


class UnreadResponses(Protocol[HeadT]):
    """Counts the response bytes in memory that clients have not read yet, and closes connections if the bytes exceed a limit."""

    def hold(self, connection: UnreadConnection, exchange: Exchange[HeadT], size: int, /) -> bool:
        """Set the count of a connection's unread response bytes to `size`.

        Return `False`, and count nothing, if the caller of the request in `exchange` is unknown.
        """
        ...

    def drop(self, connection: UnreadConnection, /) -> None:
        """Stop counting a connection's unread response bytes, because its client has read everything or has disconnected."""
        ...


class ConnectionWriter(asyncio.Protocol, Generic[HeadT]):
    """Writes the HTTP responses of one client connection."""

    __slots__ = (
        "_buffer", "_common", "_current", "_is_leaving", "_state", "_unread_bytes", "_unread_timer", "common_count", "drained", "loop",
        "transport",
    )

    write_batch: WriteBatch
    heap: Heap
    unread_responses: UnreadResponses[HeadT]
    unread_seconds: float
    """Seconds for which the write buffer may stay full, because the client does not read, before the connection is closed."""

    def __init__(self, state: ServerState) -> None:
        """`state` is uvicorn's server state. Its header fields of every response (such as `date`) are renewed by uvicorn each second."""
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.drained: asyncio.Event | None = None
        """Event that is set when the client reads its responses again; `None` while no writing is paused."""
        self.common_count = 0
        """Number of header lines that `common_fields` returns; used to check that a response's head has no additional line breaks."""
        self._state = state
        self._common: tuple[object, bytes] = None, b""
        self._current: Exchange[HeadT] | None = None
        """The request that is being answered, or the last request that was answered."""
        self._is_leaving = False
        """Whether the server stops: the response to the next request closes the connection."""
        self._unread_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        """Response bytes that the client has not read, including those that wait to be written."""
        self._buffer = b""
        """Bytes that `flush` writes at the end of this event loop iteration."""

    def resume_reading(self) -> None:
        """Continue reading the client's requests after a pause."""
        raise NotImplementedError

    def answered(self, exchange: Exchange[HeadT], /) -> None:
        """Start the client's next request, or close the connection, after the response of `exchange` is complete."""
        raise NotImplementedError

    def leave(self) -> bool:
        """Close the connection with its next response; return whether no request is in progress, so that one may be on its way.

        A load balancer sends its next request over an idle connection. If the connection were closed at that moment, the request would be
        lost; so idle connections are left open for a moment after the server has stopped listening.
        """
        self._is_leaving = True
        exchange = self._current
        if exchange is None or exchange.is_answered:
            return True
        if not exchange.head.is_endless:
            exchange.keep_alive = False
        return False

    def common_fields(self) -> bytes:
        """Return the header lines that every response has, such as `date`."""
        fields = self._state.default_headers
        if self._common[0] is not fields:
            self._common = fields, b"".join([b"%s: %s\r\n" % pair for pair in fields])
            self.common_count = len(fields)
        return self._common[1]

    def write(self, data: bytes) -> None:
        """Write bytes, after the buffered bytes."""
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        self.transport.write(data)
        if self.drained is not None:
            self._count_unread(len(data))

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write a large response, given in consecutive parts, after the buffered bytes."""
        self.flush()
        self.transport.writelines(parts)
        if self.drained is not None:
            self._count_unread(sum(map(len, parts)))
        self.heap.used()

    def write_soon(self, data: bytes) -> None:
        """Buffer bytes, which are written at the end of this event loop iteration."""
        if not self._buffer:
            self.write_batch.add(self)
        self._buffer += data

    def flush(self) -> None:
        """Write the buffered bytes, if there are any and the connection is open."""
        data, self._buffer = self._buffer, b""
        if data and not self.transport.is_closing():
            self.transport.write(data)
            if self.drained is not None:
                self._count_unread(len(data))

    async def wait_drained(self, size: int) -> None:
        """Wait until the client reads its responses again. During the wait, the next `size` bytes of the response count as unread, too."""
        while self.drained is not None:
            self._count_unread(size)
            await self.drained.wait()

    def _count_unread(self, size: int) -> None:
        if size and self._current is not None and self.unread_responses.hold(self, self._current, self._unread_bytes + size):
            self._unread_bytes += size

    def cut(self) -> None:
        """Close the connection and drop unsent bytes, in the next event loop iteration because the transport may be writing now."""
        self.loop.call_soon(self.transport.abort)

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read its responses."""
        if self.drained is None:
            self.drained = asyncio.Event()
            self._unread_timer = self.loop.call_later(self.unread_seconds, self._unread_too_long)

    def _unread_too_long(self) -> None:
        timer = self._unread_timer
        if timer is not None and is_late(timer, self.loop):
            self._unread_timer = self.loop.call_later(LATE_SECONDS, self._unread_too_long)
        else:
            self.transport.abort()

    def resume_writing(self) -> None:
        """Stop the timeout and wake writers: the client reads again, or is gone."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        if self._unread_bytes:
            self._unread_bytes = 0
            self.unread_responses.drop(self)
        drained, self.drained = self.drained, None
        if drained is not None:
            drained.set()
