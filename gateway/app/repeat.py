"""`Repeat`: a head that the parser has read, to be known again by its bytes: most requests of a connection differ in nothing but a length.

Nothing is read here that the parser did not read: what it made of these bytes it would make of them again, and the digits of a length
that stand where it read digits are a length.
"""

from __future__ import annotations

from gateway.app.exchange import HIGH_WATER_BYTES
from gateway.server.head import Head

MAX_HEAD_BYTES = 4_096
"""Of a head that is kept for as long as its connection."""

_MAX_DIGITS = len(str(HIGH_WATER_BYTES))


class Repeat:
    """Of one connection."""

    __slots__ = ("_after", "_before", "_bytes", "_length", "head")

    def __init__(self, bytes_: bytes, start: int, stop: int, head: Head) -> None:
        """`head` is what the parser made of `bytes_`, which tell the length of the body from `start` to `stop`."""
        self.head = head
        self._bytes = bytes_
        self._before, self._after = bytes_[:start], bytes_[stop:]
        self._length = int(bytes_[start:stop])

    @classmethod
    def of(cls, request: bytes, head: Head) -> Repeat | None:
        """The head of a whole request that the parser began and ended with; `None` where it is too long to be kept."""
        end = request.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES) + 4
        told = request[:end].lower().find(b"\r\ncontent-length:")
        if end < 4 or told < 0 or head.length != len(request) - end:
            return None
        length = head.fields[b"content-length"]
        start = request.find(length, told)
        return cls(request[:end], start, start + len(length), head)

    def body(self, request: bytes) -> bytes | None:
        """The body of a whole request with this head, which may have another length: then it is `head` that is another."""
        if request.startswith(self._bytes):
            body = request[len(self._bytes) :]
            return body if len(body) == self._length else None
        if not request.startswith(self._before):
            return None
        start = len(self._before)
        stop = request.find(self._after, start, start + _MAX_DIGITS + len(self._after))
        length = request[start:stop] if stop > 0 else b""
        body = request[stop + len(self._after) :]
        if not body or not length.isdigit() or int(length) != len(body) or len(body) > HIGH_WATER_BYTES:
            return None
        self.head = self.head.of_length(length)
        self._bytes, self._length = request[: -len(body)], len(body)
        return body
