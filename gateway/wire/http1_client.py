"""`ConnectionPool`: keep-alive HTTP/1.1 connections to one origin, over which requests to a remote MCP server are sent.

Used by `upstream.carriers.http_carrier`.

Responses are parsed by httptools (llhttp, C, MIT) in its strict mode: a response whose framing is ambiguous closes its connection. A
connection carries one request at a time, and no request is sent twice. The caller's cancel scope is the deadline of a request; a cancelled
request closes its connection. The connect function is injected (`egress.tcp`).

Decided: asyncio protocols with a parser in C. Because: a request costs 13 times less CPU than with httpx2, and a task group, streams and
scopes per request would cost more than the request. Instead of: httpx2, or aiohttp (3 times slower). Revisit when: the SDK's HTTP transport
costs about as little.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

import httptools

from gateway.errors import OutcomeUnknown, RequestFailure, TooLarge, Unreachable
from gateway.wire.http1_messages import HeaderCache, ResponseHead, WriteBatch, varies_in_response
from gateway.wire.http1_response import Response
from gateway.wire.message_sizes import CLAIM_WAIT_SECONDS, LARGE_BYTES, Claim, Claims, crowded, too_large
from gateway.wire.sse import EventStream

MAX_HEAD_BYTES = 65_536
"""Maximum bytes of a response head, and of other bytes (such as chunk sizes) between two parts of a body."""

MAX_IDLE = 64
"""Maximum number of idle connections that are kept open for later requests, as in the MCP SDK's transport."""

IDLE_SECONDS = 60.0
"""Seconds after which a connection without a request is closed."""

MIN_SWEEP_SECONDS = 1.0
"""Shortest time between two sweeps that close idle connections."""

LONG_BYTES = 65_536
"""Minimum number of missing body bytes that the connection stores itself, instead of passing them to the parser, which would copy them."""

DRAIN_SECONDS = 1.0
"""Seconds for which a connection stays open after its event stream is no longer read, so that the response can end and the connection be
reused.
"""


class ConnectionPool:
    """Keeps connections to one origin open for further requests. Belongs to one event loop; its owner calls `close`."""

    def __init__(
        self,
        server: str,
        connect: Callable[[Callable[[], ClientConnection]], Awaitable[ClientConnection]],
        *,
        max_body_bytes: int,
        claims: Claims | None = None,
    ) -> None:
        """`server` names the server in errors. `connect` opens a connection. `claims` must grant memory before a large response is read."""
        self.server = server
        self.claims = claims
        self.max_body_bytes = max_body_bytes
        self._connect = connect
        self._idle: list[ClientConnection] = []
        """Open connections without a request in progress; the least recently used connection is first."""
        self._open: set[ClientConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        """Timer of the next sweep that closes idle connections; set while connections are open."""
        self._is_closed = False
        self.write_batch = WriteBatch()
        self.header_cache: HeaderCache[ResponseHead] = HeaderCache(varies_in_response, min(LONG_BYTES, max_body_bytes))

    async def send(self, request: bytes, caller: str = "") -> Response:
        """Send `request`, the bytes of a complete HTTP request, and return the response when its whole body has arrived.

        If the body is an event stream, return the response as soon as the stream's first message has arrived, or the stream has ended.
        `caller` is the id of a principal. Large responses to one principal share limited memory, so a large response may have to wait.

        Raises:
            Unreachable: The request was not sent.
            TooLarge: The response exceeds `max_body_bytes`, or waited longer than `CLAIM_WAIT_SECONDS` for memory.
            OutcomeUnknown: The connection broke, or the response is malformed.
        """
        connection = self._take_idle() or await self._open_connection()
        try:
            return await connection.send(request, caller)
        except BaseException:
            connection.abort()
            raise

    def close(self) -> None:
        """Close every connection. Requests in progress fail with `OutcomeUnknown`."""
        self._is_closed = True
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()

    def _take_idle(self) -> ClientConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.abort()
        return None

    async def _open_connection(self) -> ClientConnection:
        loop = asyncio.get_running_loop()
        try:
            return await self._connect(lambda: ClientConnection(self, loop))
        except (OSError, TimeoutError, ssl.SSLError) as error:
            raise Unreachable(f"cannot connect: {_connect_problem(error)}", server=self.server) from None

    # -- for connections -------------------------------------------------------------------------------------------

    def opened(self, connection: ClientConnection) -> None:
        """Register a newly opened connection, or close it if the pool is closed."""
        self._open.add(connection)
        if self._is_closed:
            connection.abort()
        elif self._sweeper is None:
            self._sweep_in(IDLE_SECONDS)

    def keep(self, connection: ClientConnection) -> None:
        """Keep a connection open for the next request after a complete response, or close it if the pool is closed or full (`MAX_IDLE`)."""
        if self._is_closed or len(self._idle) >= MAX_IDLE:
            connection.abort()
        else:
            self._idle.append(connection)

    def lost(self, connection: ClientConnection) -> None:
        """Remove a closed connection from the pool."""
        self._open.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)
        if self._sweeper is not None and not self._open:
            self._sweeper.cancel()
            self._sweeper = None

    def _sweep(self) -> None:
        """Close the connections whose idle timeout has passed, and schedule the next sweep."""
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
        stale = sum(connection.idle_since <= oldest for connection in self._idle)
        for connection in self._idle[:stale]:
            connection.abort()
        del self._idle[:stale]
        self._sweep_in(self._idle[0].idle_since - oldest if self._idle else IDLE_SECONDS)

    def _sweep_in(self, seconds: float) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(max(seconds, MIN_SWEEP_SECONDS), self._sweep)


class ClientConnection(asyncio.Protocol):
    """One HTTP connection of a `ConnectionPool`. The parser httptools calls the `on_` methods while it parses a response."""

    def __init__(self, pool: ConnectionPool, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.idle_since = 0.0
        """Event loop time at which the last response was complete."""
        self._has_unread_bytes: Callable[[], bool] = lambda: False
        self._drain_timer: asyncio.TimerHandle | None = None
        self._buffer = b""
        """Bytes of the request that are to be sent. `flush`, which the pool's `WriteBatch` calls, sends them."""
        self._caller = ""
        self._claim: Claim | None = None
        self._claim_timer: asyncio.TimerHandle | None = None
        """Timer that fails the request if the memory for its large response is not granted in time; while it runs, nothing is read."""
        self._reset(None)

    def _reset(self, waiter: asyncio.Future[Response] | None) -> None:
        """Drop the state of the last response. With a future `waiter`, expect a response, which becomes the future's result."""
        self._waiter = waiter
        self._stream: EventStream | None = None
        self._response: Response | None = None
        """A complete response, or an event stream with a message, until it is set as the result of the future that `send` returned."""
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._parsed_bytes = self._length = self._missing = 0
        """Numbers of body bytes: received from the parser; total, if known; not yet received of a body that bypasses the parser."""
        self._other_bytes = 0
        """Number of bytes received since the last byte of a body, such as a head or chunk sizes; `MAX_HEAD_BYTES` limits it."""
        self._is_expected = waiter is not None
        """Whether a request has been sent whose response is not complete."""
        self._has_head = self._is_interim = self._stays_open = self._ends_with_connection = False
        self._is_single = True
        """Whether each header field of the response occurred only once, as is required to cache the response's head."""

    # -- for the pool and the event stream -------------------------------------------------------------------------

    def is_usable(self) -> bool:
        """Return whether a request can be sent: the connection is open, within its idle timeout, and received nothing unexpected."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        return self.loop.time() - self.idle_since < IDLE_SECONDS and not self._has_unread_bytes()

    def send(self, request: bytes, caller: str) -> asyncio.Future[Response]:
        """Send a complete request and return a future of its response. The caller aborts the connection if the call or future raises."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise Unreachable("cannot connect: the connection closed at once", server=self._pool.server)
        waiter: asyncio.Future[Response] = self.loop.create_future()
        self._reset(waiter)
        self._drop_claim()
        self._caller = caller
        self._buffer = request
        self._pool.write_batch.add(self)
        return waiter

    def flush(self) -> None:
        """Write the buffered request, if there is one and the connection is open."""
        data, self._buffer = self._buffer, b""
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def resume_reading(self) -> None:
        """Resume reading after a pause. No effect while the connection waits for memory for a large response."""
        if self._transport is not None and self._claim_timer is None:
            self._transport.resume_reading()

    def take_claim(self) -> Claim | None:
        """Return the claim (permission to hold memory) of the large message that was read, or `None`. The caller releases it."""
        claim, self._claim = self._claim, None
        return claim

    def drain(self) -> None:
        """Drop the rest of an event stream. The connection is reused if the response ends within `DRAIN_SECONDS`, else closed."""
        if self._stream is not None:
            self._stream.end(None)
            self._stream = None
            self._drop_claim()
            self.resume_reading()
            self._drain_timer = self.loop.call_later(DRAIN_SECONDS, self.abort)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- claims of large responses ---------------------------------------------------------------------------------

    def _claim_bytes(self, size: int) -> None:
        """Claim the memory for a large response, and stop reading until it is granted."""
        claims = self._pool.claims
        if claims is None or self._claim is not None or self._transport is None:
            return
        self._claim = claims.claim(self._caller, size, self._granted)
        if not self._claim.is_granted:
            self._transport.pause_reading()
            self._claim_timer = self.loop.call_later(CLAIM_WAIT_SECONDS, self._claim_timed_out)

    def _granted(self) -> None:
        self._stop_claim_timer()
        if self._stream is None or not self._stream.is_full:
            self.resume_reading()

    def _claim_timed_out(self) -> None:
        self._claim_timer = None
        self._fail(TooLarge(crowded(CLAIM_WAIT_SECONDS), server=self._pool.server))

    def _stop_claim_timer(self) -> None:
        if self._claim_timer is not None:
            self._claim_timer.cancel()
            self._claim_timer = None

    def _drop_claim(self) -> None:
        self._stop_claim_timer()
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    # -- for the event loop ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection with its pool."""
        self._transport = cast("asyncio.Transport", transport)
        self._has_unread_bytes = _unread_bytes_check(transport)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. Bytes without a pending request close the connection."""
        if not self._is_expected:
            self.abort()
            return
        if self._missing:
            self._take_body(data)
            return
        is_start = not self._other_bytes and not self._has_head
        if is_start and (found := self._pool.header_cache.find(data)) is not None:
            self._take_cached(*found)
            return
        self._other_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break("it switched protocols")
        except (httptools.HttpParserError, httptools.HttpParserCallbackError):
            self._break("its answer is malformed")
        if self._other_bytes > MAX_HEAD_BYTES:
            self._break("the head of its answer is too long")
        if not self._is_expected:
            response = self._response
            if is_start and self._stays_open and response is not None and response.status == 200:
                self._pool.header_cache.keep(data, ResponseHead(self._headers, self._length, self._is_single))
            self._keep_or_close()
            self._give_response()
        elif self._response is not None:
            self._give_response()
        elif self._length - self._parsed_bytes >= LONG_BYTES:
            self._missing = self._length - self._parsed_bytes

    def _take_cached(self, head: ResponseHead, body: bytes) -> None:
        """Complete the request with a response whose head was found in the cache, so that the parser need not read the response."""
        self._is_expected, self._stays_open = False, True
        self._response = Response(200, head.fields, [body])
        self._keep_or_close()
        self._give_response()

    def _take_body(self, data: bytes) -> None:
        """Store a part of a long body without the parser. At the body's end, replace the parser, which still waits for the body."""
        self._missing -= len(data)
        if self._missing < 0:  # bytes after the end of the response
            data = data[: self._missing]
            self._missing, self._stays_open = 0, False
        self._parts.append(data)
        if self._missing:
            return
        self.on_message_complete()
        self._parser = httptools.HttpResponseParser(self)
        self._keep_or_close()
        self._give_response()

    def eof_received(self) -> bool:
        """Complete a response without length or chunks, whose body ends when the server closes the connection."""
        if self._is_expected and self._ends_with_connection:
            self.on_message_complete()
            self._give_response()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request in progress, if any."""
        self._transport = None
        self._break("the connection closed")
        self._drop_claim()
        self._pool.lost(self)

    def _break(self, reason: str) -> None:
        self._fail(OutcomeUnknown(reason, server=self._pool.server))

    def _fail(self, failure: RequestFailure) -> None:
        """Fail the request in progress, if any, and close the connection."""
        if self._is_expected:
            stream = self._stream
            self._end_response(failure)
            waiter, self._waiter = self._waiter, None
            if waiter is not None and not waiter.done():
                if stream is not None:
                    waiter.set_result(self._make_response(stream))
                else:
                    waiter.set_exception(failure)
        self._stays_open = False
        self.abort()

    def _end_response(self, failure: RequestFailure | None) -> None:
        self._is_expected = False
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.claim = self.take_claim()
            stream.end(failure)

    def _keep_or_close(self) -> None:
        """Return the connection to the pool after a response, or close it."""
        if self._stays_open and self._transport is not None and not self._transport.is_closing():
            self.idle_since = self.loop.time()
            self._pool.keep(self)
        else:
            self.abort()

    # -- for httptools ---------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Mark the connection to be closed if the server starts a response without a request."""
        if not self._is_expected:
            self._stays_open = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header field of the response; drop fields of a trailer."""
        if not self._has_head:
            name = name.lower()
            if name in self._headers:
                value, self._is_single = self._headers[name] + b", " + value, False
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        """Determine the framing of the body from the response head. Fail the request if it is unsupported, or if the body is too large."""
        status = self._parser.get_status_code()
        self._is_interim = status < 200
        if status == 101:
            self._break("it switched protocols")
        if self._is_interim or not self._is_expected:
            return
        headers = self._headers
        self._has_head = True
        coding = headers.get(b"transfer-encoding")
        length = headers.get(b"content-length")
        self._ends_with_connection = coding is None and length is None and status not in (204, 304)
        self._stays_open = self._parser.should_keep_alive() and not self._ends_with_connection
        if coding is not None and coding.strip().lower() != b"chunked":
            self._break("it frames its answer in a way that is not taken")
        elif status == 200 and headers.get(b"content-type", b"").lower().startswith(b"text/event-stream"):
            self._stream = EventStream(self, headers, server=self._pool.server, max_bytes=self._pool.max_body_bytes)
        elif length is not None:
            self._length = int(length)
            if self._length > self._pool.max_body_bytes:
                self._fail(TooLarge(too_large(self._pool.max_body_bytes), server=self._pool.server))
            elif self._length >= LARGE_BYTES and self._waiter is not None:
                self._claim_bytes(self._length)

    def on_body(self, data: bytes) -> None:
        """Store a part of the response's body, or pass it to the event stream."""
        self._other_bytes = 0
        stream = self._stream
        if stream is not None:
            stream.feed(data)
            if stream.is_ready and self._waiter is not None:
                self._response = self._make_response(stream)
            if stream.is_full and self._transport is not None:
                self._transport.pause_reading()
            if stream.parser.pending_bytes >= LARGE_BYTES:
                self._claim_bytes(self._pool.max_body_bytes)
        elif self._waiter is not None:
            self._parts.append(data)
            self._parsed_bytes += len(data)
            if self._parsed_bytes > self._pool.max_body_bytes:
                self._fail(TooLarge(too_large(self._pool.max_body_bytes), server=self._pool.server))
            elif self._parsed_bytes >= LARGE_BYTES and not self._length:
                self._claim_bytes(self._pool.max_body_bytes)

    def on_message_complete(self) -> None:
        """Complete the response; ignore the end of an interim response (1xx)."""
        if self._is_interim:
            self._is_interim = False
            self._headers = {}
        elif self._is_expected:
            if self._waiter is not None:
                self._response = self._make_response(self._stream)
            self._end_response(None)

    def _make_response(self, stream: EventStream | None) -> Response:
        parts, self._parts = self._parts, []
        claim = self.take_claim() if stream is None else None
        return Response(self._parser.get_status_code(), self._headers, parts, stream, claim)

    def _give_response(self) -> None:
        response, self._response = self._response, None
        waiter, self._waiter = self._waiter, None
        if response is not None and waiter is not None and not waiter.done():
            waiter.set_result(response)


def _unread_bytes_check(transport: asyncio.BaseTransport) -> Callable[[], bool]:
    """Return a function that checks whether an idle socket has data or was closed by the server (false on systems without `poll`)."""
    connected = transport.get_extra_info("socket")
    if connected is None or not hasattr(select, "poll"):
        return lambda: False
    poll = select.poll()
    poll.register(connected.fileno(), select.POLLIN)
    return lambda: bool(poll.poll(0))


def _connect_problem(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if not isinstance(error, ssl.SSLError | socket.gaierror):
        return "All connection attempts failed"
    return connect_problem(error)


def connect_problem(error: Exception) -> str:
    """Return the first line of a connection error's text, or advice to use `http://` if the server does not support TLS."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            return "it does not use TLS; if it is reached without TLS, write http:// instead of https://"
        cause = cause.__cause__ or cause.__context__
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else "the connection failed without a reason"
