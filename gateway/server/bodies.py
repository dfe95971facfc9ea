"""Checks on the body of a request before a message is read from it: UTF-8 text within bounds. Used by every transport.

JSON in other encodings is valid for Python's `json.loads`, which detects UTF-16 and UTF-32 and accepts encoded surrogates. A proxy or a
policy in front of the gateway would read other text than the gateway, so only UTF-8 is accepted (RFC 8259, 8.1).

A member or an element costs microseconds in models, copies and rules, on the event loop. So a body may have only so many, counted before
it is parsed.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from gateway.protocol import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR
from gateway.server.answers import Refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

NOT_UTF8 = "Parse error: the message is not UTF-8 JSON. Send UTF-8 without a byte order mark."


MAX_PARTS = 50_000
"""Members of objects, objects and lists in one message. As many members cost about 50 ms on the SDK path."""

MAX_VALUES = 100_000
"""Members of objects and elements of lists in one message. As many numbers cost about 50 ms."""

WINDOW_BYTES = 65_536
"""Bytes counted at a time: less than a millisecond."""

_OTHER = bytes(code for code in range(256) if code not in b'":{[,')

TOO_MANY_PARTS = (
    f"The message has more than {MAX_PARTS} members, objects and lists, or lists of more than {MAX_VALUES} values. "
    "Send fewer, or put the data into a string or a file."
)


COUNTED_SCOPE_KEY = "moongate.counted"
"""ASGI scope key of a request whose body has come and has not too many parts."""


def problem_of(data: bytes, *, is_counted: bool = False) -> tuple[int, str] | None:
    """Return the JSON-RPC code and message if no message may be read from `data`."""
    if not is_utf8_text(data):
        return PARSE_ERROR, NOT_UTF8
    return (INVALID_PARAMS, TOO_MANY_PARTS) if not is_counted and has_too_many_parts(data) else None


def has_too_many_parts(data: bytes) -> bool:
    """Whether JSON text has more than `MAX_PARTS` members, objects and lists, or `MAX_VALUES` values. Small bodies cost one comparison."""
    if len(data) <= MAX_PARTS or (structure_of(data) <= MAX_PARTS and data.count(b",") < MAX_VALUES):
        return False
    counted = PartCounter()
    counted.feed(data)
    return counted.is_over


def structure_of(data: bytes) -> int:
    """The number of characters that begin a member, an object or a list, those in strings included: at least as many as there are."""
    return data.count(b":") + data.count(b"{") + data.count(b"[")


class PartCounter:
    """Counts the members, objects, lists and values of JSON text that comes in pieces, without those characters in strings."""

    __slots__ = ("_is_escaped", "_is_inside", "parts", "values")

    def __init__(self) -> None:
        self.parts = self.values = 0
        self._is_escaped = self._is_inside = False
        """The last piece ended with a backslash that concerns the next character; it ended inside a string."""

    @property
    def is_over(self) -> bool:
        """Whether a message may not have as many."""
        return self.parts > MAX_PARTS or self.values >= MAX_VALUES

    def feed(self, data: bytes) -> None:
        """Count one more piece, however it was cut. Nothing is counted beyond the limits."""
        for start in range(0, len(data), WINDOW_BYTES):
            if self.is_over:
                return
            self._count(data[start : start + WINDOW_BYTES])

    def _count(self, piece: bytes) -> None:
        if self._is_escaped:
            piece = piece[1:]
        self._is_escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
        unescaped = piece.replace(rb"\\", b"").replace(rb"\"", b"")
        bare = unescaped.translate(None, _OTHER).replace(b'""', b"")  # what is left is inside a string if it was before
        between = bare.split(b'"')
        outside = b"".join(between[1::2] if self._is_inside else between[::2])
        if len(between) % 2 == 0:
            self._is_inside = not self._is_inside
        self.parts += structure_of(outside)
        self.values += outside.count(b",")


def is_utf8_text(data: bytes) -> bool:
    """Whether `data` is UTF-8 text that JSON can be read from: no byte order mark, no NUL (every UTF-16 message has one)."""
    if data.startswith(codecs.BOM_UTF8) or b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def has_foreign_charset(content_type: bytes) -> bool:
    """Whether a `Content-Type` names a charset other than UTF-8, or names one in the extended form (RFC 8187), which nobody writes here."""
    for parameter in content_type.lower().split(b";")[1:]:
        name, _, value = parameter.partition(b"=")
        is_utf_8 = value.strip().strip(b'"') in (b"utf-8", b"utf8")
        if name.strip() in (b"charset", b"charset*") and not is_utf_8:
            return True
    return False


class Utf8Bodies:
    """ASGI middleware: answers 400 to a POST whose body `problem_of` refuses and 413 to one that is too large; passes others on whole."""

    def __init__(self, app: ASGIApp, max_bytes: int, *, is_rpc: bool) -> None:
        """`is_rpc` at the MCP endpoint: refusals are JSON-RPC errors."""
        self._app = app
        self._is_rpc = is_rpc
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the body, then run the application."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        is_rpc = self._is_rpc
        parts: list[bytes] = []
        size, has_more = 0, True
        while has_more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client left
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            has_more = message.get("more_body", False)
            if size > self._max_bytes:
                await too_large(self._max_bytes).to_answer(is_rpc=is_rpc)(scope, receive, send)
                return
        body = b"".join(parts)
        del parts
        problem = problem_of(body, is_counted=COUNTED_SCOPE_KEY in scope)
        if problem is not None:
            await Refusal(400, *problem).to_answer(is_rpc=is_rpc)(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        del body

        async def receive_again() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receive_again, send)


def too_large(max_bytes: int) -> Refusal:
    """The refusal of a request whose body is larger than the gateway takes."""
    return Refusal(413, INVALID_REQUEST, f"The request body is larger than {max_bytes} bytes (`server.http.maxRequestBytes`).")
