"""Opens the way to a server entry: stdio, streamable HTTP, or the old HTTP+SSE.

Yields a `Link`; everything above it is the same for all three. Not a place for protocol.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.config.models import HttpServer, ServerEntry, SseServer, StdioServer
from gateway.config.policies import SourcePolicy
from gateway.errors import UpstreamUnavailable
from gateway.json_types import JsonObject
from gateway.sdk import load
from gateway.upstream.children import ChildProcesses, Holder
from gateway.upstream.credentials import Credentials
from gateway.upstream.exchange import open_exchange
from gateway.upstream.link import Link, Streams
from gateway.upstream.links import HttpLink, OnSession, StreamLink
from gateway.upstream.standins import MAX_MESSAGE_BYTES
from gateway.upstream.stdio import ChildLog, open_stdio


@dataclass(frozen=True, slots=True)
class Remote:
    """One remote server, and what reaching it takes."""

    name: str
    entry: ServerEntry
    policy: SourcePolicy
    client: JsonObject
    """The `clientInfo` we present."""
    children: ChildProcesses | None = None
    """The processes of this gateway; `None` counts and watches none."""
    credentials: Credentials | None = None
    """What OAuth gives; `None` leaves the entry's fixed headers."""

    @asynccontextmanager
    async def open(self, log: ChildLog, holder: Holder) -> AsyncGenerator[Link, None]:
        """`open_transport`, a child process within its place among the gateway's children, held by `holder`."""
        async with AsyncExitStack() as stack:
            if self.children is not None and isinstance(self.entry, StdioServer):
                await stack.enter_async_context(self.children.place(self.name, holder))
            is_direct = self.policy.direct_path != "off"
            way = open_transport(self.name, self.entry, log, self.credentials, self.children, is_direct=is_direct)
            yield await stack.enter_async_context(way)


@asynccontextmanager
async def open_transport(
    server: str,
    entry: ServerEntry,
    log: ChildLog,
    credentials: Credentials | None = None,
    children: ChildProcesses | None = None,
    *,
    is_direct: bool = True,
) -> AsyncGenerator[Link, None]:
    """Connect to `entry` and yield the link; leaving ends the connection or the child process.

    `children` are the gateway's own; a program's child is the program's to watch over. Without `is_direct` everything goes through
    the SDK.

    Raises:
        UpstreamUnavailable: The child cannot be started, or the URL is unusable.
    """
    bodies = children.bodies if children is not None else None
    if isinstance(entry, StdioServer):
        how = open_stdio(
            server, entry, log, max_line_bytes=MAX_MESSAGE_BYTES, children=children, bodies=bodies, is_direct=is_direct
        )
        async with how as link:
            yield link
        return
    _check_url(server, entry)
    if isinstance(entry, HttpServer) and is_direct:
        exchange = open_exchange(server, entry, credentials, max_body_bytes=MAX_MESSAGE_BYTES, bodies=bodies)
        if exchange is not None:
            yield HttpLink(exchange, lambda up: _open_streams(server, entry, credentials, up))
            return
    async with _open_streams(server, entry, credentials) as streams:
        yield StreamLink(streams)


@asynccontextmanager
async def _open_streams(
    server: str, entry: HttpServer | SseServer, credentials: Credentials | None, up: OnSession | None = None
) -> AsyncGenerator[Streams, None]:
    way: AbstractAsyncContextManager[Streams]
    if isinstance(entry, SseServer):
        await load("gateway.upstream.sse")
        from gateway.upstream.sse import open_sse

        way = open_sse(server, entry, credentials)
    else:
        await load("gateway.upstream.streams")
        from gateway.upstream.streams import open_streamable

        way = open_streamable(server, entry, credentials, up)
    async with way as streams:
        yield streams


def _check_url(server: str, entry: HttpServer | SseServer) -> None:
    parts = urlsplit(entry.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UpstreamUnavailable(f"{entry.url!r} is no http(s) URL; set `mcpServers.{server}.url`.", server=server)
