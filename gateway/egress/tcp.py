"""Opens TCP and TLS connections to configured servers. `upstream` passes the result of `connector` to `wire.http1_client`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

CONNECT_SECONDS = 10.0
"""Timeout in seconds for opening a connection: name resolution, TCP and TLS together."""

HAPPY_EYEBALLS_SECONDS = 0.25
"""Delay in seconds before the next IP address of a host is tried concurrently (RFC 8305), if the event loop is not uvloop's."""

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)


def connector(host: str, port: int, tls: ssl.SSLContext | None) -> Callable[[Callable[[], ProtocolT]], Awaitable[ProtocolT]]:
    """Return an async function that opens a connection to `host` and `port`, with TLS if `tls` is not `None`.

    The function receives a factory of asyncio protocols, and returns the protocol of the new connection. It raises `OSError` (also
    `ssl.SSLError` and `socket.gaierror`) or `TimeoutError`.
    """

    async def connect(make_protocol: Callable[[], ProtocolT]) -> ProtocolT:
        loop = asyncio.get_running_loop()
        # uvloop does not support `happy_eyeballs_delay`, and tries one address after the other. An IP address has no others to try, and
        # asyncio leaves a socket open if the attempts are cancelled when one has just succeeded.
        has_eyeballs = not (type(loop).__module__.startswith("uvloop") or ":" in host or host.rpartition(".")[2].isdigit())
        options: dict[str, Any] = {"happy_eyeballs_delay": HAPPY_EYEBALLS_SECONDS} if has_eyeballs else {}
        server_hostname = host if tls is not None else None
        with anyio.fail_after(CONNECT_SECONDS):
            _, protocol = await loop.create_connection(make_protocol, host, port, ssl=tls, server_hostname=server_hostname, **options)
        return protocol

    return connect
