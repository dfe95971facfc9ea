"""`Homeward`: hands requests of a worker on to the one that remembers, byte for byte, and its answers back.

ASGI middleware behind the key gate and the direct path of a worker that is not home (`app.workers`): what the direct path did not
take, and every other route, is answered by home, which checks keys, Host and Origin again. Nothing is read of a request but its
framing. A client that leaves ends its request at home; where home dies, or gives no sign of life any more, its requests fail, and new
ones wait a while for the next.

Plain asyncio for the connection, as in `upstream.pool`; the request itself is a task group.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Protocol, cast

import anyio
import httptools

from gateway.server.answers import json_answer
from gateway.server.calls import RUNNING_SCOPE_KEY
from gateway.server.origins import PROXY_HOST

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

logger = logging.getLogger(__name__)

HOME_SECONDS = 10.0
"""How long a request waits for home to be there; then 503."""

LOOK_SECONDS = 0.02
"""Between two looks whether home is there."""

WATCH_SECONDS = 1.0
"""Between two looks, while home is at work for us, whether it still lives."""

IDLE_SECONDS = 30.0
"""A connection unused for longer is not used again; home itself closes it later."""

MAX_IDLE = 8
"""Connections kept for later requests; to home each is one of the connections that it may have."""

HIGH_WATER_BYTES = 262_144
"""Of an answer nobody has taken yet; reading pauses here."""

RETRY_SECONDS = 1
"""What clients are told to wait where home is not there."""

_HOP = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"expect", b"te", b"date"})
"""Headers of one connection; and the date, which each process writes itself."""

_PROXYS = frozenset({b"x-forwarded-proto", b"x-forwarded-for"})
"""Headers that are taken from a proxy on this machine and from nobody else; home cannot see who sent them."""

_LOST = "The worker of the gateway that had this request ended; it may have run."
_AWAY = "The gateway's first worker is not there; try again."

Headers = list[tuple[bytes, bytes]]


class HomeState(Protocol):
    """How home is, as all workers see it."""

    @property
    def home_serves(self) -> bool:
        """Whether it takes requests."""
        ...

    @property
    def home_lives(self) -> bool:
        """Whether it may still answer those that it took."""
        ...


class HomeLost(Exception):
    """The connection broke before the answer was whole."""


class Homeward:
    """Hands on; `app` gets calls that were begun here, and what is about this process alone."""

    def __init__(self, app: ASGIApp, *, path: str, home: HomeState, own_paths: frozenset[str]) -> None:
        """`path` is home's socket; requests for `own_paths` are answered here."""
        self._app = app
        self._path = path
        self._home = home
        self._own_paths = own_paths
        self._idle: list[_Line] = []
        self._busy: set[_Line] = set()
        self._watch: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer from home, or pass on."""
        if scope["type"] != "http" or scope["path"] in self._own_paths or RUNNING_SCOPE_KEY in scope:
            await self._app(scope, receive, send)
            return
        if not await self._is_home_there():
            await _refuse(503, _AWAY)(scope, receive, send)
            return
        answer = _Answer(send)
        try:
            line = await self._line()
            self._busy.add(line)
            self._watch_home()
            try:
                await self._exchange(line, scope, receive, answer)
            finally:
                self._busy.discard(line)
        except (HomeLost, OSError):
            if answer.is_begun:  # left unfinished, so the server cuts the connection and the client sees that it is not whole
                logger.warning("the first worker ended in the middle of an answer")
                return
            await _refuse(502, _LOST)(scope, receive, send)

    async def _is_home_there(self) -> bool:
        with anyio.move_on_after(HOME_SECONDS):
            while not self._home.home_serves:  # noqa: ASYNC110  # shared memory has no event
                await anyio.sleep(LOOK_SECONDS)
        return self._home.home_serves

    def _watch_home(self, *, was_silent: bool = False) -> None:
        """Look later, while anything waits, whether home lives."""
        if self._watch is None and self._busy:
            self._watch = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._look, was_silent)

    def _look(self, was_silent: bool) -> None:
        """End what waits for a home that did not live the last time either: both may just have been stopped, and go on."""
        self._watch = None
        is_silent = not self._home.home_lives
        if is_silent and was_silent:
            for line in list(self._busy):
                line.close()
        else:
            self._watch_home(was_silent=is_silent)

    async def _exchange(self, line: _Line, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_upload, line, scope, receive, answer, tasks.cancel_scope)
                await answer.take(line, is_head=scope["method"] == "HEAD")
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            line.close()
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        except BaseException:
            line.close()
            raise
        if line.is_reusable and line.is_sent and len(self._idle) < MAX_IDLE:
            line.rest()
            self._idle.append(line)
        else:
            line.close()

    async def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        while self._idle:
            line = self._idle.pop()
            if line.is_open and loop.time() - line.rested < IDLE_SECONDS:
                return line
            line.close()
        with anyio.fail_after(HOME_SECONDS):
            _, line = await loop.create_unix_connection(_Line, self._path)
        return line


async def _upload(line: _Line, scope: Scope, receive: Receive, answer: _Answer, whole: anyio.CancelScope) -> None:
    """Send the request, then watch for its client to leave before it has its answer."""
    client: tuple[str, int] | None = scope.get("client")
    left_out = _HOP if client is not None and client[0] == PROXY_HOST else _HOP | _PROXYS
    headers = [(name, value) for name, value in cast("Headers", scope["headers"]) if name not in left_out]
    is_chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
    target = scope.get("raw_path") or scope["path"].encode()
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    head = [b"%s %s HTTP/1.1" % (scope["method"].encode(), target), *(b"%s: %s" % header for header in headers)]
    if is_chunked:
        head.append(b"transfer-encoding: chunked")
    line.write(b"\r\n".join(head) + b"\r\n\r\n")
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            if not answer.is_whole:
                line.close()
                whole.cancel()
            return
        body = message.get("body", b"")
        is_last = not message.get("more_body", False)
        if is_chunked:
            body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if is_last else b"")
        if body:
            line.write(body)
            await line.writable()
        line.is_sent = is_last


class _Answer:
    """One answer on its way to the client."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_begun = self.is_whole = False

    async def take(self, line: _Line, *, is_head: bool) -> None:
        """Give the client what home answers, to the end. Raises `HomeLost`."""
        status, headers = await line.head()
        self.is_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        if is_head:
            await self._send({"type": "http.response.body", "body": b""})
            line.is_reusable = False
            return
        while True:
            part, self.is_whole = await line.part()
            await self._send({"type": "http.response.body", "body": part, "more_body": not self.is_whole})
            if self.is_whole:
                return


class _Line(asyncio.Protocol):
    """One connection home, one request at a time; also what its parser calls."""

    def __init__(self) -> None:
        self.rested = 0.0
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._blocked: asyncio.Future[None] | None = None
        self.rest()

    def rest(self) -> None:
        """Be ready for the next request."""
        self.rested = asyncio.get_running_loop().time()
        self.is_reusable = False
        self.is_sent = False
        """Whether home has the request to its end; it may answer before, and would take the next one for the rest of it."""
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._head: tuple[int, Headers] | None = None
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._is_whole = False
        self._taker: asyncio.Future[None] | None = None

    # -- what the request uses ---------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send on."""
        if self._transport is not None and self.is_open:
            self._transport.write(data)

    async def writable(self) -> None:
        """Wait until home takes more."""
        if self._blocked is not None:
            await asyncio.shield(self._blocked)

    async def head(self) -> tuple[int, Headers]:
        """Status and headers of the answer. Raises `HomeLost`."""
        while self._head is None:
            await self._more()
        return self._head

    async def part(self) -> tuple[bytes, bool]:
        """What came of the body since the last part, and whether that is the end. Raises `HomeLost`."""
        while not self._parts and not self._is_whole:
            await self._more()
        part = b"".join(self._parts)
        self._parts.clear()
        if self._size > HIGH_WATER_BYTES and self._transport is not None and self.is_open:
            self._transport.resume_reading()
        self._size = 0
        return part, self._is_whole

    async def _more(self) -> None:
        if not self.is_open:
            raise HomeLost
        self._taker = asyncio.get_running_loop().create_future()
        try:
            await self._taker
        finally:
            self._taker = None

    def close(self) -> None:
        """Nothing more is wanted."""
        self.is_open = self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    # -- what the loop calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Parse; home is as we are, so what cannot be parsed is the end."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
            return
        if self._size > HIGH_WATER_BYTES and self._transport is not None and not self._is_whole:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over, and so is what waits for it."""
        self.is_open = False
        self.resume_writing()
        self._wake()

    def pause_writing(self) -> None:
        """Home does not read."""
        self._blocked = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """It does again."""
        if self._blocked is not None and not self._blocked.done():
            self._blocked.set_result(None)
        self._blocked = None

    # -- what the parser calls ---------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """All of them; an interim answer is none."""
        status = self._parser.get_status_code()
        if status >= 200:
            self._head = status, [header for header in self._headers if header[0] not in _HOP]
            self.is_reusable = self._parser.should_keep_alive()
            self._wake()
        self._headers = []

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._parts.append(body)
        self._size += len(body)
        self._wake()

    def on_message_complete(self) -> None:
        """The end of the answer."""
        if self._head is not None:
            self._is_whole = True
            self._wake()

    def _wake(self) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)


def _refuse(status: int, text: str) -> ASGIApp:
    return json_answer({"error": text}, status, {"Retry-After": str(RETRY_SECONDS)})
