"""The HTTP client of the benchmarks: sends calls over several connections, checks each response, and records latency and CPU time.

Each connection is an asyncio protocol that sends its next request when a response arrives. The driver uses no tasks, futures or models
per request, so it uses less CPU time than the fastest contender. A slot (the measurement of one load on one contender) ends after a
number of calls or seconds; a missing response fails the slot.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # asyncio.Protocol has no anyio equivalent
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import httptools

from benchmarks.payload import FIRST_NUMBER, LEGACY, META, PROTOCOL, Call

OPEN_SECONDS = 20.0
"""Timeout for connecting and opening sessions, for the warm-up calls, and for closing a session."""

GRACE_SECONDS = 10.0
"""Seconds that a slot waits, after its time has passed, for the responses to in-flight requests."""


class CallFailed(Exception):
    """A contender sent an error, closed a connection, or did not respond in time."""


@dataclass(frozen=True)
class Wire:
    """The port, path, tool name and headers for requests to one contender."""

    port: int
    path: str = "/mcp"
    tool: str = "tool_1"
    headers: tuple[str, ...] = ()
    """Additional complete header lines, for example `authorization`."""

    def head(self, method: str, era: str, name: str = "", session: str = "") -> bytes:
        """Return the head of a POST request up to `content-length: `; the caller appends the length and the blank line."""
        lines = [f"POST {self.path} HTTP/1.1", f"host: 127.0.0.1:{self.port}", *self.headers]
        lines += ["accept: application/json, text/event-stream", "content-type: application/json"]
        if era == "modern":
            lines += [f"mcp-protocol-version: {PROTOCOL}", f"mcp-method: {method}", *([f"mcp-name: {name}"] if name else [])]
        elif method != "initialize":
            lines += [f"mcp-protocol-version: {LEGACY}", *([f"mcp-session-id: {session}"] if session else [])]
        return ("\r\n".join(lines) + "\r\ncontent-length: ").encode()


@dataclass
class Taken:
    """The measurements of one slot: calls, wall time, CPU time and latencies, all times in seconds."""

    calls: int
    seconds: float
    cpu_seconds: float = 0.0
    latencies: list[float] = field(default_factory=list[float], repr=False)

    @property
    def per_second(self) -> float:
        return self.calls / self.seconds

    @property
    def cpu_per_thousand(self) -> float:
        """CPU seconds of the contender per 1,000 calls."""
        return self.cpu_seconds / self.calls * 1000

    def percentile(self, part: float) -> float:
        """Return the latency in milliseconds at the quantile `part` (0.99 for p99)."""
        ordered = sorted(self.latencies)
        return ordered[min(int(len(ordered) * part), len(ordered) - 1)] * 1000

    @property
    def p50(self) -> float:
        return statistics.median(self.latencies) * 1000


class Line(asyncio.Protocol):
    """A client connection that sends one request at a time, with its httptools callbacks."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._sent = 0.0
        self.answered: Callable[[int, bytes, float], None] = lambda status, body, seconds: None
        """Callback for each response, with the status, the body and the latency in seconds."""
        self.lost: Callable[[], None] = lambda: None

    def send(self, request: bytes) -> None:
        """Send a request and start measuring its latency."""
        assert self._transport is not None
        self._sent = time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        """Abort the connection without calling `lost`."""
        self.lost = lambda: None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.lost()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        seconds = time.perf_counter() - self._sent
        body, self._parts = b"".join(self._parts), []
        self.answered(self._parser.get_status_code(), body, seconds)


class SessionLine(Line):
    """A connection that stores the session id from the `mcp-session-id` response header."""

    def __init__(self) -> None:
        super().__init__()
        self.session = ""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"mcp-session-id":
            self.session = value.decode()


class StreamLine(Line):
    """A connection for a GET stream, with a future for the start of the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The HTTP status, set when the response headers have arrived."""

    def on_headers_complete(self) -> None:
        if not self.begun.done():
            self.begun.set_result(self._parser.get_status_code())


async def connect(wire: Wire, line: Line) -> None:
    """Connect `line` to the port of `wire` on 127.0.0.1."""
    await asyncio.get_running_loop().create_connection(lambda: line, "127.0.0.1", wire.port)


async def ask(line: Line, request: bytes) -> tuple[int, bytes]:
    """Send a request and return the status and body of its response.

    Raises:
        CallFailed: The connection was closed before the response was complete.
    """
    answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
    line.answered = lambda status, body, seconds: None if answer.done() else answer.set_result((status, body))
    line.lost = lambda: None if answer.done() else answer.set_exception(CallFailed("the connection was closed"))
    line.send(request)
    return await answer


async def request(wire: Wire, era: str, method: str, params: dict[str, Any], session: str = "") -> bytes:
    """Send a JSON-RPC request over a new connection and return the response body.

    Raises:
        CallFailed: The status is not 200, or the connection was closed.
    """
    line = Line()
    await connect(wire, line)
    try:
        status, body = await ask(line, whole(wire, era, method, params, session))
    finally:
        line.close()
    if status != 200:
        raise CallFailed(f"{method} was answered with {status}: {body[:200]!r}")
    return body


async def listing(wire: Wire, era: str) -> bytes:
    """Send `tools/list`, in a new session if the era is `legacy`, and return the response body."""
    session = await open_session(wire) if era == "legacy" else ""
    try:
        return await request(wire, era, "tools/list", {}, session)
    finally:
        if session:
            await close_session(wire, session)


class Streams:
    """Idle 2025 sessions, each with an open GET stream."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._lines: list[StreamLine] = []
        self._sessions: list[str] = []

    async def open(self, count: int) -> None:
        """Open `count` more sessions and wait until the GET stream of each has started."""
        for _ in range(count):
            session = await open_session(self._wire)
            line = StreamLine()
            await connect(self._wire, line)
            lines = [f"GET {self._wire.path} HTTP/1.1", f"host: 127.0.0.1:{self._wire.port}", *self._wire.headers]
            lines += ["accept: text/event-stream", f"mcp-session-id: {session}", f"mcp-protocol-version: {LEGACY}"]
            self._lines.append(line)
            self._sessions.append(session)
            line.send("\r\n".join(lines).encode() + b"\r\n\r\n")
            status = await asyncio.wait_for(line.begun, OPEN_SECONDS)
            if status != 200:
                raise CallFailed(f"a listening stream was answered with {status}")

    async def close(self) -> None:
        """Close all streams and delete their sessions."""
        for line in self._lines:
            line.close()
        for session in self._sessions:
            await close_session(self._wire, session)


async def post_json(wire: Wire, value: dict[str, Any]) -> bytes:
    """Send a JSON body with a POST request that is not an MCP message, and return the response body.

    Raises:
        CallFailed: The status is 300 or higher, or the connection was closed.
    """
    line = Line()
    await connect(wire, line)
    body = json.dumps(value).encode()
    head = "\r\n".join([f"POST {wire.path} HTTP/1.1", f"host: 127.0.0.1:{wire.port}", *wire.headers, "content-type: application/json"])
    try:
        status, answer = await ask(line, b"%s\r\ncontent-length: %d\r\n\r\n%s" % (head.encode(), len(body), body))
    finally:
        line.close()
    if status >= 300:
        raise CallFailed(f"{wire.path} was answered with {status}: {answer[:200]!r}")
    return answer


async def plain_get(port: int, path: str) -> bytes:
    """Send a GET request and return the response body, whatever the status is."""
    wire = Wire(port)
    line = Line()
    await connect(wire, line)
    try:
        return (await ask(line, f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()))[1]
    finally:
        line.close()


async def open_session(wire: Wire) -> str:
    """Send `initialize` and `notifications/initialized`; return the session id, or `""` if the server does not use sessions."""
    line = SessionLine()
    await connect(wire, line)
    try:
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        status, body = await ask(line, whole(wire, "legacy", "initialize", hello))
        if status != 200:
            raise CallFailed(f"initialize was answered with {status}: {body[:200]!r}")
        session = line.session
        notification = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
        await ask(
            line, wire.head("notifications/initialized", "legacy", session=session) + b"%d\r\n\r\n" % len(notification) + notification
        )
        return session
    finally:
        line.close()


async def close_session(wire: Wire, session: str) -> None:
    """Send a DELETE request for a session."""
    line = Line()
    await connect(wire, line)
    lines = [f"DELETE {wire.path} HTTP/1.1", f"host: 127.0.0.1:{wire.port}", *wire.headers]
    lines += [f"mcp-session-id: {session}", f"mcp-protocol-version: {LEGACY}"]
    try:
        await ask(line, "\r\n".join(lines).encode() + b"\r\n\r\n")
    finally:
        line.close()


def whole(wire: Wire, era: str, method: str, params: dict[str, Any], session: str = "") -> bytes:
    """Return a complete HTTP request, head and body, for a JSON-RPC request with id 1."""
    stamped = {**params, "_meta": META} if era == "modern" else params
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": stamped}).encode()
    return wire.head(method, era, params.get("name", ""), session) + b"%d\r\n\r\n" % len(body) + body


@dataclass(frozen=True)
class Load:
    """The requests of a slot: their era, sizes, number and concurrency."""

    era: str = "modern"
    size: int = 100
    result: int = 0
    is_image: bool = False
    """Whether the result contains an image instead of prose."""
    connections: int = 1
    calls: int = 2_000
    seconds: float = 0.5
    method: str = "tools/call"
    shares_session: bool = False
    """Whether all 2025 connections share one session; otherwise each connection has its own session."""


class Slot:
    """The execution of one load on one contender."""

    def __init__(self, wire: Wire, load: Load) -> None:
        self._wire = wire
        self._load = load
        self._call = Call(load.era, wire.tool, load.size, load.result, is_image=load.is_image)
        self._number = FIRST_NUMBER
        self._left = load.connections
        self._until = float("inf")
        self._under_way = 0
        self._latencies: list[float] = []
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = 0.0
        self._lines: list[Line] = []
        self._heads: list[bytes] = []
        self._sessions: list[str] = []

    async def run(self, cpu: Callable[[], float]) -> Taken:
        """Open the connections, make one warm-up call on each, and measure the load.

        `cpu` returns the CPU seconds that the contender has used since its start.

        Raises:
            CallFailed: The contender refused a connection, closed a connection, sent an error, or did not respond in time.
        """
        load = self._load
        try:
            await _within(OPEN_SECONDS, self._open())
            await _within(OPEN_SECONDS, self._calls(load.connections))
            self._latencies.clear()
            before, began = cpu(), time.perf_counter()
            await _within(load.seconds + GRACE_SECONDS, self._calls(load.calls, load.seconds))
            return Taken(len(self._latencies), self._ended - began, cpu() - before, self._latencies)
        finally:
            for line in self._lines:
                line.close()
            for session in self._sessions:
                await _within(OPEN_SECONDS, close_session(self._wire, session))

    async def _open(self) -> None:
        load, wire = self._load, self._wire
        name = wire.tool if load.method == "tools/call" else ""
        for n in range(load.connections):
            if load.era == "legacy" and (n == 0 or not load.shares_session):
                self._sessions += [session] if (session := await open_session(wire)) else []
            line = Line()
            await connect(wire, line)
            self._lines.append(line)
            self._heads.append(wire.head(load.method, load.era, name, self._sessions[-1] if self._sessions else ""))

    async def _calls(self, count: int, seconds: float = float("inf")) -> None:
        self._left, self._until = count, time.perf_counter() + seconds
        self._done = asyncio.get_running_loop().create_future()
        self._under_way = 0
        for line, head in zip(self._lines, self._heads, strict=True):
            self._under_way += 1
            self._next(line, head)
        await self._done

    def _next(self, line: Line, head: bytes) -> None:
        """Send the next request of a connection, unless the calls or the time of the slot are used up."""
        if self._left <= 0 or time.perf_counter() >= self._until:
            self._under_way -= 1
            if not self._under_way and not self._done.done():
                self._ended = time.perf_counter()
                self._done.set_result(None)
            return
        self._left -= 1
        self._number = number = self._number + 1
        body = self._message(number)

        def answered(status: int, answer: bytes, seconds: float) -> None:
            self._check(number, status, answer)
            self._latencies.append(seconds)
            self._next(line, head)

        line.answered = answered
        line.lost = self._lost
        line.send(b"%s%d\r\n\r\n%s" % (head, len(body), body))

    def _message(self, number: int) -> bytes:
        if self._load.method == "tools/call":
            return self._call.message(number)
        params = {"_meta": META} if self._load.era == "modern" else {}
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": self._load.method, "params": params}).encode()

    def _check(self, number: int, status: int, answer: bytes) -> None:
        is_call = self._load.method == "tools/call"
        is_good = status == 200 and len(answer) > self._call.least and (b"%d" % number) in answer[:1000] + answer[-1000:]
        if not is_good or (is_call and b'"isError":true' in answer[:300] + answer[-300:]) or b'"error"' in answer[:300]:
            self._fail(f"{self._load.method} was answered with {status}: {answer[:300]!r}")

    def _lost(self) -> None:
        self._fail("a connection was closed during a call")

    def _fail(self, why: str) -> None:
        if not self._done.done():
            self._done.set_exception(CallFailed(why))


async def _within(seconds: float, work: Awaitable[None]) -> None:
    try:
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise CallFailed(f"no answer in {seconds:g} s") from None
    except OSError as error:
        raise CallFailed(f"no connection: {error}") from None


async def drive(wire: Wire, load: Load, cpu: Callable[[], float] = lambda: 0.0) -> Taken:
    """Run one slot and return its measurements."""
    return await Slot(wire, load).run(cpu)
