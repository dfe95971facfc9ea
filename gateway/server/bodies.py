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
"""Members of objects, objects and lists in one message. As many members cost about 0.2 s on the SDK path."""

MAX_VALUES = 100_000
"""Members of objects and elements of lists in one message. As many numbers cost about 0.2 s."""

TOO_MANY_PARTS = (
    f"The message has more than {MAX_PARTS} members, objects and lists, or lists of more than {MAX_VALUES} values. "
    "Send fewer, or put the data into a string or a file."
)


def problem_of(data: bytes) -> tuple[int, str] | None:
    """Return the JSON-RPC code and message if no message may be read from `data`."""
    if not is_utf8_text(data):
        return PARSE_ERROR, NOT_UTF8
    return (INVALID_PARAMS, TOO_MANY_PARTS) if has_too_many_parts(data) else None


def has_too_many_parts(data: bytes) -> bool:
    """Whether JSON text has more than `MAX_PARTS` members, objects and lists, or `MAX_VALUES` values. Small bodies cost one comparison."""
    if len(data) <= MAX_PARTS or not _has_many(data):
        return False
    unescaped = data.replace(rb"\\", b"").replace(rb"\"", b"")
    return _has_many(b"".join(unescaped.split(b'"')[::2]))  # what is outside strings


def _has_many(data: bytes) -> bool:
    return data.count(b":") + data.count(b"{") + data.count(b"[") > MAX_PARTS or data.count(b",") >= MAX_VALUES


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
        problem = problem_of(body)
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
