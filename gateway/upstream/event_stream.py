"""`Stream`: the messages of an event stream that answers a request over `pool`, taken while they come. Plain asyncio, as `pool`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.errors import UpstreamLost
from gateway.protocol import RpcError
from gateway.upstream.codings import uncoding
from gateway.upstream.events import Events
from gateway.upstream.large import Claim
from gateway.upstream.standins import TooLarge

if TYPE_CHECKING:
    from gateway.upstream.pool import Line, Pool

HIGH_WATER_BYTES = 1_048_576
"""Of messages nobody has taken yet; reading pauses beyond."""


class Stream:
    """The messages of an event stream, taken while they come."""

    def __init__(self, line: Line, pool: Pool, headers: Mapping[bytes, bytes]) -> None:
        """`headers` are those of the answer, which may have a coding; one message has no more bytes than a body of `pool`."""
        self._line: Line | None = line
        self._server = pool.server
        self._events = Events(pool.max_body_bytes)
        self._uncode = uncoding(headers, pool.max_body_bytes)
        self._messages: deque[bytes] = deque()
        self._size = 0
        self._failure: UpstreamLost | RpcError | None = None
        self._taker: asyncio.Future[None] | None = None
        self.claim: Claim | None = None
        """Of a large message, once the stream is over (from `Line`)."""

    @property
    def is_ready(self) -> bool:
        """One is there already, or never will be."""
        return bool(self._messages) or self._failure is not None

    @property
    def is_full(self) -> bool:
        """So much waits that no more is read."""
        return self._size > HIGH_WATER_BYTES

    async def message(self) -> bytes:
        """The data of the next one, which is never empty; empty at the end. One that is there already is not waited for.

        Raises:
            RpcError: Its coding cannot be read.
            TooLarge: It is too long.
            UpstreamLost: The stream broke off.
        """
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            if self._line is None:
                return b""
            self._taker = asyncio.get_running_loop().create_future()
            try:
                await self._taker
            finally:
                self._taker = None
        was_full = self.is_full
        data = self._messages.popleft()
        self._size -= len(data)
        if was_full and not self.is_full and self._line is not None:
            self._line.read_on()
        return data

    @property
    def pending_bytes(self) -> int:
        """Size of the message that has begun to come."""
        return self._events.pending_bytes

    def take_claim(self) -> Claim | None:
        """As `Line.take_claim`, for the message that was taken last."""
        claim, self.claim = self.claim, None
        return claim or (self._line.take_claim() if self._line is not None else None)

    @property
    def last_id(self) -> bytes:
        """As `Events.last_id`."""
        return self._events.last_id

    @property
    def retry_seconds(self) -> float | None:
        """As `Events.retry_seconds`."""
        return self._events.retry_seconds

    def leave(self) -> None:
        """Nothing more is wanted: the connection is kept if the end comes at once, else closed."""
        line = self._line
        if line is not None:
            line.drain()

    def close(self) -> None:
        """Nothing more is wanted, and the server is to know."""
        line = self._line
        if line is not None:
            line.abort()

    def feed(self, data: bytes) -> None:
        """More came (from `Line`)."""
        if self._failure is not None:
            return
        try:
            for piece in (data,) if self._uncode is None else self._uncode(data):
                for message in self._events.feed(piece):
                    self._messages.append(message)
                    self._size += len(message)
                if self._events.is_too_large:
                    raise TooLarge("", server=self._server)
        except (RpcError, TooLarge) as error:
            self._failure = error
        self._wake()

    def end(self, failure: UpstreamLost | None) -> None:
        """It is over (from `Line`)."""
        self._line, self._failure = None, self._failure or failure
        self._wake()

    def _wake(self) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)
