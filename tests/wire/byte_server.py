"""A server that sends given bytes as its answer to each request, and builders of HTTP responses."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.abc

ASK = b"POST /mcp HTTP/1.1\r\nhost: here\r\ncontent-length: 0\r\n\r\n"
LIMIT = 1_000_000


class Site:
    """A server that answers each request on a connection with the next of `answers`, and counts both."""

    def __init__(self, *answers: bytes | None) -> None:
        """Create a server with these answers in order. For `None` the server closes the connection instead of answering."""
        self.answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []
        self.left = anyio.Event()
        self.closed = anyio.Event()
        self.handle: Callable[[anyio.abc.SocketStream], Awaitable[None]] = self.answer
        self.port = 0

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        self.connections += 1
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await self.handle(stream)
        self.closed.set()

    async def answer(self, stream: anyio.abc.SocketStream) -> None:
        try:
            while True:
                self.requests.append(await read_request(stream))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    return
                await stream.send(answer)
        finally:
            self.left.set()


async def read_request(stream: anyio.abc.SocketStream) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    while len(body) < length:
        body += await stream.receive()
    return head + b"\r\n\r\n" + body


@asynccontextmanager
async def serving(*answers: bytes | None) -> AsyncGenerator[Site]:
    site = Site(*answers)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        site.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.start_soon(listener.serve, site.serve)
        with anyio.fail_after(20):
            yield site
        tasks.cancel_scope.cancel()


def plain(body: bytes, *fields: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """An answer with a length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def result(number: int, value: dict[str, Any] | None = None) -> bytes:
    """A JSON-RPC answer."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": value or {"ok": True}}).encode()
