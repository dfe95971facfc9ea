"""`Sending`: the half of an HTTP connection that writes: header lines of every answer, writes that go out together, a reader that stops.

The base class of `http1.Http1`; plain asyncio as there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.app.heap import Heap
from gateway.app.unread import UnreadAnswers
from gateway.tools.together import Together

if TYPE_CHECKING:
    from uvicorn.server import ServerState

    from gateway.app.exchange import Exchange

LATE_SECONDS = 1.0
"""A timer that fires so long after it was due was held up by this process, and so was the peer it is for: it is set once more."""


def is_late(timer: asyncio.TimerHandle, loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a timer fires long after it was due, so that what its peer sent in time may still be unread."""
    return loop.time() - timer.when() > LATE_SECONDS


class Sending(asyncio.Protocol):
    """What a connection writes."""

    __slots__ = ("_common", "_held", "_serving", "_state", "_unread", "_unread_bytes", "common_count", "drained", "loop", "transport")

    together: Together
    heap: Heap
    """Of all connections."""
    unread_answers: UnreadAnswers
    """Likewise."""
    unread_seconds: float
    """How long an answer may wait for its reader; then the connection is cut."""

    def __init__(self, state: ServerState) -> None:
        """`state` has the header lines that uvicorn renews each second."""
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.drained: asyncio.Event | None = None
        """Set when the peer has read on; `None` while it reads."""
        self.common_count = 0
        self._state = state
        self._common: tuple[object, bytes] = None, b""
        self._serving: Exchange | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        """Bytes of the answers that the peer has not read, and of those that wait to be sent after them."""
        self._held = b""
        """Bytes to send at the end of this turn of the loop."""

    def common_fields(self) -> bytes:
        """The header lines of every answer."""
        fields = self._state.default_headers
        if self._common[0] is not fields:
            self._common = fields, b"".join([b"%s: %s\r\n" % pair for pair in fields])
            self.common_count = len(fields)
        return self._common[1]

    def write(self, data: bytes) -> None:
        """Send, after what is held."""
        if self._held:
            data, self._held = self._held + data, b""
        self.transport.write(data)
        if self.drained is not None:
            self._count_unread(len(data))

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send a large answer, one part after the other, after what is held."""
        self.flush()
        self.transport.writelines(parts)
        if self.drained is not None:
            self._count_unread(sum(map(len, parts)))
        self.heap.used()

    def write_soon(self, data: bytes) -> None:
        """Send at the end of this turn of the loop, with what other connections have to send."""
        if not self._held:
            self.together.add(self)
        self._held += data

    def flush(self) -> None:
        """As `Holding.flush`."""
        held, self._held = self._held, b""
        if held and not self.transport.is_closing():
            self.transport.write(held)
            if self.drained is not None:
                self._count_unread(len(held))

    async def room(self, size: int) -> None:
        """Wait until the peer has read on. The `size` bytes that are to be sent then count as unread meanwhile."""
        while self.drained is not None:
            self._count_unread(size)
            await self.drained.wait()

    def _count_unread(self, size: int) -> None:
        """Count bytes against the caller of the request that is answered."""
        caller = self._serving.caller if self._serving is not None else None
        if caller is not None and size:
            self._unread_bytes += size
            self.unread_answers.hold(self, caller, self._unread_bytes)

    def cut(self) -> None:
        """As `Unreading.cut`, soon: this may be called while the transport writes."""
        self.loop.call_soon(self.transport.abort)

    def pause_writing(self) -> None:
        """The peer does not read: wait for it, up to `unread_seconds`."""
        if self.drained is None:
            self.drained = asyncio.Event()
            self._unread = self.loop.call_later(self.unread_seconds, self._give_up)

    def _give_up(self) -> None:
        timer = self._unread
        if timer is not None and is_late(timer, self.loop):
            self._unread = self.loop.call_later(LATE_SECONDS, self._give_up)
        else:
            self.transport.abort()

    def resume_writing(self) -> None:
        """The peer reads again, or is gone."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        if self._unread_bytes:
            self._unread_bytes = 0
            self.unread_answers.drop(self)
        drained, self.drained = self.drained, None
        if drained is not None:
            drained.set()
