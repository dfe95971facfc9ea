"""An application behind a socket, as the gateway serves it: uvicorn with the gateway's HTTP protocol and fast path."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import uvicorn
from anyio.abc import SocketStream
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.config.models import ServerSettings
from gateway.server.http_protocol import StartFast, http_protocol


@asynccontextmanager
async def served(
    app: ASGIApp,
    take: StartFast | None = None,
    settings: ServerSettings | None = None,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> AsyncGenerator[int]:
    """The port of `app`, without its lifespan. With `tls`, it is served over HTTPS."""
    protocol = http_protocol(settings or ServerSettings(), take, tls=tls)
    given: dict[str, Any] = {"lifespan": "off", "log_config": None, "proxy_headers": False, "ws": "none", "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, **given))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: server.serve(sockets=[listener]))
            try:
                yield listener.getsockname()[1]
            finally:
                server.should_exit = True


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncGenerator[None]:
    """Start an application and stop it, as a server does."""
    started, leaving, stopped = anyio.Event(), anyio.Event(), anyio.Event()

    async def receive() -> Any:
        if started.is_set():
            await leaving.wait()
        return {"type": "lifespan.shutdown" if started.is_set() else "lifespan.startup"}

    async def send(message: Any) -> None:
        (stopped if started.is_set() else started).set()
        assert message["type"].endswith(".complete"), message

    async with anyio.create_task_group() as tasks:
        scope: Any = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        tasks.start_soon(cast("Any", app), scope, receive, send)
        await started.wait()
        yield
        leaving.set()
        await stopped.wait()


class Counting:
    """Counts what reaches an application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.count += 1
        await self.app(scope, receive, send)


class Wired:
    """An ASGI application that forwards each request to a local port, each on a new connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = await _request(scope, receive, (b"connection: close",))
        async with await anyio.connect_tcp("127.0.0.1", self.port) as stream:
            await stream.send(sent)
            told = b"".join([part async for part in stream])
        await _tell(told, send)


class Kept:
    """As `Wired`, but sends requests one after the other on one connection while the server keeps the connection open."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._stream: SocketStream | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = await _request(scope, receive, ())
        stream, self._stream = self._stream, None
        if stream is None:
            stream = await anyio.connect_tcp("127.0.0.1", self.port)
        await stream.send(sent)
        told = b""
        while not (is_whole := _is_whole(told)):
            try:
                told += await stream.receive()
            except anyio.EndOfStream:
                break
        if is_whole and b"\r\nconnection: close\r\n" not in told.partition(b"\r\n\r\n")[0] + b"\r\n":
            self._stream = stream
        else:
            await stream.aclose()
        await _tell(told, send)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._stream is not None:
            await self._stream.aclose()


async def _request(scope: Scope, receive: Receive, more: Sequence[bytes]) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message["body"])
        if not message["more_body"]:
            break
    lines = [b"%s %s HTTP/1.1" % (scope["method"].encode(), scope["raw_path"])]
    lines += [b"%s: %s" % line for line in scope["headers"]]
    return b"\r\n".join([*lines, *more, b"", b""]) + b"".join(parts)


def _is_whole(told: bytes) -> bool:
    head, found, body = told.lower().partition(b"\r\n\r\n")
    if b"\r\ntransfer-encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0].strip()
    return bool(found) and len(body) == int(length or 0)


async def _tell(told: bytes, send: Send) -> None:
    head, _, body = told.partition(b"\r\n\r\n")
    first, *rest = head.split(b"\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in rest)]
    if (b"transfer-encoding", b"chunked") in headers:
        body = _joined(body)
    await send({"type": "http.response.start", "status": int(first.split()[1]), "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _joined(chunked: bytes) -> bytes:
    parts: list[bytes] = []
    while chunked:
        size, _, chunked = chunked.partition(b"\r\n")
        parts.append(chunked[: int(size, 16)])
        chunked = chunked[int(size, 16) + 2 :]
    return b"".join(parts)
