"""Server-sent events (WHATWG HTML, 9.2): `SseParser` parses the bytes of a stream, `EventStream` queues the messages of a response.

`http1_client` fills an `EventStream` for each response that is an event stream. Connections to servers
that use another HTTP library only use `SseParser`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.errors import Malformed, RequestFailure, TooLarge
from gateway.wire.content_coding import CodingError, Decompressor, decompressor_for
from gateway.wire.message_sizes import Claim, too_large

MESSAGE = b"message"
"""The type of an event without an `event` field."""

MAX_ID_BYTES = 1024
"""Maximum bytes of an event id that is stored; a longer id cannot be sent back in `Last-Event-ID`."""

END_LINES = 8
"""Number of `data` lines that are kept at the beginning, and at the end, of an event that is too large."""

HIGH_WATER_BYTES = 1_048_576
"""Bytes of queued messages above which the connection stops reading."""

_RETURN = 0x0D
_MAX_RETRY_DIGITS = 9
_LONGEST_NAME = len(b"event: ")
"""Number of bytes of the longest field name with its separator. Only this part of a line is searched for the field name."""


def encode_event(data: bytes, event_id: str) -> bytes:
    """Return the bytes of one event of the type `message`. `data` has no line breaks."""
    return b"id: %s\r\nevent: message\r\ndata: %s\r\n\r\n" % (event_id.encode(), data)


def leading_id(data: bytes) -> str:
    """Return the id of the event with which `data` begins, if the id is its first line and at most `MAX_ID_BYTES` long; otherwise empty."""
    line, end, _ = data[: MAX_ID_BYTES + len(b"id: \r\n")].partition(b"\n")
    return line.removeprefix(b"id: ").strip().decode("latin-1") if end and line.startswith(b"id: ") else ""


def encode_comment(text: str) -> bytes:
    """Return the bytes of a comment, which keeps a silent stream open. `text` has no line breaks."""
    return b": %s\r\n\r\n" % text.encode()


def encode_retry(seconds: float) -> bytes:
    """Return the bytes of a `retry` field: the time after which a client opens the stream again when it breaks. It is not an event."""
    return b"retry: %d\r\n\r\n" % round(seconds * 1000)


class SseParser:
    """Parses one event stream and returns the data of its events. Events without data are ignored (SEP-1699)."""

    def __init__(self, max_bytes: int, *, event: bytes | None = MESSAGE, truncates: bool = False) -> None:
        """`max_bytes` limits one event. `event` is the type of the events that are returned (`None`: all types).

        If `truncates` is true, only the beginning and the end of a larger event are kept, in `truncated`, and parsing continues. Otherwise
        `is_too_large` becomes true, and parsing must end.
        """
        self.is_too_large = False
        """Whether the incomplete event exceeds `max_bytes`. Then `feed` may not be called again, unless `truncates` was set."""
        self.truncated: list[bytes] = []
        """The beginning, directly followed by the end, of the data of each event that was too large. The caller empties the list."""
        self.last_id = b""
        """Value of the last `id` field, for `Last-Event-ID`; empty if no event had an id, or the id is longer than `MAX_ID_BYTES`."""
        self.retry_seconds: float | None = None
        """Reconnection time in seconds from the last `retry` field; `None` if the server sent none."""
        self._max_bytes = max_bytes
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._data_bytes = self._line_bytes = 0
        self._wanted_type = event
        self._is_wanted = self._is_untyped_wanted = event in (MESSAGE, None)
        self._truncates = truncates
        self._is_truncated = False
        self._ended_in_return = False

    @property
    def pending_bytes(self) -> int:
        """Bytes received of the event that is not complete yet."""
        return self._data_bytes + self._line_bytes

    def feed(self, part: bytes) -> list[bytes]:
        """Parse the next bytes of the stream; return the data of each event that is complete now. This takes linear time."""
        if self._ended_in_return and part.startswith(b"\n"):
            part = part[1:]
            self._ended_in_return = False
        if part:
            self._ended_in_return = part.endswith(b"\r")
        if _RETURN in part:
            part = part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        complete: list[bytes] = []
        start = 0
        while (end := part.find(b"\n", start)) >= 0:  # takes a quarter of the time of `split` if lines are long
            line, start = part[start:end], end + 1
            if self._line:
                self._hold(line)
                first, *more = self._line
                self._line, self._line_bytes = [], 0
                self._take_field(first, more)
            elif line:
                self._take_field(line)
            else:
                if self._is_wanted and (data := b"\n".join(self._data)):
                    (self.truncated if self._is_truncated else complete).append(data)
                self._data, self._data_bytes, self._is_truncated, self._is_wanted = [], 0, False, self._is_untyped_wanted
        if start < len(part):
            self._hold(part[start:])
            self._line_bytes += len(part) - start
        self.is_too_large = self.pending_bytes > self._max_bytes
        if self.is_too_large and self._truncates:
            self._is_truncated = True
            del self._line[2:-2], self._data[END_LINES:-END_LINES]  # the id of a JSON-RPC message is at one of its ends
        return complete

    def _hold(self, part: bytes) -> None:
        """Store a part of an incomplete line. The first part contains the whole field name, so that a long value is copied only once."""
        if self._line and len(self._line[0]) < _LONGEST_NAME:
            self._line[0] += part
        else:
            self._line.append(part)

    def _take_field(self, line: bytes, more: Sequence[bytes] = ()) -> None:
        name, _, value = line[:_LONGEST_NAME].partition(b":")
        if name == b"data":
            data = b"".join((line[6 if value.startswith(b" ") else 5 :], *more))
            self._data_bytes += len(data) + bool(self._data)
            self._data.append(data)
            return
        line = b"".join((line, *more))
        if name == b"event":
            self._is_wanted = self._wanted_type in (None, line[6:].removeprefix(b" ") or MESSAGE)
        elif name == b"id":
            event_id = line[3:].removeprefix(b" ")
            self.last_id = event_id if len(event_id) <= MAX_ID_BYTES else b""
        elif name == b"retry" and (text := line[6:].strip()).isdigit() and len(text) < _MAX_RETRY_DIGITS:
            self.retry_seconds = int(text) / 1000


class StreamConnection(Protocol):
    """The connection on which an event stream arrives (`http1_client.ClientConnection`)."""

    def resume_reading(self) -> None:
        """Continue reading after a pause."""
        ...

    def take_claim(self) -> Claim | None:
        """Return the claim (permission to hold memory) of the large message that was read, or `None`. The caller releases it."""
        ...

    def drain(self) -> None:
        """Drop the rest of the response. The connection is reused if the response ends within a second, else closed."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


class EventStream:
    """The messages of a response that is an event stream, queued while they arrive."""

    def __init__(self, connection: StreamConnection, headers: Mapping[bytes, bytes], *, server: str, max_bytes: int) -> None:
        """`headers` are those of the response. `max_bytes` limits one message, decompressed."""
        self._connection: StreamConnection | None = connection
        self._server = server
        self._max_bytes = max_bytes
        self.parser = SseParser(max_bytes)
        self._messages: deque[bytes] = deque()
        self._queued_bytes = 0
        self._failure: RequestFailure | None = None
        self._decompressor: Decompressor | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.claim: Claim | None = None
        """Claim (permission to hold memory) of a large message; the connection sets it when the stream has ended."""
        try:
            self._decompressor = decompressor_for(headers.get(b"content-encoding", b"").decode("latin-1"))
        except CodingError as error:
            self._failure = Malformed(f"the body {error}", server=server)

    # -- for the reader --------------------------------------------------------------------------------------------

    async def message(self) -> bytes:
        """Return the data of the next message; empty at the end of the stream. Does not wait if a message is queued.

        Raises:
            Malformed: The stream cannot be decompressed.
            TooLarge: The message exceeds the limit, or waited too long for memory.
            OutcomeUnknown: The connection broke.
        """
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            if self._connection is None:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        was_full = self.is_full
        data = self._messages.popleft()
        self._queued_bytes -= len(data)
        if was_full and not self.is_full and self._connection is not None:
            self._connection.resume_reading()
        return data

    def take_claim(self) -> Claim | None:
        """Return the claim (permission to hold memory) of the last message that `message` returned, or `None` if it is not large.

        The caller releases the claim.
        """
        claim, self.claim = self.claim, None
        return claim or (self._connection.take_claim() if self._connection is not None else None)

    def leave(self) -> None:
        """Drop further messages. The connection is kept for other requests if the stream ends within a second, else closed."""
        if self._connection is not None:
            self._connection.drain()

    def close(self) -> None:
        """Drop further messages and close the connection, so that the server notices that the stream is not read any more."""
        if self._connection is not None:
            self._connection.abort()

    # -- for the connection ----------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether a message is queued, or the stream has failed, so that `message` does not wait."""
        return bool(self._messages) or self._failure is not None

    @property
    def is_full(self) -> bool:
        """Whether so many bytes are queued that the connection must stop reading."""
        return self._queued_bytes > HIGH_WATER_BYTES

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the response body."""
        if self._failure is not None:
            return
        try:
            for piece in (data,) if self._decompressor is None else self._decompressor.pieces(data):
                for message in self.parser.feed(piece):
                    self._messages.append(message)
                    self._queued_bytes += len(message)
                if self.parser.is_too_large:
                    raise TooLarge(too_large(self._max_bytes), server=self._server)
        except TooLarge as error:
            self._failure = error
        except CodingError as error:
            self._failure = Malformed(f"the body {error}", server=self._server)
        self._wake()

    def end(self, failure: RequestFailure | None) -> None:
        """End the stream. After the queued messages, `message` raises `failure` or, without a failure, returns an empty result."""
        self._connection, self._failure = None, self._failure or failure
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
