"""`Repeats`: heads that the parser has read, to be known again by their bytes: most requests of a connection differ in little but values.

Nothing is read here that the parser did not read. What it made of these bytes it would make of them again, and visible characters in
place of the visible ones that it read as the value of a field are the value of that field: it knows no other end of it than a space or
the end of the line. The digits of a length are that length.
"""

from __future__ import annotations

import re

from gateway.app.exchange import HIGH_WATER_BYTES
from gateway.server.head import LENGTH, VARYING, Head

MAX_HEADS = 4
"""Kept of one connection: calls, listings and what else its client alternates with; the one used longest ago goes first."""

MAX_HEAD_BYTES = 4_096
"""Of a head that is kept for as long as its connection."""

_MAX_DIGITS = len(str(HIGH_WATER_BYTES))
_VISIBLE = re.compile(rb"[!-~]+")


class Repeats:
    """Of one connection."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: list[Repeat] = []
        """The one used last is the first."""

    def find(self, request: bytes) -> tuple[Head, bytes] | None:
        """Head and body of a whole request with a head that is known, but for values that vary."""
        known = self._known
        for repeat in known:
            body = repeat.body(request)
            if body is not None:
                if repeat is not known[0]:
                    known.remove(repeat)
                    known.insert(0, repeat)
                return repeat.head, body
        return None

    def keep(self, request: bytes, head: Head) -> None:
        """Know the head of a whole request again, which the parser began and ended with; one that is too long or odd is not kept."""
        repeat = Repeat.of(request, head)
        if repeat is not None:
            self._known.insert(0, repeat)
            del self._known[MAX_HEADS:]


class Repeat:
    """One head."""

    __slots__ = ("_bytes", "_end", "_texts", "head")

    def __init__(self, bytes_: bytes, places: list[tuple[int, int, bytes]], head: Head) -> None:
        """`head` is what the parser made of `bytes_`; in each of `places`, from there to there, is the value of the field of that name."""
        self.head = head
        """Of the request that was last."""
        self._bytes = bytes_
        starts = [0, *(stop for _, stop, _ in places)]
        self._texts = [(bytes_[start:place[0]], place[2]) for start, place in zip(starts, places, strict=False)]
        """What is before each value that varies, and the name of its field."""
        self._end = bytes_[starts[-1] :]

    @classmethod
    def of(cls, request: bytes, head: Head) -> Repeat | None:
        """As `Repeats.keep`."""
        end = request.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES) + 4
        if end < 4 or not head.is_single or head.length != len(request) - end:
            return None
        bytes_ = request[:end]
        lower = bytes_.lower()
        places = [place for name in VARYING if name in head.fields and (place := _place(bytes_, lower, name, head.fields[name]))]
        return cls(bytes_, sorted(places), head) if any(name == LENGTH for _, _, name in places) else None

    def body(self, request: bytes) -> bytes | None:
        """The body of a whole request with this head, in which values may vary: then it is `head` that is another."""
        if not request.startswith(self._bytes):
            return self._varied(request)
        body = request[len(self._bytes) :]
        return body if len(body) == self.head.length else None

    def _varied(self, request: bytes) -> bytes | None:
        values: dict[bytes, bytes] = {}
        at = 0
        for text, name in self._texts:
            if not request.startswith(text, at):
                return None
            value = _VISIBLE.match(request, at + len(text), MAX_HEAD_BYTES)
            if value is None:
                return None
            values[name], at = value[0], value.end()
        if not request.startswith(self._end, at):
            return None
        at += len(self._end)
        length, body = values[LENGTH], request[at:]
        if at > MAX_HEAD_BYTES or not length.isdigit() or len(length) > _MAX_DIGITS or int(length) != len(body) or not body:
            return None
        if len(body) > HIGH_WATER_BYTES:
            return None
        self.head = self.head.with_values(values, len(body))
        self._bytes = request[:at]
        return body


def _place(head: bytes, lower: bytes, name: bytes, value: bytes) -> tuple[int, int, bytes] | None:
    """From where to where the one field of that name has its value, and the name; `None` where it is not found as it was read."""
    line = lower.find(b"\r\n%s:" % name)
    start = head.find(value, line + len(name) + 3)  # there is only space before it
    return (start, start + len(value), name) if line >= 0 and start >= 0 else None
