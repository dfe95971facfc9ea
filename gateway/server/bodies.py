"""Checks request bodies before they are parsed: they must be UTF-8 text of bounded size and structure. Used by every transport.

Python's `json.loads` also accepts UTF-16, UTF-32 and encoded surrogates. A proxy or policy in front of the gateway would read different
text, so only UTF-8 is accepted (RFC 8259, 8.1). `wire.json_limits` bounds the structure.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gateway.protocol import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR
from gateway.server.http_responses import Refusal
from gateway.wire.json_limits import MAX_PARTS, MAX_VALUES, has_too_many_parts, is_utf8_text

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

NOT_UTF8 = "Parse error: the message is not UTF-8 JSON. Send UTF-8 without a byte order mark."

TOO_MANY_PARTS = (
    f"The message has more than {MAX_PARTS} members, objects and lists, or lists of more than {MAX_VALUES} values. "
    "Send fewer, or put the data into a string or a file."
)

COUNTED_SCOPE_KEY = "moongate.counted"
"""ASGI scope key that is set when the whole request body has arrived, and a count found its JSON members and values within the limit.

The application then need not count them again before it parses the body."""


def problem_of(data: bytes, *, is_counted: bool = False) -> tuple[int, str] | None:
    """Check whether a message may be parsed as JSON. Return the code and text of a JSON-RPC error if not, else `None`.

    A message is rejected if it is not UTF-8, or has too many JSON members or values. With `is_counted`, members and values are not counted,
    because they have been counted before.
    """
    if not is_utf8_text(data):
        return PARSE_ERROR, NOT_UTF8
    return (INVALID_PARAMS, TOO_MANY_PARTS) if not is_counted and has_too_many_parts(data) else None


def has_foreign_charset(content_type: bytes) -> bool:
    """Whether a `Content-Type` header names a charset other than UTF-8. The extended form `charset*` (RFC 8187) is recognized too."""
    for parameter in content_type.lower().split(b";")[1:]:
        name, _, value = parameter.partition(b"=")
        is_utf_8 = value.strip().strip(b'"') in (b"utf-8", b"utf8")
        if name.strip() in (b"charset", b"charset*") and not is_utf_8:
            return True
    return False


class BufferedReceive:
    """An ASGI `receive` callable that allows reading a request's body in advance, with `read`.

    The application that calls the object later still receives the whole body.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen: deque[Message] = deque()
        self._body: bytes | None = None

    async def read(self, length: int) -> bytes | None:
        """Read the whole request body and return it; `None` if it does not have `length` bytes, or the client disconnected.

        Further calls return the same body.
        """
        if self._body is None:
            self._body = await self._read(length)
        return self._body

    async def _read(self, length: int) -> bytes | None:
        parts: list[bytes] = []
        size, has_more = 0, True
        while has_more:
            message = await self._receive()
            self._seen.append(message)
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            has_more = message.get("more_body", False)
            if size > length:
                return None
        return (parts[0] if len(parts) == 1 else b"".join(parts)) if size == length else None

    async def ended(self) -> None:
        """Wait until the client disconnects. Call this only after the whole body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def __call__(self) -> Message:
        """Return the next ASGI message of the request: first the messages that `read` has read, then new ones."""
        return self._seen.popleft() if self._seen else await self._receive()


class Utf8Bodies:
    """ASGI middleware that rejects a POST request whose body is too large (HTTP 413), is not UTF-8, or has too many JSON parts (400).

    The application receives the body of every other POST request whole, in one ASGI message.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, *, is_rpc: bool) -> None:
        """`max_bytes` is the maximum body size. If `is_rpc`, as for the MCP endpoint, rejections are JSON-RPC errors."""
        self._app = app
        self._is_rpc = is_rpc
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read and check the body of a POST request, then call the application with it. The bodies of other requests are not read here."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        is_rpc = self._is_rpc
        parts: list[bytes] = []
        size, has_more = 0, True
        while has_more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client disconnected
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            has_more = message.get("more_body", False)
            if size > self._max_bytes:
                await too_large(self._max_bytes).to_response(is_rpc=is_rpc)(scope, receive, send)
                return
        body = b"".join(parts)
        del parts
        problem = problem_of(body, is_counted=COUNTED_SCOPE_KEY in scope)
        if problem is not None:
            await Refusal(400, *problem).to_response(is_rpc=is_rpc)(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        del body

        async def receive_again() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receive_again, send)


def too_large(max_bytes: int) -> Refusal:
    """Return the rejection (HTTP 413) of a request body with more than `max_bytes`."""
    return Refusal(413, INVALID_REQUEST, f"The request body is larger than {max_bytes} bytes (`server.http.maxRequestBytes`).")
