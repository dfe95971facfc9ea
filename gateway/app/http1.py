"""`Http1`: one connection of HTTP/1.1 below uvicorn's server: reads requests, runs the application, writes its answers.

The parser is httptools' (llhttp, C, MIT), in its strict mode: what can be read in two ways is refused. An answer whose length is
known goes out in one piece. A peer that sends its request byte by byte, or stops reading its answer, holds a socket, a task and
buffers for nothing: a timer is set only while a request is incomplete or the peer's window is full, so that an honest call, which
arrives in one piece, sets none. What has no end (a head, a trailer, a chunk's extension, requests sent on and on without reading
an answer) has a bound. Offers of another protocol are passed over, as HTTP allows: what comes is read as HTTP/1.1.

Decided: a protocol of our own. Because: uvicorn's over h11 takes longer than all the rest of a plain call, and its one over
httptools leaves those ends open, loses the body of a request that offers h2c and writes each answer in two pieces. uvicorn keeps
what is not per request: sockets, start, signals, drain. Revisit when: uvicorn's has these bounds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import httptools
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

from gateway.app.connections import HALF_SENT, IDLE, UNSENT, Connections, connection_limit, is_local_network, network_of
from gateway.app.exchange import HIGH_WATER_BYTES, Exchange, Take, refusal
from gateway.app.heap import Heap
from gateway.app.sending import LATE_SECONDS, Sending, is_late
from gateway.app.targets import target_of
from gateway.app.unread import UnreadAnswers
from gateway.policy.quotas import connection_quotas
from gateway.server.head import SURPLUS_SCOPE_KEY, VARYING, Admission, Head
from gateway.server.usage import Usages
from gateway.tools.repeat import Repeats
from gateway.tools.together import Together

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp
    from uvicorn import Config
    from uvicorn.server import ServerState

    from gateway.config.models import ServerSettings

    Admit = Callable[[Head], ASGIApp | Admission]
    """Judges a request by its head, before its body is read: the refusal to send, or for whom it is."""

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 65_536
"""Of a request before its body, and of anything in or after it that is no body."""

SLICE_BYTES = 16_384
"""Given to the parser at a time, so that what is no body is counted while it comes."""

MAX_WAITING = 64
"""Requests that wait on one connection for the answer to an earlier one; the connection of a peer that sends more is closed."""

LINGER_BYTES = 8_388_608
"""Of a body that is not wanted any more, read and dropped so that its sender gets to read the answer; then the connection is cut."""

LINGER_SECONDS = 2.0
"""The same in time."""


_INVALID = refusal(400, b"Invalid HTTP request received.")
_TIMED_OUT = refusal(408, b"The request did not arrive in time")
_NO_ROOM = refusal(503, b"Too many connections; try again", b"retry-after: 1")


class Http1(Sending):
    """One connection. uvicorn makes it, and calls `shutdown` when it stops; `patient_protocol` gives it its deadlines.

    It has slots because it has more attributes than Python (3.11) finds at once in an object without: that would cost every call.
    """

    __slots__ = (
        "_app",
        "_app_state",
        "_arrival",
        "_arriving",
        "_authority",
        "_awaits_body",
        "_ends",
        "_headers",
        "_idle",
        "_idle_seconds",
        "_idle_since",
        "_in_head",
        "_is_counted",
        "_is_last",
        "_is_lingering",
        "_is_paused",
        "_is_surplus",
        "_parser",
        "_quiet",
        "_repeats",
        "_root",
        "_target",
        "_targeted",
        "_tasks",
        "_url",
        "_waiting",
        "address",
    )

    short_cut: Take | None = None
    admit: Admit | None = None
    connections: Connections
    head_seconds: float
    """From the connection or the first byte of a later request until its headers are whole; then 408."""
    body_seconds: float
    """From the headers until the body is whole; then 408 if nothing was answered yet."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: object = None) -> None:
        if not config.loaded:
            config.load()
        super().__init__(server_state)
        self._app = cast("ASGIApp", config.loaded_app)  # pyright: ignore[reportUnknownMemberType]  # whatever it was given
        self._root = config.root_path
        self._idle_seconds = config.timeout_keep_alive
        self._tasks: set[Any] = server_state.tasks
        """What uvicorn waits for when it stops: tasks, and calls of the short cut."""
        self._app_state = app_state
        self.address: str | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._target: dict[str, Any] = {}
        self._targeted: bytes | None = None
        self._authority: bytes | None = None
        """The host that the target itself names."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = self._is_last = self._is_paused = self._is_lingering = False
        """A head is coming; nothing more is read; reading waits; what comes is dropped until the peer has read the last answer."""
        self._is_counted = self._is_surplus = False
        """Its incomplete requests are in `connections`; it is one too many, so only some requests are served."""
        self._quiet = 0
        """Bytes since the last of a body or the end of a head."""
        self._arriving: Exchange | None = None
        """Its body is coming."""
        self._repeats: Repeats[Head] | None = None
        """Of requests that the short cut took."""
        self._waiting: deque[Exchange] = deque()
        self._arrival: asyncio.TimerHandle | None = None
        self._awaits_body = False
        self._idle: asyncio.TimerHandle | None = None
        self._idle_since = self.loop.time()

    # -- for the event loop --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called once."""
        self.transport = cast("asyncio.Transport", transport)
        self._state.connections.add(cast("Any", self))
        self._ends: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "root_path": self._root,
            "server": get_local_addr(self.transport),
            "client": get_remote_addr(self.transport),
            "scheme": "https" if is_ssl(self.transport) else "http",
        }
        client = self._ends["client"]
        self.address = network_of(client[0]) if client else None
        self._arrival = self.loop.call_later(self.head_seconds, self._too_late)
        is_served = self.connections.opened(self, self._idle_since)
        self._is_surplus = not is_served
        if is_served is None:
            self.write(_NO_ROOM)
            self._linger()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called once: whoever answers or waits learns it."""
        self._state.connections.discard(cast("Any", self))
        self.connections.closed(self)
        for timer in (self._arrival, self._unread, self._idle):
            if timer is not None:
                timer.cancel()
        self._arrival = self._unread = self._idle = None
        self._waiting.clear()
        self._is_last = True
        del self._parser  # it holds us
        for exchange in (self._serving, self._arriving):
            if exchange is not None and not exchange.is_answered:
                exchange.is_gone = True
                exchange.wake()
                if exchange.begun is not None:
                    exchange.begun.left()
        self._serving = self._arriving = None  # they hold us too
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Bytes came; after the last request of a connection they are dropped."""
        if self._is_last or self.transport.is_closing():
            self._quiet += len(data)
            if self._is_lingering and self._quiet > LINGER_BYTES:
                self.transport.abort()
            return
        serving, repeats = self._serving, self._repeats
        is_start = self._arriving is None and not (self._quiet or self._in_head) and (serving is None or serving.is_answered)
        if repeats is not None and is_start and (found := repeats.find(data)) is not None:
            self._come_again(*found)
            return
        if len(data) <= SLICE_BYTES:
            self._feed(data)
        else:
            view = memoryview(data)
            for start in range(0, len(data), SLICE_BYTES):
                self._feed(view[start : start + SLICE_BYTES])
                if self._is_last:
                    break
        if self._in_head or self._arriving is not None or self._waiting:
            self._wait_for_rest()
        elif self._is_counted:
            self._completed()
        self._watch_arrival()
        taken = self._serving
        if is_start and taken is not serving and taken is not None and taken.is_taken and taken.keep_alive:
            if repeats is None:
                repeats = self._repeats = Repeats(VARYING.__contains__, HIGH_WATER_BYTES)
            repeats.keep(data, taken.head)

    # -- for uvicorn ---------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """The gateway stops: take no further request, let a call finish, end a stream that waits for news."""
        exchange = self._serving
        if exchange is None or exchange.is_answered or exchange.head.is_stream:
            self._close()
        else:
            exchange.keep_alive = False

    # -- for an exchange -----------------------------------------------------------------------------------------

    def _close(self) -> None:
        self.flush()
        self.transport.close()

    def read_on(self) -> None:
        """There is room for more."""
        if self._is_paused and not self._waiting and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    def answered(self, exchange: Exchange) -> None:
        """Its answer is complete: go on with the next request, or wait for one."""
        self._state.total_requests += 1
        if self.transport.is_closing():
            return
        if not exchange.is_whole:
            self._linger()
        elif not exchange.keep_alive:
            self._close()
        elif self._waiting:
            self._begin(self._waiting.popleft())
            self.read_on()
            if not self._waiting and self._arriving is None and self._is_counted:
                self._completed()
            self._watch_arrival()
        else:
            self.read_on()
            self._idle_since = self.loop.time()
            if self._idle is None:
                self._idle = self.loop.call_later(self._idle_seconds, self._watch_idle)

    def settled(self, exchange: Exchange) -> None:
        """The short cut led to an answer, or it is the application's to go on."""
        begun, exchange.begun = exchange.begun, None
        assert begun is not None, "it settles once"
        self._tasks.discard(begun)
        try:
            answer = begun.answer()
            if answer is not None:
                session, body = answer
                exchange.answer(session, body)
        except Exception as error:
            begun.forget()
            self._over(exchange, error)
            return
        if answer is not None:
            begun.forget()
        elif begun.is_cancelled:
            begun.forget()
            self._over(exchange, None)
        else:
            self._run(exchange, begun.go_on)

    # -- for the parser ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url, self._headers = b"", []
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        """A piece of its target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field, of the head or (dropped) of a trailer."""
        if self._in_head:
            self._headers.append((name.lower(), value.strip(b" \t")))  # the parser leaves what follows a value

    def on_headers_complete(self) -> None:
        """Its head is complete; what it offers is passed over."""
        self._in_head, self._quiet = False, 0
        if len(self._waiting) >= MAX_WAITING:
            self._is_last = True
            self.transport.abort()
        elif not self._parser.should_upgrade():  # else the parser stops, and `_pass_over` reads it again
            self._arrived()

    def on_body(self, data: bytes) -> None:
        """A piece of its body."""
        self._quiet = 0
        exchange = self._arriving
        if exchange is not None and not exchange.feed(data):
            self._pause()

    def on_message_complete(self) -> None:
        """It is whole."""
        exchange, self._arriving = self._arriving, None
        if exchange is not None:
            exchange.is_whole = True
            if not exchange.keep_alive:
                self._is_last = True
            if exchange is self._serving and not exchange.is_begun:
                self._start(exchange)
            else:
                exchange.wake()  # an application waits for it, or it waits for its turn

    # -- requests ------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes | memoryview) -> None:
        self._quiet += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._pass_over()
            if not self._is_last and (rest := data[offer.args[0] :]):
                self._feed(rest)
        except (httptools.HttpParserError, httptools.HttpParserCallbackError) as error:
            if not self._is_last:
                logger.info("request refused: not HTTP: %s", error)
                self._refuse()
        if self._quiet > MAX_HEAD_BYTES and not self._is_last:
            self._refuse()

    def _pass_over(self) -> None:
        """Read the request that offers another protocol as one that does not: the parser itself would stop at its head."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse()
            return
        kept = [(name, value) for name, value in self._headers if name not in (b"upgrade", b"http2-settings")]
        kept = [(name, b"keep-alive" if name == b"connection" and b"close" not in value.lower() else value) for name, value in kept]
        version = self._parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self._url, version), *(b"%s: %s" % field for field in kept), b"\r\n"]
        self._parser = httptools.HttpRequestParser(self)
        self._feed(b"\r\n".join(lines))

    def _arrived(self) -> None:
        """A head is whole: run the application, or have it wait for its turn."""
        parser, headers = self._parser, self._headers
        version = parser.get_http_version()
        if self._url != self._targeted:  # the targets of one connection are mostly the same
            self._target, self._authority = target_of(self._url, self._root)
            self._targeted = self._url
        if self._authority is not None:  # then what the field says does not count (RFC 9112, 3.2.2)
            headers = [(name, self._authority if name == b"host" else value) for name, value in headers]
        head = Head(
            {
                **self._ends,
                **self._target,
                "http_version": version,
                "method": parser.get_method().decode("ascii"),
                "headers": headers,
                "state": self._app_state,
            }
        )
        fields = head.fields
        hosts = b"host" in fields if head.is_single else [name for name, _ in headers].count(b"host")
        if version not in ("1.1", "1.0") or hosts > 1 or (version == "1.1" and not hosts):
            raise ValueError("version or host")
        if b"transfer-encoding" in fields and [value.lower() for name, value in headers if name == b"transfer-encoding"] != [b"chunked"]:
            raise ValueError("a coding of the body that is not known")
        wants_continue = version == "1.1" and b"expect" in fields and (b"expect", b"100-continue") in ((n, v.lower()) for n, v in headers)
        keep_alive = version == "1.1" and parser.should_keep_alive()
        exchange = self._arriving = Exchange(self, head, keep_alive=keep_alive, wants_continue=wants_continue)
        if self._serving is None or self._serving.is_answered:
            self._serving = exchange  # it begins when it is whole, or with what came in the same read
        else:
            self._waiting.append(exchange)
            self._pause()

    def _come_again(self, head: Head, body: bytes) -> None:
        """A request came whole whose head is known, while none was under way."""
        self._start(Exchange(self, head, keep_alive=True, body=body))

    def _begin(self, exchange: Exchange) -> None:
        """Begin with a request whose turn has come. One whose body is still coming is judged by its head before more of it is kept."""
        self._serving = exchange
        if exchange.is_whole:
            self._start(exchange)
            return
        admission = self.admit(exchange.head) if self.admit is not None else Admission(None, is_local=False, waits=True)
        if not isinstance(admission, Admission):
            exchange.refuse()
            self._run(exchange, admission)
            return
        exchange.admission = admission
        is_short = self.short_cut is not None and not exchange.wants_continue and 0 < exchange.head.length <= HIGH_WATER_BYTES
        if not (is_short and admission.waits) or self._is_surplus:
            self._start(exchange)

    def _start(self, exchange: Exchange) -> None:
        self._serving = exchange
        exchange.is_begun = True
        tasks = self._tasks
        if self._is_surplus:
            exchange.keep_alive = False
            exchange.scope[SURPLUS_SCOPE_KEY] = True
        elif self.short_cut is not None and exchange.is_whole and self.drained is None:
            try:
                begun = self.short_cut(exchange.head, exchange.body())
            except Exception as error:  # the server boundary: nothing was begun, and the client is to hear of it
                self._over(exchange, error)
                return
            if begun is not None:
                exchange.begun, exchange.is_taken = begun, True
                tasks.add(begun)
                begun.when_settled(exchange.settled)
                return
        self._run(exchange, self._app)

    def _run(self, exchange: Exchange, app: ASGIApp) -> None:
        tasks = self._tasks
        task = self.loop.create_task(cast("Any", app(exchange.scope, exchange.receive, exchange.send)))
        tasks.add(task)

        def over(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            self._over(exchange, None if task.cancelled() else task.exception())

        task.add_done_callback(over)

    def _over(self, exchange: Exchange, error: BaseException | None) -> None:
        """The application is through with a request; one that it did not answer ends the connection."""
        if error is not None:  # a body that breaks off is no fault of ours
            logger.log(logging.DEBUG if exchange.is_gone else logging.ERROR, "A request failed", exc_info=error)
        if exchange.is_answered or exchange.is_gone:
            return
        if not exchange.is_started and not self.transport.is_closing():
            self.write(refusal(500, b"Internal Server Error"))
        self._close()

    def _refuse(self) -> None:
        """What comes is no request: nothing more is read, and the connection ends when what came before has its answer."""
        self._is_last = True
        serving = self._serving
        if serving is None or serving.is_answered or (serving is self._arriving and not serving.is_started):
            self.write(_INVALID)
            self._close()
        elif serving is self._arriving:
            self._close()
        else:
            (self._waiting[-1] if self._waiting else serving).keep_alive = False

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    # -- requests that are incomplete, connections that are too many ---------------------------------------------

    def _wait_for_rest(self) -> None:
        """Count what came of requests that are incomplete or wait for their turn."""
        exchange = self._arriving
        if exchange is not None and exchange is self._serving and not exchange.is_begun and exchange.admission is None:
            self._begin(exchange)
        if self._is_last or (exchange is not None and exchange.is_refused):
            return
        size = self._quiet + (exchange.received if exchange is not None else 0) + sum([waiting.received for waiting in self._waiting])
        admission = exchange.admission if exchange is not None else None
        self._is_counted = True
        if admission is not None and admission.owner is not None:
            self.connections.incomplete(self, admission.owner, size, is_local=admission.is_local)
        else:
            self.connections.incomplete(self, self.address, size, is_local=is_local_network(self.address))

    def _completed(self) -> None:
        self._is_counted = False
        self.connections.completed(self)

    def waits(self) -> tuple[int, float] | None:
        """As `connections.Peer.waits`."""
        serving = self._serving
        if self._is_lingering:
            return UNSENT, self._idle_since
        if self.transport.is_closing() or self._is_last or self._arriving is not None or self._waiting:
            return None
        if serving is not None and not serving.is_answered:
            return None
        kind = HALF_SENT if self._in_head or self._quiet else UNSENT if serving is None else IDLE
        return kind, self._idle_since

    def give_way(self) -> None:
        """As `connections.Peer.give_way`."""
        if self._is_lingering:
            self.transport.abort()
        elif not self.transport.is_closing():
            serving, is_incomplete = self._serving, self._in_head or self._quiet or self._arriving is not None
            if is_incomplete and (serving is None or serving.is_answered or (serving is self._arriving and not serving.is_started)):
                self.write(_NO_ROOM)
            self._close()

    def _linger(self) -> None:
        """End after an answer to a request that is still coming: closed at once, its sender would not get to read the answer."""
        self.flush()
        if self._is_counted:
            self._completed()
        self._is_last = self._is_lingering = True
        self._quiet, self._idle_since = 0, self.loop.time()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()
        if self._arrival is not None:
            self._arrival.cancel()
        self._arrival = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    # -- deadlines -----------------------------------------------------------------------------------------------

    def _watch_arrival(self) -> None:
        """Set the timer of a request that is not whole, or end it; none while others wait, since it is we who do not read."""
        if self._is_lingering:
            return
        if self._waiting or (not self._in_head and self._arriving is None):
            if self._arrival is not None and self._serving is not None:
                self._arrival.cancel()
                self._arrival = None
            return
        awaits_body = self._arriving is not None and not self._arriving.is_answered
        if self._arrival is None or awaits_body is not self._awaits_body:
            if self._arrival is not None:
                self._arrival.cancel()
            self._awaits_body = awaits_body
            self._arrival = self.loop.call_later(self.body_seconds if awaits_body else self.head_seconds, self._too_late)

    def _too_late(self) -> None:
        timer, self._arrival = self._arrival, None
        if self.transport.is_closing():
            return
        if timer is not None and is_late(timer, self.loop):
            self._arrival = self.loop.call_later(LATE_SECONDS, self._too_late)
            return
        serving = self._serving
        if serving is None or serving.is_answered or not serving.is_started:
            self.write(_TIMED_OUT)
        self._close()

    def _watch_idle(self) -> None:
        """Close a connection on which nothing came for a while; one timer serves all its requests."""
        timer, self._idle = self._idle, None
        if self._in_head or self._serving is None or not self._serving.is_answered:
            return
        left = self._idle_since + self._idle_seconds - self.loop.time()
        if left <= 0 and timer is not None and is_late(timer, self.loop):
            left = LATE_SECONDS
        if left > 0:
            self._idle = self.loop.call_later(left, self._watch_idle)
        else:
            self._close()


def patient_protocol(
    settings: ServerSettings, take: Take | None = None, judge: Admit | None = None, usages: Usages | None = None
) -> type[Http1]:
    """The protocol with the deadlines and bounds of `settings` and a short cut, to be given to uvicorn's `Config` as `http`.

    Unread answers count against the quotas of `usages`; without it they are not bounded.
    """
    http = settings.http
    table = Connections(connection_quotas(settings.limits, connection_limit(http), http.max_request_bytes))

    class Patient(Http1):
        __slots__ = ()

        together = Together()
        heap = Heap()
        connections = table
        unread_answers = UnreadAnswers(usages or Usages())
        short_cut = staticmethod(take) if take is not None else None
        admit = staticmethod(judge) if judge is not None else None
        head_seconds = http.head_seconds
        body_seconds = http.body_seconds
        unread_seconds = http.unread_seconds

    return Patient
