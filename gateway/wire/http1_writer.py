"""`ConnectionWriter`: the writing half of an HTTP server connection; base class of `http1_server.ServerConnection`.

It writes the header fields of every response, sends small responses of one turn of the event loop together, and limits how long and how
much a client may leave unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, Protocol

from gateway.wire.heap import Heap
from gateway.wire.http1_exchange import Exchange, HeadT
from gateway.wire.http1_messages import WriteBatch

if TYPE_CHECKING:
    from uvicorn.server import ServerState

LATE_SECONDS = 1.0
"""If a timer fires so long after it was due, this process was held up, and its peer may have been too: the timer is set once more."""


def is_late(timer: asyncio.TimerHandle, loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether a timer fires so late that bytes which the peer sent in time may still be unread."""
    return loop.time() - timer.when() > LATE_SECONDS


class UnreadConnection(Protocol):
    """A connection whose client does not read its responses."""

    def cut(self) -> None:
        """Close the connection and drop what is not sent."""
        ...


class UnreadResponses(Protocol[HeadT]):
    """Counts unread bytes of responses, and cuts connections above a limit."""

    def hold(self, connection: UnreadConnection, exchange: Exchange[HeadT], size: int, /) -> bool:
        """Count `size` unread bytes for a connection, in place of its former figure; return `False` if the request has no known caller."""
        ...

    def drop(self, connection: UnreadConnection, /) -> None:
        """Forget the unread bytes of a connection."""
        ...


class ConnectionWriter(asyncio.Protocol, Generic[HeadT]):
    """Writes the responses of one connection."""

    __slots__ = (
        "_buffer", "_common", "_current", "_state", "_unread_bytes", "_unread_timer", "common_count", "drained", "loop", "transport",
    )

    write_batch: WriteBatch
    heap: Heap
    unread_responses: UnreadResponses[HeadT]
    unread_seconds: float
    """How long a response may stay unread before the connection is cut."""

    def __init__(self, state: ServerState) -> None:
        """`state` holds the default header fields, which uvicorn replaces each second."""
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.drained: asyncio.Event | None = None
        """As `ExchangeConnection.drained`."""
        self.common_count = 0
        self._state = state
        self._common: tuple[object, bytes] = None, b""
        self._current: Exchange[HeadT] | None = None
        """The request that is being answered, or was answered last."""
        self._unread_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        """Bytes of responses that the client has not read, and of those that wait to be sent after them."""
        self._buffer = b""
        """Bytes to send at the end of this turn of the event loop."""

    def common_fields(self) -> bytes:
        """As `ExchangeConnection.common_fields`."""
        fields = self._state.default_headers
        if self._common[0] is not fields:
            self._common = fields, b"".join([b"%s: %s\r\n" % pair for pair in fields])
            self.common_count = len(fields)
        return self._common[1]

    def write(self, data: bytes) -> None:
        """Send bytes, after buffered ones."""
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        self.transport.write(data)
        if self.drained is not None:
            self._count_unread(len(data))

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send a large response in parts, after buffered bytes."""
        self.flush()
        self.transport.writelines(parts)
        if self.drained is not None:
            self._count_unread(sum(map(len, parts)))
        self.heap.used()

    def write_soon(self, data: bytes) -> None:
        """Buffer bytes until the end of this turn of the event loop."""
        if not self._buffer:
            self.write_batch.add(self)
        self._buffer += data

    def flush(self) -> None:
        """As `BufferedConnection.flush`."""
        data, self._buffer = self._buffer, b""
        if data and not self.transport.is_closing():
            self.transport.write(data)
            if self.drained is not None:
                self._count_unread(len(data))

    async def wait_drained(self, size: int) -> None:
        """Wait until the client reads again. The `size` bytes that are to be sent then count as unread meanwhile."""
        while self.drained is not None:
            self._count_unread(size)
            await self.drained.wait()

    def _count_unread(self, size: int) -> None:
        if size and self._current is not None and self.unread_responses.hold(self, self._current, self._unread_bytes + size):
            self._unread_bytes += size

    def cut(self) -> None:
        """As `UnreadConnection.cut`, in the next turn: the transport may be writing."""
        self.loop.call_soon(self.transport.abort)

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read."""
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
