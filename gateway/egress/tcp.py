"""Opens TCP and TLS connections to the servers that the operator configured. `upstream` passes `connector` to `wire.http1_client`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

CONNECT_SECONDS = 10.0
"""Timeout for name resolution, TCP and TLS together."""

HAPPY_EYEBALLS_SECONDS = 0.25
"""Head start of each address over the next one of the same name (RFC 8305)."""

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)


def connector(host: str, port: int, tls: ssl.SSLContext | None) -> Callable[[Callable[[], ProtocolT]], Awaitable[ProtocolT]]:
    """Return a function that opens a connection to `host` and `port`, with TLS if `tls` is given.

    The function gets a factory of protocols, and returns the protocol of the new connection.

    The function raises `OSError` (`ssl.SSLError` and `socket.gaierror` among them) or `TimeoutError`.
    """

    async def connect(make_protocol: Callable[[], ProtocolT]) -> ProtocolT:
        loop = asyncio.get_running_loop()
        # uvloop does not support the option; it tries one address after the other.
        has_eyeballs = not type(loop).__module__.startswith("uvloop")
        options: dict[str, Any] = {"happy_eyeballs_delay": HAPPY_EYEBALLS_SECONDS} if has_eyeballs else {}
        server_hostname = host if tls is not None else None
        with anyio.fail_after(CONNECT_SECONDS):
            _, protocol = await loop.create_connection(make_protocol, host, port, ssl=tls, server_hostname=server_hostname, **options)
        return protocol

    return connect
