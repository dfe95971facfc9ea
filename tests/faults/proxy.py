"""A TCP proxy that breaks connections as networks and dying servers do."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Literal

import anyio
import anyio.abc

Mode = Literal["pass", "cut", "reset", "half-close", "black-hole", "garbage", "drip", "refuse"]
CLOSED = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)


class FaultProxy:
    """Relays bytes between gateway and server. `mode` is the fault; `left` is the number of response bytes that pass before the fault."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.mode: Mode = "pass"
        self.left = 0
        self.connections = 0

    def arm(self, mode: Mode, after_bytes: int = 0) -> None:
        """Relay `after_bytes` more bytes of responses, then apply `mode`."""
        self.mode, self.left = mode, after_bytes

    async def handle(self, client: anyio.abc.SocketStream) -> None:
        self.connections += 1
        async with client:
            if self.mode == "refuse":
                return
            with suppress(OSError):
                async with await anyio.connect_tcp("127.0.0.1", self.target_port) as server, anyio.create_task_group() as tasks:
                    tasks.start_soon(self._up, client, server)
                    await self._down(client, server)
                    tasks.cancel_scope.cancel()

    async def _up(self, client: anyio.abc.SocketStream, server: anyio.abc.SocketStream) -> None:
        with suppress(*CLOSED):
            async for data in client:
                if self.mode == "black-hole" and self.left <= 0:
                    await anyio.sleep_forever()
                await server.send(data)
            await server.send_eof()

    async def _down(self, client: anyio.abc.SocketStream, server: anyio.abc.SocketStream) -> None:
        with suppress(*CLOSED):
            async for data in server:
                if self.mode == "pass" or len(data) <= self.left:
                    self.left -= len(data)
                    await client.send(data)
                    continue
                if self.left > 0:
                    await client.send(data[: self.left])
                rest, self.left = data[max(self.left, 0) :], 0
                await self._fail(client, rest)
                return

    async def _fail(self, client: anyio.abc.SocketStream, rest: bytes) -> None:
        match self.mode:
            case "reset":
                raw: socket.socket = client.extra(anyio.abc.SocketAttribute.raw_socket)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            case "half-close":
                await client.send_eof()
                await anyio.sleep_forever()
            case "black-hole":
                await anyio.sleep_forever()
            case "garbage":
                await client.send(b"\x00\xff garbage \r\n" * 20)
            case "drip":
                for byte in rest:
                    await client.send(bytes([byte]))
                    await anyio.sleep(1)
            case _:
                return


@asynccontextmanager
async def fault_proxy(target_port: int, proxy: FaultProxy | None = None) -> AsyncGenerator[FaultProxy]:
    """A running proxy, `proxy` or one of its own; leaving ends every connection."""
    proxy = proxy or FaultProxy(target_port)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    proxy.port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, proxy.handle)
        try:
            yield proxy
        finally:
            tasks.cancel_scope.cancel()
