"""`serving`: a small HTTP/1.1 server that receives a browser's redirect after an OAuth sign-in, or serves metrics.

It uses `http1_server` without uvicorn's server.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from uvicorn import Config
from uvicorn.server import ServerState

from gateway.wire.heap import Heap
from gateway.wire.http1_exchange import Exchange, UnreadConnection
from gateway.wire.http1_interfaces import Admission, Peer
from gateway.wire.http1_messages import RequestHead, WriteBatch
from gateway.wire.http1_server import ServerConnection

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HOST = "127.0.0.1"

MAX_CONNECTIONS = 32
"""Maximum number of open connections; a further connection receives a 503."""

REQUEST_SECONDS = 10.0
"""Timeout in seconds for each request's head and body, and for a client that does not read its response. For a connection that is idle
after a response, uvicorn's default applies."""


class _Connections:
    """Limits the number of connections of the loopback server. It does not count the bytes of requests and responses."""

    def __init__(self) -> None:
        self._open: set[Peer] = set()

    def network_of(self, client: tuple[str, int] | None, /) -> str | None:
        return None

    def opened(self, peer: Peer, now: float, /) -> bool | None:
        if len(self._open) >= MAX_CONNECTIONS:
            return None
        self._open.add(peer)
        return True

    def closed(self, peer: Peer, /) -> None:
        self._open.discard(peer)

    def incomplete(self, peer: Peer, admission: Admission | None, size: int, /) -> None:
        pass

    def completed(self, peer: Peer, /) -> None:
        pass

    def hold(self, connection: UnreadConnection, exchange: Exchange[RequestHead], size: int, /) -> bool:
        return False

    def drop(self, connection: UnreadConnection, /) -> None:
        pass


@asynccontextmanager
async def serving(app: ASGIApp, port: int = 0, *, listener: socket.socket | None = None) -> AsyncGenerator[int]:
    """Serve `app` until the context exits, and yield the port.

    Without `listener`, listen on 127.0.0.1; if `port` is 0, the system chooses a free port. `listener` is a socket that already listens. It
    is closed at the exit.

    Raises:
        OSError: The port cannot be bound; `strerror` is the system's text.
    """
    limits = _Connections()

    class Connection(ServerConnection[RequestHead]):
        __slots__ = ()

        make_head = RequestHead
        varies = bool  # not called: heads are cached only for the fast path
        write_batch = WriteBatch()
        heap = Heap()
        connections = unread_responses = limits
        head_seconds = body_seconds = unread_seconds = REQUEST_SECONDS

    config = Config(app, http=Connection, ws="none", lifespan="off", interface="asgi3", proxy_headers=False, log_config=None)
    state = ServerState()
    loop = asyncio.get_running_loop()
    try:
        if listener is not None:
            server = await loop.create_server(lambda: Connection(config, state, {}), sock=listener)
        else:
            server = await loop.create_server(lambda: Connection(config, state, {}), HOST, port, family=socket.AF_INET)
    except OSError as error:  # asyncio's text describes its own call; a person needs only the system's text
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in [*state.connections]:
            connection.shutdown()
