"""`Exchange`: one request of the modern era and its answer over a `Pool`, for calls that need nothing else.

A short cut of `session` past the SDK's transport: decoded JSON in and out, failures in the SDK transport's own words (`http`),
which `session` translates for both. What it cannot do as that one does (a proxy, a sign-in, a redirect, another address form)
it leaves to that one: `open_exchange` and `request` answer `None`, before anything was sent or taken.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from pydantic_core import from_json, to_json

from gateway.config.models import HttpServer, ServerEntry
from gateway.egress.proxies import proxy_for
from gateway.egress.tls import tls_context
from gateway.errors import ToolFailed, UpstreamLost, UpstreamUnavailable
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, RpcError
from gateway.tools.base import Received
from gateway.tools.verbatim import decode_parts
from gateway.upstream.events import Events
from gateway.upstream.standins import LOST, NOT_SENT, TOO_LARGE, TooLarge, too_large, turned_away

if TYPE_CHECKING:
    from gateway.upstream.credentials import Credentials
    from gateway.upstream.pool import Answer, Pool, Stream

logger = logging.getLogger(__name__)

Hear = Callable[[str, JsonMapping], Awaitable[None]]
"""Takes a notification that comes before the answer."""

Progress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Takes how far a request is: of how much, and in words."""

MAX_KNOWN_HEADS = 1024
"""Heads of requests remembered: one for each tool, and one for each argument that is mirrored into a header."""

_N, _I = b"NI"
"""The letters that begin the numbers which JSON does not have."""

_FRAMING = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "expect", "keep-alive", "proxy-connection"}
)
"""Configured headers that would change how a request is framed: such a server is left to the SDK's transport."""

_TARGET = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,;=:@%/?]*")
_HOST = re.compile(r"[A-Za-z0-9\-._:]+")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
"""What goes out as it is; anything else, foremost a line break, does not."""


def open_exchange(server: str, entry: ServerEntry, credentials: Credentials | None, *, max_body_bytes: int) -> Exchange | None:
    """The short cut to a server, or `None` where its entry asks for more than plain requests. Opens no connection."""
    if not isinstance(entry, HttpServer) or credentials is not None:
        return None
    try:
        parts = urlsplit(entry.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if proxy_for(server, entry.url, os.environ) is not None:
            return None
    except (ValueError, UpstreamUnavailable):
        return None
    host, target = parts.hostname or "", (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    is_plain = parts.scheme in ("http", "https") and "@" not in parts.netloc and not parts.fragment
    fields = {
        "user-agent": "moongate",
        **{name.lower(): value for name, value in entry.headers.items()},
        "accept": "application/json, text/event-stream",
        "accept-encoding": "identity",
        "content-type": "application/json",
    }
    if not (is_plain and _HOST.fullmatch(host) and _TARGET.fullmatch(target)) or _FRAMING & fields.keys():
        return None
    if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(value) for name, value in fields.items()):
        return None
    from gateway.upstream.pool import Pool

    shown = f"[{host}]" if ":" in host else host
    shown += "" if parts.port is None else f":{port}"
    lines = [f"POST {target} HTTP/1.1", f"host: {shown}", *(f"{name}: {value}" for name, value in fields.items())]
    pool = Pool(server, host, port, tls=tls_context() if parts.scheme == "https" else None, max_body_bytes=max_body_bytes)
    return Exchange(server, pool, "\r\n".join(lines))


class Exchange:
    """Plain requests to one server. Made by `open_exchange`; its owner closes it."""

    speaks_both_eras = False
    """Whether it can do without headers, sessions and a stream that a 2025 server speaks on."""

    def __init__(self, server: str, pool: Pool, head: str) -> None:
        """`head` is the beginning of every request, without its last line break."""
        self._server = server
        self._pool = pool
        self._head = head
        self._known: dict[tuple[tuple[str, str], ...], bytes] = {}
        self._last = 0
        self._writer = RequestWriter()

    def close(self) -> None:
        """End every connection."""
        self._pool.close()

    async def request(
        self,
        method: str,
        params: JsonMapping,
        headers: Mapping[str, str],
        hear: Hear,
        progress: Progress | None = None,
        meta: JsonMapping | None = None,
    ) -> JsonObject | None:
        """The result of one request, or `None` where the SDK's transport must do it; then the server has not taken it.

        `meta` is what is to stand in the parameters as `_meta`, encoded once for all requests in a row that have the same object.

        Raises:
            RpcError: An error came back, or stands in for an answer (`http`).
            ToolFailed: The parameters cannot be sent.
        """
        fields = self._fields(headers)
        if fields is None:
            return None
        self._last = number = self._last + 1
        if progress is not None:
            meta = {**(meta or {}), "progressToken": number}
            hear = _hearing(number, progress, hear)
        parts = self._writer.parts(number, method, params, meta)
        head = b"%s\r\ncontent-length: %d\r\n\r\n" % (fields, sum(map(len, parts)))
        try:
            answer = await self._pool.send(b"".join((head, *parts)))
            if 300 <= answer.status < 400:
                return None
            if answer.stream is not None:
                return await self._streamed(answer, answer.stream, number, hear)
            return self._settle(answer, number)
        except TooLarge:
            raise RpcError(TOO_LARGE, too_large(self._pool.max_body_bytes)) from None
        except UpstreamUnavailable as error:
            raise RpcError(NOT_SENT, str(error)) from None
        except UpstreamLost as error:
            raise RpcError(LOST, f"connection lost: {error}") from None

    def _fields(self, headers: Mapping[str, str]) -> bytes | None:
        """The head of a request but its length; `None` where a value is none that goes out as it is."""
        key = tuple(headers.items())
        known = self._known.get(key)
        if known is None and all(_VALUE.fullmatch(value) for value in headers.values()):
            if len(self._known) >= MAX_KNOWN_HEADS:
                self._known.clear()
            known = self._known[key] = (self._head + "".join(f"\r\n{name}: {value}" for name, value in headers.items())).encode()
        return known

    def _settle(self, answer: Answer, number: int) -> JsonObject:
        status = answer.status
        headers = answer.headers
        if status >= 400:
            refused = turned_away(self._server, status, headers.get(b"retry-after", b"").decode("latin-1"))
            if refused is not None:
                raise refused
        if status == 202:
            raise RpcError(INVALID_REQUEST, "server answered a request with 202 Accepted")
        kind = headers.get(b"content-type", b"").lower()
        is_json = kind.startswith(b"application/json")
        if status >= 400:
            said = None
            with contextlib.suppress(RpcError):
                said = error_of(_decoded(b"".join(self._read(answer)))) if is_json else None
            if said is not None:
                raise said
            if status == 404:
                raise RpcError(METHOD_NOT_FOUND, "Not Found")
            raise RpcError(INTERNAL_ERROR, "Server returned an error response")
        if not is_json:
            raise RpcError(INVALID_REQUEST, f"Unexpected content type: {kind.decode('latin-1')}")
        try:
            message, encoded, verbatim = decode_parts(self._read(answer))
        except ValueError:
            raise _no_json() from None
        result = _result_of(message, number)
        if result is None:
            raise error_of(message) or RpcError(PARSE_ERROR, "Failed to parse JSON response: it answers no request of ours")
        return Received(result, encoded, verbatim)

    def _read(self, answer: Answer) -> list[bytes]:
        """The body, which is taken out of the answer, without its coding."""
        said, answer.parts = answer.parts, []
        inflate = self._inflate(answer)
        return said if inflate is None else [inflate(b"".join(said))]

    def _inflate(self, answer: Answer) -> Callable[[bytes], bytes] | None:
        """What takes off the coding that the server put on although none was asked for; `None` where there is none."""
        told = answer.headers.get(b"content-encoding")
        if told is None:
            return None
        coding = told.strip().lower()
        if coding in (b"identity", b""):
            return None
        if coding not in (b"gzip", b"x-gzip", b"deflate"):
            raise RpcError(PARSE_ERROR, "Failed to parse JSON response: its coding was not asked for")
        limit = self._pool.max_body_bytes
        inflater = zlib.decompressobj(wbits=47 if coding != b"deflate" else 15)

        def inflate(part: bytes) -> bytes:
            try:
                body = inflater.decompress(part, limit)
            except zlib.error:
                raise RpcError(PARSE_ERROR, "Failed to parse JSON response: its coding is broken") from None
            if inflater.unconsumed_tail:
                raise RpcError(TOO_LARGE, too_large(limit))
            return body

        return inflate

    async def _streamed(self, answer: Answer, stream: Stream, number: int, hear: Hear) -> JsonObject:
        """The answer at the end of an event stream."""
        events = Events(self._pool.max_body_bytes)
        try:
            inflate = self._inflate(answer)
            while part := await stream.part():
                for data in events.feed(part if inflate is None else inflate(part)):
                    message = _decoded(data, "SSE message")
                    result = _result_of(message, number)
                    if result is not None:
                        return result
                    if (error := error_of(message)) is not None:
                        raise error
                    await self._heard(message, hear)
                if events.is_too_large:
                    raise RpcError(TOO_LARGE, too_large(self._pool.max_body_bytes))
        except BaseException:
            stream.close()
            raise
        finally:
            stream.leave()
        raise RpcError(CONNECTION_CLOSED, "SSE stream ended without a response")

    async def _heard(self, message: JsonValue, hear: Hear) -> None:
        """A notification; a request has no place on the stream of a modern server, and gets no answer."""
        if not isinstance(message, dict):
            return
        fields = cast("JsonMapping", message)
        method, params = fields.get("method"), fields.get("params")
        if not isinstance(method, str) or "id" in fields:
            logger.debug("%s: a message without a place in a modern answer was dropped", self._server)
            return
        await hear(method, cast("JsonMapping", params) if isinstance(params, dict) else {})


def _hearing(number: int, progress: Progress, hear: Hear) -> Hear:
    """Hears the progress of request `number` too."""

    async def told(method: str, params: JsonMapping) -> None:
        if method == "notifications/progress" and params.get("progressToken") in (number, str(number)):
            await report(params, progress)
        else:
            await hear(method, params)

    return told


async def report(params: JsonMapping, progress: Progress) -> None:
    """Tell what a progress notification says, if it says something."""
    value, total, message = params.get("progress"), params.get("total"), params.get("message")
    if isinstance(value, int | float) and not isinstance(value, bool):
        await progress(
            float(value), float(total) if isinstance(total, int | float) else None, message if isinstance(message, str) else None
        )


def has_odd_number(encoded: bytes, value: JsonMapping) -> bool:
    """Whether what `to_json` made of `value` holds a number that JSON does not have; a text may hold the same letters."""
    # One letter, given as a number, is found twenty times faster than a word.
    if not (_N in encoded and encoded.find(b"NaN") >= 0) and not (_I in encoded and encoded.find(b"Infinity") >= 0):
        return False
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return True
    return False


def encode_message(message: JsonMapping) -> bytes:
    """A message, or a part of one, as it is sent. Raises `ToolFailed` where it cannot be."""
    try:
        body = to_json(message)
    except ValueError:  # half a character, which only an escape can write
        body = b"NaN"
    if not has_odd_number(body, message):
        return body if body != b"NaN" else json.dumps(message, separators=(",", ":")).encode()
    raise ToolFailed("The arguments hold a number that JSON does not have (NaN or infinity).")


class RequestWriter:
    """Requests over one connection as they are sent. What all of them say alike is encoded once, and what they are for is not copied."""

    def __init__(self) -> None:
        self._meta: JsonMapping | None = None
        self._encoded = b""
        """The last `_meta`, and the end of a request with it."""

    def parts(self, number: int, method: str, params: JsonMapping, meta: JsonMapping | None) -> tuple[bytes, bytes | memoryview, bytes]:
        """A request in parts that follow each other. Raises as `encode_message`."""
        start = b'{"jsonrpc":"2.0","id":%d,"method":%s,"params":' % (number, to_json(method))
        body = encode_message(params)
        if not meta:
            return start, body, b"}"
        if meta is not self._meta:
            self._encoded = b'"_meta":%s}}' % encode_message(meta)
            self._meta = meta
        return start, memoryview(body)[:-1], b"," + self._encoded if params else self._encoded


def _decoded(data: bytes, what: str = "JSON response") -> JsonValue:
    """Read by the parser that the SDK's transport uses too."""
    try:
        return from_json(data)
    except ValueError:
        raise _no_json(what) from None


def _no_json(what: str = "JSON response") -> RpcError:
    return RpcError(PARSE_ERROR, f"Failed to parse {what}: it is no JSON")


def _result_of(message: JsonValue, number: int) -> JsonObject | None:
    """The result in the answer to request `number`, which is none where it is an error too."""
    if not isinstance(message, dict):
        return None
    fields = cast("JsonMapping", message)
    result, said = fields.get("result"), fields.get("id")
    if "error" in fields and error_of(message) is not None:
        return None
    if fields.get("jsonrpc") != "2.0" or said is True or not (said == number or said == str(number)) or not isinstance(result, dict):
        return None
    return cast("JsonObject", result)


def error_of(message: JsonValue) -> RpcError | None:
    """The JSON-RPC error in an answer; the connection says which request it is for."""
    found = cast("JsonMapping", message).get("error") if isinstance(message, dict) else None
    if not isinstance(found, dict):
        return None
    error = cast("JsonMapping", found)
    code, text = error.get("code"), error.get("message")
    if not isinstance(code, int) or isinstance(code, bool) or not isinstance(text, str):
        return None
    return RpcError(code, text, error.get("data"))
