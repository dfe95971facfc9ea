"""`HeaderCache`: recognizes the head of an HTTP message by its bytes, so that a peer's next message need not be parsed.

The messages of one peer mostly differ only in the values of a few fields. A head is cached after the parser has parsed it; the same bytes
would be parsed to the same result. In place of a value that varies, a new head may have any other visible characters: they are that
field's value, because a value ends only at the spaces before the end of its line. `http1_server` caches heads of requests, `http1_client`
heads of responses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, Self, TypeVar

MAX_HEADS = 4
"""Heads cached for one peer, for instance those of calls and of listings; the least recently used one is evicted."""

MAX_HEAD_BYTES = 4_096
"""Longest head that is cached."""

LENGTH = b"content-length"

_MAX_LENGTH_DIGITS = 10

_VISIBLE = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
"""Visible characters, with spaces only between them."""


class ParsedHead(Protocol):
    """The parsed form of a head."""

    @property
    def fields(self) -> Mapping[bytes, bytes]:
        """Values by lower-case field name."""
        ...

    @property
    def is_single(self) -> bool:
        """Whether no field occurs twice."""
        ...

    @property
    def length(self) -> int:
        """Bytes of the body; -1 if the head does not say."""
        ...

    def with_values(self, values: Mapping[bytes, bytes], length: int) -> Self:
        """Return a head that differs from this one in the values of these fields."""
        ...


HeadT = TypeVar("HeadT", bound=ParsedHead)


class HeaderCache(Generic[HeadT]):
    """Cached heads of one peer, the most recently used one first."""

    __slots__ = ("_heads", "_max_body_bytes", "_varies")

    def __init__(self, varies: Callable[[bytes], bool], max_body_bytes: int) -> None:
        """`varies` returns whether a field may differ between messages with the same cached head; `content-length` always may.

        Messages with a body over `max_body_bytes` are left to the parser.
        """
        self._varies = varies
        self._max_body_bytes = max_body_bytes
        self._heads: list[_CachedHead[HeadT]] = []

    def find(self, message: bytes) -> tuple[HeadT, bytes] | None:
        """Return head and body of a complete message if its head matches a cached one, else `None`."""
        heads = self._heads
        for cached in heads:
            body = cached.match(message, self._max_body_bytes)
            if body is not None:
                if cached is not heads[0]:
                    heads.remove(cached)
                    heads.insert(0, cached)
                return cached.head, body
        return None

    def keep(self, message: bytes, head: HeadT) -> None:
        """Cache the head of a complete message that the parser has parsed; ignore heads that are too long or have a field twice."""
        end = message.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES) + 4
        if end < 4 or not head.is_single or not 0 < len(message) - end == head.length <= self._max_body_bytes:
            return
        bytes_ = message[:end]
        lower = bytes_.lower()
        fields = {name: value for name, value in head.fields.items() if name == LENGTH or self._varies(name)}
        spans = [span for name, value in fields.items() if (span := _span(bytes_, lower, name, value))]
        if any(name == LENGTH for _, _, name in spans):
            self._heads.insert(0, _CachedHead(bytes_, sorted(spans), head))
            del self._heads[MAX_HEADS:]


class _CachedHead(Generic[HeadT]):
    __slots__ = ("_bytes", "_end", "_texts", "head")

    def __init__(self, bytes_: bytes, spans: list[tuple[int, int, bytes]], head: HeadT) -> None:
        """`head` is the parsed form of `bytes_`. Each span is start and end of the value of a varying field, and the field's name."""
        self.head = head
        """Parsed head of the last matching message."""
        self._bytes = bytes_
        starts = [0, *(stop for _, stop, _ in spans)]
        self._texts = [(bytes_[start : span[0]], span[2]) for start, span in zip(starts, spans, strict=False)]
        """The bytes before each varying value, and the field's name."""
        self._end = bytes_[starts[-1] :]

    def match(self, message: bytes, max_bytes: int) -> bytes | None:
        """Return the body of a complete message with this head, and update `head` if values differ; `None` if the head is another."""
        if not message.startswith(self._bytes):
            return self._match_values(message, max_bytes)
        body = message[len(self._bytes) :]
        return body if len(body) == self.head.length else None

    def _match_values(self, message: bytes, max_bytes: int) -> bytes | None:
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
        if at > MAX_HEAD_BYTES or not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS or int(length) != len(body) or not body:
            return None
        if len(body) > max_bytes:
            return None
        self.head = self.head.with_values(values, len(body))
        self._bytes = message[:at]
        return body


def _span(head: bytes, lower: bytes, name: bytes, value: bytes) -> tuple[int, int, bytes] | None:
    """Return start and end of a field's value in the head, and its name; `None` if the value is not there as it was parsed."""
    if not _VISIBLE.fullmatch(value):
        return None
    line = lower.find(b"\r\n%s:" % name)
    start = head.find(value, line + len(name) + 3)  # only spaces stand between the colon and the value
    return (start, start + len(value), name) if line >= 0 and start >= 0 else None
