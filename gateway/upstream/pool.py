"""`Pool`: kept HTTP/1.1 connections to one origin, lean enough for the path of every call.

Used by `exchange` for plain requests; what needs a proxy, a redirect or a sign-in goes through `http`. httptools (llhttp,
C, MIT) does the parsing, strictly: an answer whose framing can be read in two ways ends its connection. One request at a
time on a connection; nothing is ever sent twice. Plain asyncio, because a task group, streams and scopes per request cost
more than the request (performance.md §4): deadlines are the callers' scopes, and a cancelled request closes its connection.

Decided: a parser in C and our own framing of requests. Because: 13 times less processor time than httpx2 per request.
Instead of: httpx2 (slow), aiohttp (3 times slower, a second HTTP stack). Revisit when: the SDK's transport comes near.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import anyio
import httptools

from gateway.errors import UpstreamLost, UpstreamUnavailable
from gateway.tools.repeat import Repeats
from gateway.tools.together import Together
from gateway.tools.waits import PlainWait, own_task
from gateway.upstream.event_stream import Stream
from gateway.upstream.large import LARGE_BYTES, WAIT_SECONDS, Claim, LargeBodies
from gateway.upstream.standins import Crowded, TooLarge, connect_problem, crowded

MAX_HEAD_BYTES = 65_536
"""Of an answer before its body, and of anything else that is no body."""

MAX_IDLE = 64
"""Connections kept for later requests, as in the SDK's transport."""

IDLE_SECONDS = 60.0
"""A connection unused for longer is not trusted any more, and closed."""

LEAST_SWEEP_SECONDS = 1.0
"""Between two looks for such ones, of which those that come to it one after the other are closed together."""

CONNECT_SECONDS = 10.0
"""For name, TCP and TLS; the deadline of the request itself is its caller's."""

HAPPY_EYEBALLS_SECONDS = 0.25
"""Head start of one address over the next, where a name has several (RFC 8305)."""

LONG_BYTES = 65_536
"""Missing of a body whose length is known: they are taken without the parser, which would copy them."""

DRAIN_SECONDS = 1.0
"""For the end of a stream whose last message has come; then the connection is closed instead of kept."""


FIXED = frozenset({b"content-type", b"connection", b"keep-alive", b"proxy-connection", b"upgrade", b"trailer", b"transfer-encoding"})
"""Fields of an answer by whose values it is read: all others may differ in one that is known again by its head."""


@dataclass(slots=True)
class Answer:
    """The answer to one request."""

    status: int
    headers: Mapping[bytes, bytes]
    """Names in lower case; of a repeated one the values joined by commas."""
    parts: list[bytes]
    """Of the body, as they came."""
    stream: Stream | None = None
    """Of an event stream that has a message, or is over; its owner takes it to the end, leaves it or closes it."""
    claim: Claim | None = None
    """Of a large body."""

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(self.parts)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Of an answer that was read whole, status 200, whose connection stays open."""

    fields: Mapping[bytes, bytes]
    length: int
    is_single: bool = True

    def with_values(self, values: Mapping[bytes, bytes], length: int) -> AnswerHead:
        """As `Said.with_values`."""
        return AnswerHead({**self.fields, **values}, length)


def _varies(name: bytes) -> bool:
    return name not in FIXED


class Pool:
    """Connections to one origin. Belongs to one event loop; `close` when done."""

    def __init__(
        self, server: str, host: str, port: int, *, tls: ssl.SSLContext | None, max_body_bytes: int, bodies: LargeBodies | None = None
    ) -> None:
        """`server` is the name in messages. Nothing is opened before the first request. Without `bodies` large answers need no claim."""
        self.server = server
        self.bodies = bodies
        self.max_body_bytes = max_body_bytes
        self._host = host
        self._port = port
        self._tls = tls
        self._idle: list[Line] = []
        """In the order in which they were last used."""
        self._all: set[Line] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        """While there are connections."""
        self._is_closed = False
        self.together = Together()
        """Requests go out by it."""
        self.repeats: Repeats[AnswerHead] = Repeats(_varies, min(LONG_BYTES, max_body_bytes))
        """Of answers on any connection."""

    async def send(self, request: bytes, caller: str = "") -> Answer:
        """Send a whole request and wait for its answer, or for the first message of one that is an event stream.

        `caller` is the principal whose share of `bodies` a large answer takes.

        Raises:
            Crowded: The answer is large, and waited too long for others to be done with.
            UpstreamUnavailable: Nothing was sent.
            TooLarge: The answer is larger than `max_body_bytes`.
            UpstreamLost: The connection broke; the request may have been taken.
        """
        line = self._kept() or await self._connect()
        try:
            return await line.begin(request, caller)
        except BaseException:
            line.abort()
            raise

    def close(self) -> None:
        """Close every connection; requests under way end as lost."""
        self._is_closed = True
        self._idle.clear()
        for line in list(self._all):
            line.abort()

    def _kept(self) -> Line | None:
        while self._idle:
            line = self._idle.pop()
            if line.is_fresh():
                return line
            line.abort()
        return None

    async def _connect(self) -> Line:
        await own_task()
        loop = asyncio.get_running_loop()
        # uvloop does not know the option; it tries one address after the other.
        knows = not type(loop).__module__.startswith("uvloop")
        eyeballs: dict[str, Any] = {"happy_eyeballs_delay": HAPPY_EYEBALLS_SECONDS} if knows else {}
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                _, line = await loop.create_connection(
                    lambda: Line(self, loop),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls is not None else None,
                    **eyeballs,
                )
        except (OSError, TimeoutError, ssl.SSLError) as error:
            raise UpstreamUnavailable(f"cannot connect: {_reason(error)}", server=self.server) from None
        return line

    def opened(self, line: Line) -> None:
        """A connection came to be."""
        self._all.add(line)
        if self._is_closed:
            line.abort()
        elif self._sweeper is None:
            self._sweep_in(IDLE_SECONDS)

    def keep(self, line: Line) -> None:
        """Its answer is complete and the server keeps it open."""
        if self._is_closed or len(self._idle) >= MAX_IDLE:
            line.abort()
        else:
            self._idle.append(line)

    def lost(self, line: Line) -> None:
        """It is over."""
        self._all.discard(line)
        with contextlib.suppress(ValueError):
            self._idle.remove(line)
        if self._sweeper is not None and not self._all:
            self._sweeper.cancel()
            self._sweeper = None

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
        stale = sum(line.idle_since <= oldest for line in self._idle)
        for line in self._idle[:stale]:
            line.abort()
        del self._idle[:stale]
        self._sweep_in(self._idle[0].idle_since - oldest if self._idle else IDLE_SECONDS)

    def _sweep_in(self, seconds: float) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(max(seconds, LEAST_SWEEP_SECONDS), self._sweep)


class Line(asyncio.Protocol):
    """One connection; also what httptools calls back. Made by `Pool`."""

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.idle_since = 0.0
        """On the loop's clock."""
        self._is_readable: Callable[[], bool] = lambda: False
        self._drain_timer: asyncio.TimerHandle | None = None
        self._held = b""
        """The request, until the end of the turn in which it was begun."""
        self._caller = ""
        self._claim: Claim | None = None
        self._too_late: asyncio.TimerHandle | None = None
        """While the claim is not granted; then nothing is read."""
        self._begin(None)

    def _begin(self, waiter: PlainWait[Answer] | None) -> None:
        """Forget the last answer, and wait for the next."""
        self._waiter = waiter
        self._stream: Stream | None = None
        self._answer: Answer | None = None
        """Complete, or a stream with a message, and not given yet."""
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._size = self._length = self._missing = 0
        """Of the body: bytes that the parser found, all of them where that is known, and those that it is not asked for."""
        self._quiet = 0
        """Bytes since the last of a body."""
        self._is_open = waiter is not None
        """Whether an answer is due, or coming."""
        self._has_head = self._is_interim = self._stays_open = self._until_end = False
        self._is_single = True
        """No field was there twice."""

    # -- for the pool and the stream -----------------------------------------------------------------------------

    def is_fresh(self) -> bool:
        """Whether it can take a request: open, used lately, and silent since."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        return self.loop.time() - self.idle_since < IDLE_SECONDS and not self._is_readable()

    def begin(self, request: bytes, caller: str) -> PlainWait[Answer]:
        """As `Pool.send`; the caller aborts the connection where this raises, or the wait does."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise UpstreamUnavailable("cannot connect: the connection closed at once", server=self._pool.server)
        waiter: PlainWait[Answer] = PlainWait(loop=self.loop)
        self._begin(waiter)
        self._drop_claim()
        self._caller = caller
        self._held = request
        self._pool.together.add(self)
        return waiter

    def flush(self) -> None:
        """As `Holding.flush`."""
        held, self._held = self._held, b""
        if held and self._transport is not None and not self._transport.is_closing():
            self._transport.write(held)

    def read_on(self) -> None:
        """What was read has been taken."""
        if self._transport is not None and self._too_late is None:
            self._transport.resume_reading()

    def take_claim(self) -> Claim | None:
        """The claim of the large answer or message that was read; the caller holds it from now on."""
        claim, self._claim = self._claim, None
        return claim

    def _claim_bytes(self, size: int) -> None:
        """Claim the bytes of a large answer, and stop reading until they are granted."""
        bodies = self._pool.bodies
        if bodies is None or self._claim is not None or self._transport is None:
            return
        self._claim = bodies.claim(self._caller, size, self._granted)
        if not self._claim.is_granted:
            self._transport.pause_reading()
            self._too_late = self.loop.call_later(WAIT_SECONDS, self._give_up)

    def _granted(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None
        if self._stream is None or not self._stream.is_full:
            self.read_on()

    def _give_up(self) -> None:
        self._too_late = None
        self._end(Crowded(crowded(WAIT_SECONDS), server=self._pool.server))

    def _drop_claim(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def drain(self) -> None:
        """Wait a moment for the end of the stream, which nobody takes."""
        if self._stream is not None:
            self._stream.end(None)
            self._stream = None
            self._drop_claim()
            self.read_on()
            self._drain_timer = self.loop.call_later(DRAIN_SECONDS, self.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- for the event loop --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called once."""
        self._transport = cast("asyncio.Transport", transport)
        self._is_readable = _watcher(transport)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came; any that nobody asked for end the connection."""
        if not self._is_open:
            self.abort()
            return
        if self._missing:
            self._take(data)
            return
        is_start = not self._quiet and not self._has_head
        if is_start and (found := self._pool.repeats.find(data)) is not None:
            self._come_again(*found)
            return
        self._quiet += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("it switched protocols")
        except (httptools.HttpParserError, httptools.HttpParserCallbackError):
            self._fail("its answer is malformed")
        if self._quiet > MAX_HEAD_BYTES:
            self._fail("the head of its answer is too long")
        if not self._is_open:
            answer = self._answer
            if is_start and self._stays_open and answer is not None and answer.status == 200:
                self._pool.repeats.keep(data, AnswerHead(self._headers, self._length, self._is_single))
            self._settle()
            self._give()
        elif self._answer is not None:
            self._give()
        elif self._length - self._size >= LONG_BYTES:
            self._missing = self._length - self._size

    def _come_again(self, head: AnswerHead, body: bytes) -> None:
        """An answer came whole whose head is known; the parser, which is between two answers, has no part in it."""
        self._is_open, self._stays_open = False, True
        self._answer = Answer(200, head.fields, [body])
        self._settle()
        self._give()

    def _take(self, data: bytes) -> None:
        """More of a long body came. The parser stays where the body began; after its end there is a new one."""
        self._missing -= len(data)
        if self._missing < 0:  # nobody asked for what follows
            data = data[: self._missing]
            self._missing, self._stays_open = 0, False
        self._parts.append(data)
        if self._missing:
            return
        self.on_message_complete()
        self._parser = httptools.HttpResponseParser(self)
        self._settle()
        self._give()

    def eof_received(self) -> bool:
        """No more comes, which is the end of a body that has no other."""
        if self._is_open and self._until_end:
            self.on_message_complete()
            self._give()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called once."""
        self._transport = None
        self._fail("the connection closed")
        self._drop_claim()
        self._pool.lost(self)

    def _fail(self, why: str) -> None:
        self._end(UpstreamLost(why, server=self._pool.server))

    def _end(self, failure: UpstreamLost) -> None:
        """The answer does not come to its end."""
        if self._is_open:
            stream = self._stream
            self._close_answer(failure)
            waiter, self._waiter = self._waiter, None
            if waiter is not None and stream is not None:
                waiter.settle(self._answered(stream), is_plain=False)
            elif waiter is not None:
                waiter.fail(failure)
        self._stays_open = False
        self.abort()

    def _close_answer(self, failure: UpstreamLost | None) -> None:
        self._is_open = False
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.claim = self.take_claim()
            stream.end(failure)

    def _settle(self) -> None:
        """All that came with the answer is read: keep the connection, or close it."""
        if self._stays_open and self._transport is not None and not self._transport.is_closing():
            self.idle_since = self.loop.time()
            self._pool.keep(self)
        else:
            self.abort()

    # -- for httptools -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins; after a complete one nobody asked for it."""
        if not self._is_open:
            self._stays_open = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field, of the head or (dropped) of a trailer."""
        if not self._has_head:
            name = name.lower()
            if name in self._headers:
                value, self._is_single = self._headers[name] + b", " + value, False
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        """The head is complete."""
        status = self._parser.get_status_code()
        self._is_interim = status < 200
        if status == 101:
            self._fail("it switched protocols")
        if self._is_interim or not self._is_open:
            return
        headers = self._headers
        self._has_head = True
        coding = headers.get(b"transfer-encoding")
        length = headers.get(b"content-length")
        self._until_end = coding is None and length is None and status not in (204, 304)
        self._stays_open = self._parser.should_keep_alive() and not self._until_end
        if coding is not None and coding.strip().lower() != b"chunked":
            self._fail("it frames its answer in a way that is not taken")
        elif status == 200 and headers.get(b"content-type", b"").lower().startswith(b"text/event-stream"):
            self._stream = Stream(self, self._pool, headers)
        elif length is not None:
            self._length = int(length)
            if self._length > self._pool.max_body_bytes:
                self._end(TooLarge("", server=self._pool.server))
            elif self._length >= LARGE_BYTES and self._waiter is not None:
                self._claim_bytes(self._length)

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._quiet = 0
        stream = self._stream
        if stream is not None:
            stream.feed(data)
            if stream.is_ready and self._waiter is not None:
                self._answer = self._answered(stream)
            if stream.is_full and self._transport is not None:
                self._transport.pause_reading()
            if stream.pending_bytes >= LARGE_BYTES:
                self._claim_bytes(self._pool.max_body_bytes)
        elif self._waiter is not None:
            self._parts.append(data)
            self._size += len(data)
            if self._size > self._pool.max_body_bytes:
                self._end(TooLarge("", server=self._pool.server))
            elif self._size >= LARGE_BYTES and not self._length:
                self._claim_bytes(self._pool.max_body_bytes)

    def on_message_complete(self) -> None:
        """The answer is complete, or an interim one that does not count."""
        if self._is_interim:
            self._is_interim = False
            self._headers = {}
        elif self._is_open:
            if self._waiter is not None:
                self._answer = self._answered(self._stream)
            self._close_answer(None)

    def _answered(self, stream: Stream | None) -> Answer:
        parts, self._parts = self._parts, []
        return Answer(self._parser.get_status_code(), self._headers, parts, stream, self.take_claim() if stream is None else None)

    def _give(self) -> None:
        """Give the answer, after all else: who waits for it may go on at once, with this very connection."""
        answer, self._answer = self._answer, None
        waiter, self._waiter = self._waiter, None
        if answer is not None and waiter is not None:
            waiter.settle(answer, is_plain=answer.status == 200)


def _watcher(transport: asyncio.BaseTransport) -> Callable[[], bool]:
    """Tells whether something came that the loop has not read yet, such as the end: a request must not go out after it."""
    connected = transport.get_extra_info("socket")
    if connected is None or not hasattr(select, "poll"):
        return lambda: False
    poll = select.poll()
    poll.register(connected.fileno(), select.POLLIN)
    return lambda: bool(poll.poll(0))


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if not isinstance(error, ssl.SSLError | socket.gaierror):
        return "All connection attempts failed"
    return connect_problem(error)
