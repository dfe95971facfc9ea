"""Heads of HTTP/1.1 messages, a cache of parsed heads, and batched writes, all shared by `http1_server` and `http1_client`.

`HeaderCache` recognizes the head of a message by its bytes, so that it need not be parsed again. A head is cached after the parser has
parsed it; equal bytes would be parsed to an equal result. Most messages of a peer differ only in the values of a few fields. Therefore a
head also matches if only those values differ: at the position of a value that may differ, any visible characters are accepted, up to the
spaces that end the line, if any. The parser would return the same characters as the value.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.types import Scope

MAX_HEADS = 4
"""Maximum parsed heads of received messages that are cached for one peer, such as one head for calls and one for listings.

The least recently used head is evicted."""

MAX_CACHED_HEAD_BYTES = 4_096
"""Maximum bytes of a received head that is cached."""

LENGTH = b"content-length"

_VISIBLE = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
"""Matches the value of a header field: visible characters, with spaces only between them."""

MAX_DIGITS = 11
"""Maximum digits of a `Content-Length`; a longer number counts as unknown."""

MAX_OUTGOING_HEADS = 1024
"""Maximum heads of outgoing requests cached for one URL: one per tool, and per value of an argument that is mirrored into a header."""

_FRAMING_FIELDS = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "expect", "keep-alive", "proxy-connection"}
)
"""Fields that decide the framing or routing of a request. `OutgoingHeads` does not accept them."""

_TARGET = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,;=:@%/?]*")
_HOST = re.compile(r"[A-Za-z0-9\-._:]+")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
"""Matches field values that can be sent unchanged. A value with a line break does not match."""

_FIXED_RESPONSE_FIELDS = frozenset(
    {b"content-type", b"connection", b"keep-alive", b"proxy-connection", b"upgrade", b"trailer", b"transfer-encoding"}
)
"""Response fields that decide how the response is read. A cached head matches only if they are equal."""


class RequestHead:
    """The parsed head of an HTTP request. `HeaderCache` reuses it, or a copy with other field values, for later requests."""

    __slots__ = ("_facts", "fields", "is_single", "length", "method", "path")

    def __init__(self, facts: Scope) -> None:
        """`facts` is the ASGI scope of the request, which is not modified; `scope` returns a copy."""
        headers: list[tuple[bytes, bytes]] = facts["headers"]
        self._facts = facts
        self.method: str = facts["method"]
        self.path: str = facts["path"]
        self.fields: Mapping[bytes, bytes] = dict(headers)
        """Header field values by lower-case name. Of a repeated field, only the last value is included."""
        self.is_single = len(self.fields) == len(headers)
        """Whether each header field of the request occurs only once, so that `fields` has all values."""
        length = self.fields.get(LENGTH, b"")
        self.length = int(length) if length.isdigit() and len(length) <= MAX_DIGITS else -1
        """Value of `content-length`; -1 if it is missing or malformed."""

    @property
    def is_stream(self) -> bool:
        """Whether this is a GET request for an event stream, whose response only the client ends."""
        return self.method == "GET" and b"text/event-stream" in self.fields.get(b"accept", b"")

    @property
    def is_endless(self) -> bool:
        """Whether the server closes the response when it stops, because otherwise only the client would end it."""
        return self.is_stream

    @property
    def version(self) -> str:
        """HTTP version, such as `1.1`."""
        return self._facts["http_version"]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """All fields in their order, as a new list."""
        return [*self.fields.items()] if self.is_single else [*self._facts["headers"]]

    def scope(self) -> Scope:
        """Return a new ASGI scope for one request."""
        return {**self._facts, "headers": self.headers, "state": self._facts["state"].copy()}

    def with_values(self, values: Mapping[bytes, bytes], length: int) -> Self:
        """Return a copy for a message that has the field values in `values` and a body of `length` bytes. No field may occur twice."""
        other = object.__new__(type(self))
        other._facts, other.method, other.path, other.is_single = self._facts, self.method, self.path, True
        other.fields, other.length = {**self.fields, **values}, length
        return other


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Cached head of a received response with status 200 and a body of known length, after which the connection stays open."""

    fields: Mapping[bytes, bytes]
    length: int
    is_single: bool = True

    def with_values(self, values: Mapping[bytes, bytes], length: int) -> ResponseHead:
        """Return a copy for a message that has the field values in `values` and a body of `length` bytes."""
        return ResponseHead({**self.fields, **values}, length)


def varies_in_response(name: bytes) -> bool:
    """Return whether the value of the header field `name` may differ between a response and the cached head that is reused for it."""
    return name not in _FIXED_RESPONSE_FIELDS


class ParsedHead(Protocol):
    """The parsed head of a request or a response that `HeaderCache` stores."""

    @property
    def fields(self) -> Mapping[bytes, bytes]:
        """Values of the message's header fields, by lower-case name."""
        ...

    @property
    def is_single(self) -> bool:
        """Whether each header field of the message occurs only once. Only such a head is cached."""
        ...

    @property
    def length(self) -> int:
        """Value of `content-length`; -1 if it is missing or malformed."""
        ...

    def with_values(self, values: Mapping[bytes, bytes], length: int) -> Self:
        """Return a copy for a message that has the field values in `values` and a body of `length` bytes."""
        ...


HeadT = TypeVar("HeadT", bound=ParsedHead)


class HeaderCache(Generic[HeadT]):
    """Caches the parsed heads of the messages received from one peer, the most recently used head first."""

    __slots__ = ("_heads", "_max_body_bytes", "_varies")

    def __init__(self, varies: Callable[[bytes], bool], max_body_bytes: int) -> None:
        """`varies` returns whether the value of a header field, given its name, may differ between messages that share a cached head.

        `content-length` may always differ. Messages with a body over `max_body_bytes` are left to the parser.
        """
        self._varies = varies
        self._max_body_bytes = max_body_bytes
        self._heads: list[_CachedHead[HeadT]] = []

    def find(self, message: bytes) -> tuple[HeadT, bytes] | None:
        """Return the parsed head and the body of a complete message if its head matches a cached head, else `None`."""
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
        """Cache the head of a complete message that was parsed.

        Ignore a head that is too long or repeats a field, and a message whose body is empty, too long, or does not match `content-length`.
        """
        end = message.find(b"\r\n\r\n", 0, MAX_CACHED_HEAD_BYTES) + 4
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
        """`head` is the parsed form of `bytes_`.

        `spans` has an entry for each header field whose value may differ between messages that are otherwise equal: start and end of the
        value in `bytes_`, and the field's name.
        """
        self.head = head
        """Parsed head of the last matching message."""
        self._bytes = bytes_
        starts = [0, *(stop for _, stop, _ in spans)]
        self._texts = [(bytes_[start : span[0]], span[2]) for start, span in zip(starts, spans, strict=False)]
        """For each value that may differ: the bytes between the previous such value (or the start) and this one, and the field's name."""
        self._end = bytes_[starts[-1] :]

    def match(self, message: bytes, max_bytes: int) -> bytes | None:
        """Return the body of a complete message with this head, and update `head` if values differ; `None` for any other message."""
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
            value = _VISIBLE.match(message, at + len(text), MAX_CACHED_HEAD_BYTES)
            if value is None:
                return None
            values[name], at = value[0], value.end()
        if not message.startswith(self._end, at):
            return None
        at += len(self._end)
        length, body = values[LENGTH], message[at:]
        if at > MAX_CACHED_HEAD_BYTES or not length.isdigit() or len(length) > MAX_DIGITS or int(length) != len(body) or not body:
            return None
        if len(body) > max_bytes:
            return None
        self.head = self.head.with_values(values, len(body))
        self._bytes = message[:at]
        return body


def _span(head: bytes, lower: bytes, name: bytes, value: bytes) -> tuple[int, int, bytes] | None:
    """Return start and end of a field's value in a head, and the field's name; `None` if the head does not contain the value unchanged."""
    if not _VISIBLE.fullmatch(value):
        return None
    line = lower.find(b"\r\n%s:" % name)
    start = head.find(value, line + len(name) + 3)  # only spaces stand between the colon and the value
    return (start, start + len(value), name) if line >= 0 and start >= 0 else None


class OutgoingHeads:
    """Builds the heads of POST requests to one URL, except for `content-length` and the final line breaks, which `post_request` adds."""

    def __init__(self, url: str, fields: Mapping[str, str]) -> None:
        """Build heads for `url` that all contain `fields`, which are values by lower-case name.

        Raises:
            ValueError: The URL or a field cannot be sent unchanged, or a field would change the framing.
        """
        parts = urlsplit(url)
        self.url = url
        self.is_tls = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self.is_tls else 80)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        is_plain = parts.scheme in ("http", "https") and "@" not in parts.netloc and not parts.fragment
        if not (is_plain and _HOST.fullmatch(self.host) and _TARGET.fullmatch(target)) or _FRAMING_FIELDS & fields.keys():
            raise ValueError("URL or framing")
        if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(value) for name, value in fields.items()):
            raise ValueError("field")
        shown = f"[{self.host}]" if ":" in self.host else self.host
        shown += "" if parts.port is None else f":{parts.port}"
        self._start = "\r\n".join(
            [f"POST {target} HTTP/1.1", f"host: {shown}", *(f"{name}: {value}" for name, value in fields.items())]
        )
        self._heads: dict[tuple[tuple[str, str], ...], bytes] = {}

    def head(self, fields: tuple[tuple[str, str], ...]) -> bytes | None:
        """Return the head of a request with these additional `fields`, and cache the head; `None` if a value cannot be sent unchanged."""
        head = self._heads.get(fields)
        if head is None and all(_VALUE.fullmatch(value) for _, value in fields):
            head = (self._start + "".join(f"\r\n{name}: {value}" for name, value in fields)).encode()
            if len(self._heads) >= MAX_OUTGOING_HEADS:
                self._heads.clear()
            self._heads[fields] = head
        return head


def post_request(head: bytes, body: bytes) -> bytes:
    """Return the bytes of a POST request: `head` from `OutgoingHeads`, `content-length` and `body`."""
    return b"%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def get_request(head: bytes) -> bytes:
    """Return the bytes of a GET request with the URL and header fields of the POST request whose head is given."""
    return b"GET%b\r\n\r\n" % head.removeprefix(b"POST")


class BufferedConnection(Protocol):
    """A connection that buffers bytes until `flush` is called."""

    loop: asyncio.AbstractEventLoop
    """The connection's event loop, stored because `asyncio.get_running_loop` makes a system call in Python 3.11."""

    def flush(self) -> None:
        """Write the buffered bytes, if there are any and the connection is open."""
        ...


class WriteBatch:
    """Writes the buffers of several connections together, at the end of an event loop iteration."""

    def __init__(self) -> None:
        self._connections: list[BufferedConnection] = []

    def add(self, connection: BufferedConnection) -> None:
        """Call the connection's `flush` at the end of this event loop iteration."""
        if not self._connections:
            connection.loop.call_soon(self._flush)
        self._connections.append(connection)

    def _flush(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.flush()
