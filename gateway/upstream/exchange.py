"""`Exchange`: one request and its answer over a `Pool`, for calls that need nothing else: of the modern era, or in a 2025 session.

A short cut of `session` past the SDK's transport: decoded JSON in and out, failures in the SDK transport's own words (`http`),
which `session` translates for both. What it cannot do as that one does (a proxy, a sign-in, a redirect, another address form)
it leaves to that one: `open_exchange` and `request` answer `None`, before anything was sent or taken. A 2025 session is begun and
ended by that one, and heard on its stream (`links.HttpLink`); what the server says in the answers to these requests is taken here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import anyio
from pydantic_core import from_json, to_json

from gateway.config.models import HttpServer, ServerEntry
from gateway.egress.proxies import proxy_for
from gateway.egress.tls import tls_context
from gateway.errors import ToolFailed, UpstreamLost, UpstreamUnavailable
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, RpcError
from gateway.tools.base import Received, Releasable
from gateway.tools.verbatim import Decoded, decode, decode_parts
from gateway.tools.waits import CANCELLED, own_task
from gateway.upstream.answers import error_of, outcome_of
from gateway.upstream.codings import uncoding
from gateway.upstream.large import LARGE_BYTES, LargeBodies
from gateway.upstream.standins import (
    ACKNOWLEDGE_SECONDS,
    LOST,
    MAX_IN_PASSING,
    NO_SESSION,
    NOT_SENT,
    RESUME_ATTEMPTS,
    SESSION_GONE,
    TOO_LARGE,
    Crowded,
    TooLarge,
    is_session_gone,
    no_answer,
    too_large,
    turned_away,
)

if TYPE_CHECKING:
    from gateway.tools.context import CallContext
    from gateway.upstream.credentials import Credentials
    from gateway.upstream.event_stream import Stream
    from gateway.upstream.pool import Answer, Pool

logger = logging.getLogger(__name__)

Hear = Callable[[str, JsonMapping, "CallContext | None"], Awaitable[None]]
"""Takes a notification that comes before the answer, and the call that it is for."""

Headers = tuple[tuple[str, str], ...]
"""What a request says beside its body; of those that are alike the very same, whose head is found sooner."""

Progress = Callable[[float, float | None, str | None], None]
"""Takes a progress report of a request (value, total, message) without waiting."""

FIRST_NUMBER = 1_000_000_001
"""Ids of our requests begin here where the SDK's dispatcher, which counts from one on the same connection, has its own."""

RETRY_SECONDS = 1.0
"""Before a stream is taken up again whose server does not say when; as in the SDK's transport."""

LEAST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 60.0
"""What a server may say."""

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


def open_exchange(
    server: str, entry: ServerEntry, credentials: Credentials | None, *, max_body_bytes: int, bodies: LargeBodies | None = None
) -> Exchange | None:
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
    tls = tls_context() if parts.scheme == "https" else None
    pool = Pool(server, host, port, tls=tls, max_body_bytes=max_body_bytes, bodies=bodies)
    return Exchange(server, pool, "\r\n".join(lines))


@dataclass(frozen=True, slots=True)
class Joined:
    """A 2025 session that is up."""

    headers: Mapping[str, str]
    """By which the server knows its requests."""
    take: Callable[[JsonObject, CallContext | None], None]
    """Takes a request of the server's, made during this call."""
    pass_on: Callable[[bytes], None]
    """Has a message sent (`Exchange.tell`) that nobody waits for."""


class Exchange:
    """Plain requests to one server. Made by `open_exchange`; its owner closes it."""

    def __init__(self, server: str, pool: Pool, head: str) -> None:
        """`head` is the beginning of every request, without its last line break."""
        self._server = server
        self._pool = pool
        self._head = head
        self._known: dict[Headers, bytes] = {}
        self._last = 0
        self._writer = RequestWriter()
        self._joined: Joined | None = None
        self._passing = anyio.Semaphore(MAX_IN_PASSING)

    @property
    def speaks_both_eras(self) -> bool:
        """Whether requests to a 2025 server may go by it too."""
        return self._joined is not None

    def join(self, session: Joined) -> None:
        """From now on requests are part of this session, and answered as by a 2025 server, until that sets a cookie."""
        self._joined = session
        self._last = max(self._last, FIRST_NUMBER - 1)

    def close(self) -> None:
        """End every connection."""
        self._pool.close()

    async def request(
        self,
        method: str,
        params: JsonMapping,
        headers: Headers,
        hear: Hear,
        progress: Progress | None = None,
        meta: JsonMapping | None = None,
        ctx: CallContext | None = None,
    ) -> JsonObject | None:
        """The result of one request, or `None` where the SDK's transport must do it; then the server has not taken it.

        `meta` is what is to stand in the parameters as `_meta`, encoded once for all requests in a row that have the same object; `ctx` is
        the call of a request in a 2025 session, whose server may ask something on the way. Cancelling it cancels it at the server.

        Raises:
            RpcError: An error came back, or stands in for an answer (`http`).
            ToolFailed: The parameters cannot be sent.
        """
        joined = self._joined
        fields = self._fields(headers if joined is None else tuple({**dict(headers), **joined.headers}.items()))
        if fields is None:
            return None
        self._last = number = self._last + 1
        if progress is not None:
            meta = {**(meta or {}), "progressToken": number}
            hear = _hearing(number, progress, hear)
        parts = self._writer.parts(number, method, params, meta)
        body = b"".join(parts)
        try:
            caller = ctx.principal.id if ctx is not None else ""
            is_call = method == "tools/call"
            answer = await self._pool.send(b"%b\r\ncontent-length: %d\r\n\r\n%b" % (fields, len(body), body), caller)
            if 300 <= answer.status < 400:
                return None
            if joined is not None and b"set-cookie" in answer.headers:
                self._joined = None  # the SDK's client keeps cookies, by which a balancer may find the session
            if answer.stream is not None:
                return await self._streamed(answer.stream, number, hear, joined, ctx, is_call=is_call)
            is_large = answer.claim is not None
            return await self._settled(answer, number, joined, is_call=is_call) if is_large else self._settle(answer, number, joined)
        except CANCELLED:
            if joined is not None:
                joined.pass_on(cancellation(number))
            raise
        except TooLarge:
            raise RpcError(TOO_LARGE, too_large(self._pool.max_body_bytes)) from None
        except Crowded as error:
            raise RpcError(TOO_LARGE, str(error)) from None
        except UpstreamUnavailable as error:
            raise RpcError(NOT_SENT, str(error)) from None
        except UpstreamLost as error:
            raise RpcError(LOST, f"connection lost: {error}") from None

    async def tell(self, message: bytes, headers: Mapping[str, str]) -> None:
        """Have a 2025 server take what has no answer, in the session of these `headers`; one that does not take it in time goes without."""
        fields = self._fields(tuple(headers.items()))
        if fields is None:
            return
        async with self._passing:
            with anyio.move_on_after(ACKNOWLEDGE_SECONDS):
                try:
                    answer = await self._pool.send(b"%s\r\ncontent-length: %d\r\n\r\n%s" % (fields, len(message), message))
                    if answer.stream is not None:
                        answer.stream.close()
                except (UpstreamLost, UpstreamUnavailable) as error:
                    logger.debug("%s: not taken: %s", self._server, error)

    def _fields(self, headers: Headers) -> bytes | None:
        """The head of a request but its length, remembered; `None` where a value is none that goes out as it is."""
        known = self._known.get(headers)
        if known is None and (known := self._spelled(headers)) is not None:
            if len(self._known) >= MAX_KNOWN_HEADS:
                self._known.clear()
            self._known[headers] = known
        return known

    def _spelled(self, headers: Headers) -> bytes | None:
        if not all(_VALUE.fullmatch(value) for _, value in headers):
            return None
        return (self._head + "".join(f"\r\n{name}: {value}" for name, value in headers)).encode()

    async def _settled(self, answer: Answer, number: int, joined: Joined | None, *, is_call: bool) -> JsonObject:
        """As `_settle`, of a large answer."""
        await own_task()
        bodies = self._pool.bodies
        assert bodies is not None, "they gave the claim"
        if not is_call or answer.status != 200 or not _is_json(answer):
            result = await bodies.work(lambda: self._settle(answer, number, joined))
            if isinstance(result, Received):
                result.claim = answer.claim
            return result
        parts = await bodies.work(lambda: self._read(answer))
        (message, encoded, verbatim), claim = await self._read_large(bodies, parts, answer.claim, "JSON response", is_call=True)
        outcome = outcome_of(message, number)
        if isinstance(outcome, dict):
            return Received(outcome, encoded, verbatim, claim)
        raise outcome or no_answer()

    async def _read_large(
        self, bodies: LargeBodies, parts: list[bytes], claim: Releasable | None, what: str, *, is_call: bool
    ) -> tuple[Decoded, Releasable | None]:
        """A large message, and its claim or what stands in for it."""
        await own_task()
        try:
            return await bodies.read(parts, claim, lambda said: is_call)
        except ValueError:
            raise _no_json(what) from None
        except ToolFailed as error:
            raise RpcError(TOO_LARGE, str(error)) from None

    def _settle(self, answer: Answer, number: int, joined: Joined | None) -> JsonObject:
        status = answer.status
        headers = answer.headers
        if status >= 400:
            refused = turned_away(self._server, status, headers.get(b"retry-after", b"").decode("latin-1"))
            if refused is not None:
                raise refused
        if status == 202:
            raise RpcError(INVALID_REQUEST, "server answered a request with 202 Accepted")
        is_json = _is_json(answer)
        if status >= 400:
            body = b"".join(self._read(answer))
            if joined is not None and "mcp-session-id" in joined.headers and is_session_gone(status, body):
                raise RpcError(SESSION_GONE, NO_SESSION)
            said = None
            with contextlib.suppress(RpcError):
                said = error_of(_decoded(body)) if is_json else None
            if said is not None:
                raise said
            if status == 404:
                raise RpcError(METHOD_NOT_FOUND, "Not Found")
            raise RpcError(INTERNAL_ERROR, "Server returned an error response")
        if not is_json:
            kind = headers.get(b"content-type", b"").lower().decode("latin-1")
            raise RpcError(INVALID_REQUEST, f"Unexpected content type: {kind}")
        try:
            message, encoded, verbatim = decode_parts(self._read(answer))
        except ValueError:
            raise _no_json() from None
        outcome = outcome_of(message, number)
        if isinstance(outcome, dict):
            return Received(outcome, encoded, verbatim)
        raise outcome or no_answer()

    def _read(self, answer: Answer) -> list[bytes]:
        """The body, which is taken out of the answer, without its coding."""
        said, answer.parts = answer.parts, []
        uncode = uncoding(answer.headers, self._pool.max_body_bytes)
        return said if uncode is None else list(uncode(b"".join(said)))

    async def _streamed(
        self, stream: Stream, number: int, hear: Hear, joined: Joined | None, ctx: CallContext | None, *, is_call: bool
    ) -> JsonObject:
        """The answer at the end of an event stream; that of a 2025 server may break off and be taken up again."""
        last_id, seconds = b"", RETRY_SECONDS
        while True:
            found, failure = None, RpcError(CONNECTION_CLOSED, "SSE stream ended without a response")
            try:
                found = await self._answer_in(stream, number, hear, joined, ctx, is_call=is_call)
            except TooLarge:
                raise
            except UpstreamLost as error:
                failure = error
            if found is not None:
                return found
            last_id = stream.last_id or last_id
            if joined is None or not last_id:
                raise failure
            await own_task()
            if stream.retry_seconds is not None:
                seconds = min(max(stream.retry_seconds, LEAST_RETRY_SECONDS), MAX_RETRY_SECONDS)
            stream = await self._taken_up(joined, last_id, seconds)

    async def _answer_in(
        self, stream: Stream, number: int, hear: Hear, joined: Joined | None, ctx: CallContext | None, *, is_call: bool
    ) -> JsonObject | None:
        try:
            while data := await stream.message():
                claim, bodies = stream.take_claim(), self._pool.bodies
                parts = [data]
                del data
                if sum(map(len, parts)) >= LARGE_BYTES and bodies is not None:
                    (message, encoded, verbatim), claim = await self._read_large(bodies, parts, claim, "SSE message", is_call=is_call)
                else:
                    try:
                        message, encoded, verbatim = decode(parts[0])
                    except ValueError:
                        raise _no_json("SSE message") from None
                outcome = outcome_of(message, number)
                if isinstance(outcome, dict):
                    return Received(outcome, encoded, verbatim, claim)
                if outcome is not None:
                    raise outcome
                await own_task()
                await self._heard(message, hear, joined, ctx)
        except BaseException:
            stream.close()
            raise
        finally:
            stream.leave()
        return None

    async def _taken_up(self, joined: Joined, last_id: bytes, seconds: float) -> Stream:
        """The rest of a stream that ended before its answer, after so many (2025-11-25: Streamable HTTP, Resumability)."""
        head = self._spelled((*joined.headers.items(), ("last-event-id", last_id.decode("latin-1"))))
        for _ in range(RESUME_ATTEMPTS if head is not None else 0):
            await anyio.sleep(seconds)
            with contextlib.suppress(UpstreamUnavailable, UpstreamLost):
                answer = await self._pool.send(b"GET%b\r\n\r\n" % (head or b"").removeprefix(b"POST"))
                if answer.stream is not None:
                    return answer.stream
        raise RpcError(CONNECTION_CLOSED, "SSE stream ended without a response")

    async def _heard(self, message: JsonValue, hear: Hear, joined: Joined | None, ctx: CallContext | None) -> None:
        """A notification, or a request of a 2025 server's; on the stream of a modern one that has no place, and gets no answer."""
        if not isinstance(message, dict):
            return
        fields = cast("JsonObject", message)
        method, params = fields.get("method"), fields.get("params")
        if not isinstance(method, str) or not isinstance(params, dict | None):
            logger.debug("%s: a message without a place in an answer was dropped", self._server)
        elif "id" not in fields:
            await hear(method, cast("JsonMapping", params or {}), ctx)
        elif joined is not None:
            joined.take(fields, ctx)
        else:
            logger.debug("%s: a request in an answer was dropped, as modern servers ask in results", self._server)


def _is_json(answer: Answer) -> bool:
    return answer.headers.get(b"content-type", b"").lower().startswith(b"application/json")


def _hearing(number: int, progress: Progress, hear: Hear) -> Hear:
    """Hears the progress of request `number` too."""

    async def told(method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        if method == "notifications/progress" and params.get("progressToken") in (number, str(number)):
            report(params, progress)
        else:
            await hear(method, params, ctx)

    return told


def report(params: JsonMapping, progress: Progress) -> None:
    """Pass a progress notification to `progress`; one without a usable value is dropped."""
    value, total, message = params.get("progress"), params.get("total"), params.get("message")
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer that no float holds
            of = float(total) if isinstance(total, int | float) else None
            progress(float(value), of, message if isinstance(message, str) else None)


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
        self._methods: dict[str, bytes] = {}
        """JSON of those that were sent, of which there are few."""
        self._meta: JsonMapping | None = None
        self._encoded = b""
        """The last `_meta`, and the end of a request with it."""

    def parts(self, number: int, method: str, params: JsonMapping, meta: JsonMapping | None) -> tuple[bytes, bytes | memoryview, bytes]:
        """A request in parts that follow each other. Raises as `encode_message`."""
        said = self._methods.get(method)
        if said is None:
            said = self._methods[method] = to_json(method)
        start = b'{"jsonrpc":"2.0","id":%d,"method":%s,"params":' % (number, said)
        body = encode_message(params)
        if not meta:
            return start, body, b"}"
        if meta is not self._meta:
            self._encoded = b'"_meta":%s}}' % encode_message(meta)
            self._meta = meta
        return start, memoryview(body)[:-1], b"," + self._encoded if params else self._encoded


def cancellation(number: int) -> bytes:
    """What tells a server that a request of ours is not waited for any more."""
    params = {"requestId": number, "reason": "caller cancelled"}
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}, separators=(",", ":")).encode()


def _decoded(data: bytes) -> JsonValue:
    """Read by the parser that the SDK's transport uses too."""
    try:
        return from_json(data)
    except ValueError:
        raise _no_json() from None


def _no_json(what: str = "JSON response") -> RpcError:
    return RpcError(PARSE_ERROR, f"Failed to parse {what}: it is no JSON")
