"""`Repeats`: heads of HTTP messages that the parser has read, to be known again by their bytes: those of one peer mostly differ in values.

Nothing is read here that the parser did not read. What it made of these bytes it would make of them again, and visible characters in
place of the visible ones that it read as the value of a field are the value of that field: it knows no other end of it than the spaces
before the end of the line. The digits of a length are that length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, Self, TypeVar

MAX_HEADS = 4
"""Kept of one peer: calls, listings and what else it alternates with; the one used longest ago goes first."""

MAX_HEAD_BYTES = 4_096
"""Of a head that is kept."""

LENGTH = b"content-length"

_MAX_DIGITS = 10
"""Of a length."""

_VISIBLE = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
"""Characters, with spaces between them alone."""


class Said(Protocol):
    """What the parser made of a head."""

    @property
    def fields(self) -> Mapping[bytes, bytes]:
        """By name in lower case."""
        ...

    @property
    def is_single(self) -> bool:
        """No field was there twice."""
        ...

    @property
    def length(self) -> int:
        """Of the body; -1 where it was not told."""
        ...

    def with_values(self, values: Mapping[bytes, bytes], length: int) -> Self:
        """Of a message that says the same, but for these fields."""
        ...


S = TypeVar("S", bound=Said)


class Repeats(Generic[S]):
    """Of one peer."""

    __slots__ = ("_known", "_max_body_bytes", "_varies")

    def __init__(self, varies: Callable[[bytes], bool], max_body_bytes: int) -> None:
        """`varies` says of the name of a field whether nothing hangs on its value that is remembered; the length of a body always varies.

        A longer body than `max_body_bytes` is for the parser.
        """
        self._varies = varies
        self._max_body_bytes = max_body_bytes
        self._known: list[_Repeat[S]] = []
        """The one used last is the first."""

    def find(self, message: bytes) -> tuple[S, bytes] | None:
        """Head and body of a whole message with a head that is known, but for values that vary."""
        known = self._known
        for repeat in known:
            body = repeat.body(message, self._max_body_bytes)
            if body is not None:
                if repeat is not known[0]:
                    known.remove(repeat)
                    known.insert(0, repeat)
                return repeat.head, body
        return None

    def keep(self, message: bytes, head: S) -> None:
        """Know the head of a whole message again, which the parser began and ended with; one that is too long or odd is not kept."""
        end = message.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES) + 4
        if end < 4 or not head.is_single or not 0 < len(message) - end == head.length <= self._max_body_bytes:
            return
        bytes_ = message[:end]
        lower = bytes_.lower()
        fields = {name: value for name, value in head.fields.items() if name == LENGTH or self._varies(name)}
        places = [place for name, value in fields.items() if (place := _place(bytes_, lower, name, value))]
        if any(name == LENGTH for _, _, name in places):
            self._known.insert(0, _Repeat(bytes_, sorted(places), head))
            del self._known[MAX_HEADS:]


class _Repeat(Generic[S]):
    """One head."""

    __slots__ = ("_bytes", "_end", "_texts", "head")

    def __init__(self, bytes_: bytes, places: list[tuple[int, int, bytes]], head: S) -> None:
        """`head` is what the parser made of `bytes_`; in each of `places`, from there to there, is the value of the field of that name."""
        self.head = head
        """Of the message that was last."""
        self._bytes = bytes_
        starts = [0, *(stop for _, stop, _ in places)]
        self._texts = [(bytes_[start : place[0]], place[2]) for start, place in zip(starts, places, strict=False)]
        """What is before each value that varies, and the name of its field."""
        self._end = bytes_[starts[-1] :]

    def body(self, message: bytes, max_bytes: int) -> bytes | None:
        """The body of a whole message with this head, in which values may vary: then it is `head` that is another."""
        if not message.startswith(self._bytes):
            return self._varied(message, max_bytes)
        body = message[len(self._bytes) :]
        return body if len(body) == self.head.length else None

    def _varied(self, message: bytes, max_bytes: int) -> bytes | None:
        values: dict[bytes, bytes] = {}
        at = 0
        for text, name in self._texts:
            if not message.startswith(text, at):
                return None
            value = _VISIBLE.match(message, at + len(text), MAX_HEAD_BYTES)
            if value is None:
                return None
            values[name], at = value[0], value.end()
        if not message.startswith(self._end, at):
            return None
        at += len(self._end)
        length, body = values[LENGTH], message[at:]
        if at > MAX_HEAD_BYTES or not length.isdigit() or len(length) > _MAX_DIGITS or int(length) != len(body) or not body:
            return None
        if len(body) > max_bytes:
            return None
        self.head = self.head.with_values(values, len(body))
        self._bytes = message[:at]
        return body


def _place(head: bytes, lower: bytes, name: bytes, value: bytes) -> tuple[int, int, bytes] | None:
    """From where to where the one field of that name has its value, and the name; `None` where it is not found as it was read."""
    if not _VISIBLE.fullmatch(value):
        return None
    line = lower.find(b"\r\n%s:" % name)
    start = head.find(value, line + len(name) + 3)  # there is only space before it
    return (start, start + len(value), name) if line >= 0 and start >= 0 else None
