"""`ServerConnection`: one HTTP/1.1 connection of uvicorn's server. Parses requests, runs the application, writes responses in order.

httptools (llhttp, C, MIT) parses requests in its strict mode: it rejects a request with ambiguous framing. The time and bytes of a head,
the time of a body, the bytes of a trailer, pipelined requests and unread responses are limited. Timers also limit the wait for a request,
and for the rest of a request that is already answered. Offers to upgrade are ignored. A subclass in `server.http_protocol` sets the limits.

Decided: a protocol class of our own. Because: uvicorn's h11 protocol takes longer than the rest of a plain call, and its httptools protocol
has none of these limits, loses the body of a request that offers h2c and writes each response in two pieces. uvicorn still handles sockets,
start, signals and shutdown. Revisit when: uvicorn's protocol has these limits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import httptools

from gateway.wire.http1_exchange import HIGH_WATER_BYTES, LATE_SECONDS, ConnectionWriter, Exchange, HeadT, error_response, is_late, is_new
from gateway.wire.http1_interfaces import HALF_SENT, IDLE, SURPLUS_SCOPE_KEY, UNSENT, Admission, ConnectionTable, StartedRequest
from gateway.wire.http1_messages import HeaderCache
from gateway.wire.http1_request import Headers, base_scope, check_framing, target_of, without_upgrade

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Config
    from uvicorn.server import ServerState

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES, SLICE_BYTES = 65_536, 16_384
"""Maximum bytes of a request head or between two parts of a body; and number of bytes parsed between two checks of this maximum."""

MAX_PIPELINED = 64
"""Maximum requests on one connection that wait for earlier responses; a client that sends more is disconnected."""

LINGER_BYTES, LINGER_SECONDS = 8_388_608, 2.0
"""Maximum bytes and seconds for reading and dropping the rest of a request after its response, so that the client can read the response."""

_INVALID = error_response(400, b"Invalid HTTP request received.")
_TIMED_OUT = error_response(408, b"The request did not arrive in time")
_NO_ROOM = error_response(503, b"Too many connections; try again", b"retry-after: 1")


class ServerConnection(ConnectionWriter[HeadT]):
    """One HTTP/1.1 connection of a client. uvicorn creates it, and calls `shutdown` when the server stops.

    The class has slots because Python 3.11 accesses attributes of objects with more than 30 attributes slowly without slots.
    """

    __slots__ = (
        "_app", "_app_state", "_arrival_timer", "_arriving", "_authority", "_awaits_body", "_base_scope", "_header_cache",
        "_headers", "_idle_seconds", "_idle_since", "_idle_timer", "_in_head", "_is_counted", "_is_last", "_is_lingering",
        "_is_paused", "_is_surplus", "_other_bytes", "_parser", "_pipelined", "_root", "_target", "_target_url", "_tasks", "_url",
        "address",
    )

    make_head: Callable[[dict[str, Any]], HeadT]
    """Function that makes the parsed head of a request from the request's ASGI scope."""
    varies: Callable[[bytes], bool]
    """Function that returns whether a header field, given its name, may differ between requests with the same cached head."""
    start_fast: Callable[[HeadT, bytes], StartedRequest | None] | None = None
    """Function that starts a complete request on the fast path (no MCP SDK), or returns `None` to leave the request to the application."""
    admit: Callable[[HeadT], ASGIApp | Admission] | None = None
    """Function that judges a request by its head, before the body arrives: returns the caller, or an application that rejects it."""
    connections: ConnectionTable
    head_seconds: float
    """Maximum seconds from the connection's opening, or a later request's first byte, to the end of the head; then a 408 is sent."""
    body_seconds: float
    """Maximum seconds from the head to the end of the body; then a 408 is sent if no response has begun."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: object = None) -> None:
        if not config.loaded:
            config.load()
        super().__init__(server_state)
        self._app = cast("ASGIApp", config.loaded_app)  # pyright: ignore[reportUnknownMemberType]  # of any type
        self._root = config.root_path
        self._idle_seconds = config.timeout_keep_alive
        self._tasks: set[Any] = server_state.tasks
        """The running requests, for which uvicorn waits when it stops: tasks, and requests on the fast path (without the MCP SDK)."""
        self._app_state = app_state
        self.address: str | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._target_url: bytes | None = None
        self._target: dict[str, Any] = {}
        self._authority: bytes | None = None
        """`_target_url`, `_target`, `_authority`: the last request target, its ASGI scope entries, and the host if the target has one."""
        self._headers: Headers = []
        self._in_head = self._is_last = self._is_paused = self._is_lingering = False
        """Whether a head is arriving; whether parsing has ended; whether reading is paused; whether the rest of a request is dropped."""
        self._is_counted = self._is_surplus = False
        """Whether `connections` counts incomplete requests of this connection; whether the connection is above the limit of connections."""
        self._other_bytes = 0
        """Number of bytes received since the end of a head or the last byte of a body; `MAX_HEAD_BYTES` limits it."""
        self._arriving: Exchange[HeadT] | None = None
        """The request whose body is incomplete; `None` if there is no such request."""
        self._header_cache: HeaderCache[HeadT] | None = None
        """Cache of parsed heads of requests that the fast path (no MCP SDK) answered; `None` before the first such request."""
        self._pipelined: deque[Exchange[HeadT]] = deque()
        self._arrival_timer: asyncio.TimerHandle | None = None
        self._awaits_body = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since = self.loop.time()

    # -- for the event loop ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection. If the connection table (`connections`) refuses the connection, send a 503 and close it."""
        self.transport = cast("asyncio.Transport", transport)
        self._state.connections.add(cast("Any", self))
        self._base_scope = base_scope(self.transport, self._root)
        self.address = self.connections.network_of(self._base_scope["client"])
        self._arrival_timer = self.loop.call_later(self.head_seconds, self._arrival_timed_out)
        is_served = self.connections.opened(self, self._idle_since)
        self._is_surplus = not is_served
        if is_served is None:
            self.write(_NO_ROOM)
            self._linger()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the handlers of unanswered requests that the client disconnected, and break reference cycles."""
        self._state.connections.discard(cast("Any", self))
        self.connections.closed(self)
        for timer in (self._arrival_timer, self._unread_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._arrival_timer = self._unread_timer = self._idle_timer = None
        self._pipelined.clear()
        self._is_last = True
        del self._parser
        for exchange in (self._current, self._arriving):
            if exchange is not None and not exchange.is_answered:
                exchange.client_gone = True
                exchange.wake()
                if exchange.started is not None:
                    exchange.started.left()
        self._current = self._arriving = None
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, or drop them if no further request is accepted."""
        if self._is_last or self.transport.is_closing():
            self._other_bytes += len(data)
            if self._is_lingering and self._other_bytes > LINGER_BYTES:
                self.transport.abort()
            return
        current, cache = self._current, self._header_cache
        is_start = self._arriving is None and not (self._other_bytes or self._in_head) and (current is None or current.is_answered)
        if cache is not None and is_start and (found := cache.find(data)) is not None:
            self._start(Exchange(self, found[0], keep_alive=not self._is_leaving, body=found[1]))
            return
        view = data if len(data) <= SLICE_BYTES else memoryview(data)
        for start in range(0, len(data), SLICE_BYTES):
            if not self._is_last:
                self._feed(view[start : start + SLICE_BYTES])
        if self._in_head or self._arriving is not None or self._pipelined:
            self._count_incomplete()
        else:
            self._completed()
        self._watch_arrival()
        started = self._current
        if is_start and started is not current and started is not None and started.is_fast and started.keep_alive:
            if cache is None:
                cache = self._header_cache = HeaderCache(self.varies, HIGH_WATER_BYTES)
            cache.keep(data, started.head)

    # -- for uvicorn -----------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Accept no further request: let a call in progress finish, and close a stream that only the client would end."""
        exchange = self._current
        if exchange is None or exchange.is_answered or exchange.head.is_endless:
            self._close()
        else:
            exchange.keep_alive = False

    def _close(self) -> None:
        self.flush()
        self.transport.close()

    # -- for an exchange -------------------------------------------------------------------------------------------

    def resume_reading(self) -> None:
        """Continue reading after a pause; no effect while pipelined requests wait."""
        if self._is_paused and not self._pipelined and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    def answered(self, exchange: Exchange[HeadT]) -> None:
        """Continue after a complete response: start the next pipelined request, wait for a request, or close the connection."""
        self._state.total_requests += 1
        if self.transport.is_closing():
            return
        if not exchange.is_complete:
            self._linger()
        elif not exchange.keep_alive:
            self._close()
        elif self._pipelined:
            self._begin(self._pipelined.popleft())
            self.resume_reading()
            if not self._pipelined and self._arriving is None:
                self._completed()
            self._watch_arrival()
        else:
            self.resume_reading()
            self._idle_since = self.loop.time()
            if self._idle_timer is None:
                self._idle_timer = self.loop.call_later(self._idle_seconds, self._watch_idle)

    def _settled(self, exchange: Exchange[HeadT]) -> None:
        """Send the response of the fast path (no MCP SDK), or run the ASGI application that continues the request."""
        started, exchange.started = exchange.started, None
        assert started is not None, "a request settles once"
        self._tasks.discard(started)
        try:
            answer = started.answer()
            if answer is not None:
                exchange.answer(*answer)
        except Exception as error:
            started.forget()
            self._finished(exchange, error)
            return
        if answer is not None:
            started.forget()
        elif started.is_cancelled:
            started.forget()
            self._finished(exchange, None)
        else:
            self._run(exchange, started.go_on)

    # -- for httptools ---------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin to parse the head of a new request."""
        self._url, self._headers = b"", []
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        """Add a piece of the request target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header field of the request; drop fields of a trailer."""
        if self._in_head:
            self._headers.append((name.lower(), value.strip(b" \t")))  # the parser keeps spaces after a value

    def on_headers_complete(self) -> None:
        """Start or queue the request whose head is complete; disconnect a client that pipelines too many requests."""
        self._in_head, self._other_bytes = False, 0
        if len(self._pipelined) >= MAX_PIPELINED:
            self._is_last = True
            self.transport.abort()
        elif not self._parser.should_upgrade():  # else the parser stops, and `_ignore_upgrade` parses the head again
            self._take_request()

    def on_body(self, data: bytes) -> None:
        """Add received bytes to the body of the request that is arriving."""
        self._other_bytes = 0
        exchange = self._arriving
        if exchange is not None and not exchange.feed(data):
            self._pause()

    def on_message_complete(self) -> None:
        """Mark the request as complete, and start it if it is the current request and has not started yet."""
        exchange, self._arriving = self._arriving, None
        if exchange is not None:
            exchange.is_complete = True
            if not exchange.keep_alive:
                self._is_last = True
            if exchange is self._current and not exchange.is_started:
                self._start(exchange)
            else:
                exchange.wake()

    # -- requests --------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes | memoryview) -> None:
        self._other_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._ignore_upgrade()
            if not self._is_last and (rest := data[offer.args[0] :]):
                self._feed(rest)
        except (httptools.HttpParserError, httptools.HttpParserCallbackError) as error:
            if not self._is_last:
                logger.info("request rejected reason=malformed error=%s", error)
                self._reject()
        if self._other_bytes > MAX_HEAD_BYTES and not self._is_last:
            self._reject()

    def _ignore_upgrade(self) -> None:
        """Parse the request head a second time, without its offer to upgrade to another protocol, because the parser stops at the offer."""
        method, version = self._parser.get_method(), self._parser.get_http_version()
        if method == b"CONNECT":
            return self._reject()
        self._parser = httptools.HttpRequestParser(self)
        self._feed(without_upgrade(method, self._url, version, self._headers))

    def _take_request(self) -> None:
        """Create a request from the parsed head. Make it the current request, or queue it. Raises `ValueError` for an ambiguous head."""
        parser, headers = self._parser, self._headers
        version = parser.get_http_version()
        if self._url != self._target_url:  # most requests of a connection have the same target
            self._target, self._authority = target_of(self._url, self._root)
            self._target_url = self._url
        if self._authority is not None:  # then the value of `Host` is ignored (RFC 9112, 3.2.2)
            headers = [(name, self._authority if name == b"host" else value) for name, value in headers]
        request = {"http_version": version, "method": parser.get_method().decode("ascii"), "headers": headers, "state": self._app_state}
        head = self.make_head({**self._base_scope, **self._target, **request})
        check_framing(version, head.fields, headers)
        wants_continue = version == "1.1" and any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)
        keep_alive = version == "1.1" and parser.should_keep_alive() and not self._is_leaving
        exchange = self._arriving = Exchange(self, head, keep_alive=keep_alive, wants_continue=wants_continue)
        if self._current is None or self._current.is_answered:
            self._current = exchange  # started when it is complete, or by `_count_incomplete` after this read
        else:
            self._pipelined.append(exchange)
            self._pause()

    def _begin(self, exchange: Exchange[HeadT]) -> None:
        """Make a request the current request, and start it unless its body must arrive first. `admit` may reject an incomplete request."""
        self._current = exchange
        if exchange.is_complete:
            self._start(exchange)
            return
        admission = self.admit(exchange.head) if self.admit is not None else Admission(None, is_local=False, waits=True)
        if not isinstance(admission, Admission):
            exchange.reject()
            self._run(exchange, admission)
            return
        exchange.admission = admission
        is_short = self.start_fast is not None and not exchange.wants_continue and 0 < exchange.head.length <= HIGH_WATER_BYTES
        if not (is_short and admission.waits) or self._is_surplus:
            self._start(exchange)

    def _start(self, exchange: Exchange[HeadT]) -> None:
        self._current = exchange
        exchange.is_started = True
        if self._is_surplus:
            exchange.keep_alive = False
            exchange.scope[SURPLUS_SCOPE_KEY] = True
        elif self.start_fast is not None and exchange.is_complete and self.drained is None:
            try:
                started = self.start_fast(exchange.head, exchange.body())
            except Exception as error:  # server boundary: nothing was started, and the client needs a response
                self._finished(exchange, error)
                return
            if started is not None:
                exchange.started, exchange.is_fast = started, True
                self._tasks.add(started)
                started.when_settled(lambda: self._settled(exchange))
                return
        self._run(exchange, self._app)

    def _run(self, exchange: Exchange[HeadT], app: ASGIApp) -> None:
        def finished(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._finished(exchange, None if task.cancelled() else task.exception())

        task = self.loop.create_task(cast("Any", app(exchange.scope, exchange.receive, exchange.send)))
        self._tasks.add(task)
        task.add_done_callback(finished)

    def _finished(self, exchange: Exchange[HeadT], error: BaseException | None) -> None:
        """Close the connection, after a 500 if possible, if an application has returned or failed without a complete response."""
        if error is not None:  # expected if the client left in the middle of its request
            logger.log(logging.DEBUG if exchange.client_gone else logging.ERROR, "request failed", exc_info=error)
        if exchange.is_answered or exchange.client_gone:
            return
        if not exchange.is_responding and not self.transport.is_closing():
            self.write(error_response(500, b"Internal Server Error"))
        self._close()

    def _may_refuse(self) -> bool:
        """Return whether an error response may be written: no response has begun, and no earlier request waits for a response."""
        current = self._current
        return current is None or current.is_answered or (current is self._arriving and not current.is_responding)

    def _reject(self) -> None:
        """Respond 400 if possible, parse no further request, and close the connection after the responses to earlier requests."""
        self._is_last = True
        if self._may_refuse():
            self.write(_INVALID)
            self._close()
        elif self._current is self._arriving:
            self._close()
        elif self._current is not None:
            (self._pipelined[-1] if self._pipelined else self._current).keep_alive = False

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    # -- incomplete requests, connections above the limit ----------------------------------------------------------

    def _count_incomplete(self) -> None:
        """Let `admit` judge an incomplete current request. Then report the bytes of incomplete and pipelined requests to `connections`."""
        exchange = self._arriving
        if exchange is not None and exchange is self._current and not exchange.is_started and exchange.admission is None:
            self._begin(exchange)
        if self._is_last or (exchange is not None and exchange.is_rejected):
            return
        incomplete = self._pipelined if exchange is None else (exchange, *self._pipelined)
        self._is_counted = True
        size = self._other_bytes + sum([each.received_bytes for each in incomplete])
        self.connections.incomplete(self, exchange.admission if exchange is not None else None, size)

    def _completed(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self.connections.completed(self)

    def waits(self) -> tuple[int, float] | None:
        """Return what the connection waits for (`UNSENT`, `HALF_SENT`, `IDLE`) and since when, or `None`, as `Peer.waits` specifies."""
        if self._is_lingering:
            return UNSENT, self._idle_since
        if self.transport.is_closing() or self._is_last or self._arriving is not None or self._pipelined:
            return None
        if self._current is not None and not self._current.is_answered:
            return None
        is_half_sent = self._in_head or self._other_bytes or (self._current is None and is_new(self._idle_since, self.loop))
        kind = HALF_SENT if is_half_sent else UNSENT if self._current is None else IDLE
        return kind, self._idle_since

    def evict(self) -> None:
        """Close the connection to make room for a new connection. First send a 503 if a request is incomplete and unanswered."""
        if self._is_lingering:
            self.transport.abort()
        elif not self.transport.is_closing():
            if (self._in_head or self._other_bytes or self._arriving is not None) and self._may_refuse():
                self.write(_NO_ROOM)
            self._close()

    def _linger(self) -> None:
        """Keep the connection open for at most `LINGER_SECONDS`, and drop what the client still sends after its last response.

        If the connection were closed at once, the client could not read the response.
        """
        self.flush()
        self._completed()
        self._is_last = self._is_lingering = True
        self._other_bytes, self._idle_since = 0, self.loop.time()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()
        self._stop_arrival_timer()
        self._arrival_timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    # -- deadlines -------------------------------------------------------------------------------------------------

    def _watch_arrival(self) -> None:
        """Start or stop the timeout of an incomplete request. Pipelined requests stop the timeout, because reading is paused."""
        if self._is_lingering:
            return
        if self._pipelined or (not self._in_head and self._arriving is None):
            if self._current is not None:
                self._stop_arrival_timer()
            return
        awaits_body = self._arriving is not None and not self._arriving.is_answered
        if self._arrival_timer is None or awaits_body is not self._awaits_body:
            self._stop_arrival_timer()
            self._awaits_body = awaits_body
            self._arrival_timer = self.loop.call_later(self.body_seconds if awaits_body else self.head_seconds, self._arrival_timed_out)

    def _stop_arrival_timer(self) -> None:
        if self._arrival_timer is not None:
            self._arrival_timer.cancel()
            self._arrival_timer = None

    def _arrival_timed_out(self) -> None:
        timer, self._arrival_timer = self._arrival_timer, None
        if self.transport.is_closing():
            return
        if timer is not None and is_late(timer, self.loop):
            self._arrival_timer = self.loop.call_later(LATE_SECONDS, self._arrival_timed_out)
            return
        if self._current is None or self._current.is_answered or not self._current.is_responding:
            self.write(_TIMED_OUT)
        self._close()

    def _watch_idle(self) -> None:
        """Close the connection after the idle timeout. One timer serves all requests of the connection."""
        timer, self._idle_timer = self._idle_timer, None
        if self._in_head or self._current is None or not self._current.is_answered:
            return
        left = self._idle_since + self._idle_seconds - self.loop.time()
        if left <= 0 and timer is not None and is_late(timer, self.loop):
            left = LATE_SECONDS
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._watch_idle)
        else:
            self._close()
