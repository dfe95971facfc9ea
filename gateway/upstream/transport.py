"""Opens the transport of a server entry: stdio, streamable HTTP, or the old HTTP+SSE.

Yields the SDK's message streams; everything above is the same for all three. Not a place for protocol.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from gateway.config.models import HttpServer, ServerEntry, SseServer, StdioServer
from gateway.config.policies import SourcePolicy
from gateway.errors import UpstreamUnavailable
from gateway.json_types import JsonObject
from gateway.upstream.children import ChildProcesses, Holder
from gateway.upstream.exchange import Exchange, open_exchange
from gateway.upstream.http import Credentials, build_http_client, build_sse_client
from gateway.upstream.pipe import PipeWriter
from gateway.upstream.stdio import ChildLog, open_stdio

MAX_MESSAGE_BYTES = 67_108_864
"""One message from a server: larger lines, events and bodies are cut off (64 MiB)."""


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
    async def open(self, log: ChildLog, holder: Holder) -> AsyncGenerator[tuple[Any, Any], None]:
        """`open_transport`, a child process within its place among the gateway's children, held by `holder`."""
        async with AsyncExitStack() as stack:
            if self.children is not None and isinstance(self.entry, StdioServer):
                await stack.enter_async_context(self.children.place(self.name, holder))
            read, write = await stack.enter_async_context(open_transport(self.name, self.entry, log, self.credentials, self.children))
            if isinstance(write, PipeWriter) and self.policy.direct_path == "off":
                write.exchange = None
            yield read, write

    def exchange(self) -> Exchange | None:
        """The short cut for plain calls (`open_exchange`); the caller closes it."""
        if self.policy.direct_path == "off":
            return None
        return open_exchange(self.name, self.entry, self.credentials, max_body_bytes=MAX_MESSAGE_BYTES)


@asynccontextmanager
async def open_transport(
    server: str,
    entry: ServerEntry,
    log: ChildLog,
    credentials: Credentials | None = None,
    children: ChildProcesses | None = None,
) -> AsyncGenerator[tuple[Any, Any], None]:
    """Connect to `entry` and yield `(read, write)`; leaving ends the connection or the child process.

    `children` are the gateway's own; a program's child is the program's to watch over.

    Raises:
        UpstreamUnavailable: The child cannot be started, or the URL is unusable.
    """
    if isinstance(entry, StdioServer):
        async with open_stdio(server, entry, log, max_line_bytes=MAX_MESSAGE_BYTES, children=children) as streams:
            yield streams
        return
    _check_url(server, entry)
    if isinstance(entry, SseServer):

        def client_of(
            headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
        ) -> httpx2.AsyncClient:
            return build_sse_client(server, entry.url, entry.headers, credentials, timeout or httpx2.Timeout(60.0))

        async with sse_client(entry.url, httpx_client_factory=client_of) as streams:
            yield streams
        return
    async with (
        build_http_client(server, entry.url, entry.headers, credentials, max_body_bytes=MAX_MESSAGE_BYTES) as client,
        streamable_http_client(entry.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


def _check_url(server: str, entry: HttpServer | SseServer) -> None:
    parts = urlsplit(entry.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UpstreamUnavailable(f"{entry.url!r} is no http(s) URL; set `mcpServers.{server}.url`.", server=server)
