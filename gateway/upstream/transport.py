"""Opens the transport to a remote server as configured: stdio, streamable HTTP, or the HTTP+SSE transport of 2024-11-05.

The result is a carrier: the object that sends and receives the messages of one transport.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from gateway.config.models import HttpServer, ServerEntry, SseServer, StdioServer
from gateway.config.policies import SourcePolicy
from gateway.errors import NotSent
from gateway.json_types import JsonObject
from gateway.sdk import load
from gateway.upstream.carriers.carrier import Carrier
from gateway.upstream.carriers.http_carrier import HttpOrSdkCarrier, OnSession, open_http_carrier
from gateway.upstream.carriers.sdk_carrier import SdkCarrier, Streams
from gateway.upstream.child_processes import ChildProcesses, Holder
from gateway.upstream.credential_protocols import Credentials
from gateway.upstream.single_servers import OnChild
from gateway.upstream.stdio import ChildLog, open_stdio
from gateway.wire.message_sizes import MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class Remote:
    """One remote server, with everything that is needed to connect to it: configuration entry, policy and credentials."""

    name: str
    entry: ServerEntry
    policy: SourcePolicy
    client: JsonObject
    """The `clientInfo` that the server receives."""
    children: ChildProcesses | None = None
    """Limits and watches the child processes of this gateway. With `None`, they are neither counted nor watched."""
    credentials: Credentials | None = None
    """OAuth credentials; `None` if the headers in the configuration entry suffice."""

    @asynccontextmanager
    async def open(self, log: ChildLog, holder: Holder) -> AsyncGenerator[Carrier, None]:
        """Open the transport to the server and yield its carrier (`carriers`), which sends and receives the messages.

        A server over stdio is a child process. While it runs, it counts towards the gateway's limit of child processes. If the limit is
        reached, the gateway stops an idle child process before it starts another; `holder` is the object that reports whether this server's
        process is idle, and stops it. `log` receives the diagnostics of the process.
        """
        async with AsyncExitStack() as stack:
            singles = self.children.singles if self.children is not None else None
            if singles is not None and isinstance(self.entry, StdioServer) and self.entry.single:
                yield await stack.enter_async_context(singles.open(self.name, partial(self._open_child, self.entry, log, holder)))
                return
            if self.children is not None and isinstance(self.entry, StdioServer):
                await stack.enter_async_context(self.children.place(self.name, holder))
            is_direct = self.policy.direct_path != "off"
            transport = open_transport(self.name, self.entry, log, self.credentials, self.children, is_direct=is_direct)
            yield await stack.enter_async_context(transport)

    def owns_process(self) -> bool:
        """Whether this gateway holds the lease of a server with `single: true`, so that it runs the process."""
        singles = self.children.singles if self.children is not None else None
        return singles is not None and singles.owns(self.name)

    @asynccontextmanager
    async def _open_child(self, entry: StdioServer, log: ChildLog, holder: Holder, on_child: OnChild) -> AsyncGenerator[Carrier, None]:
        """Start the process of a server with `single: true`, and call `on_child` with its process group."""
        children = self.children
        assert children is not None
        limit, bodies = MAX_MESSAGE_BYTES, children.bodies
        async with (
            children.place(self.name, holder),
            open_stdio(self.name, entry, log, max_line_bytes=limit, children=children, bodies=bodies, on_child=on_child) as carrier,
        ):
            yield carrier


@asynccontextmanager
async def open_transport(
    server: str,
    entry: ServerEntry,
    log: ChildLog,
    credentials: Credentials | None = None,
    children: ChildProcesses | None = None,
    *,
    is_direct: bool = True,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[Carrier, None]:
    """Open the transport of `entry`, and yield its carrier, the object that sends requests.

    Leaving closes the connection or ends the child process. `children` watches the gateway's child processes; it is `None` in a program
    that uses this package as a library. If `is_direct` is false, the MCP SDK sends all requests to a server over streamable HTTP. `tls`
    replaces the context that all outgoing connections share, for streamable HTTP.

    Raises:
        NotSent: The child process cannot be started, or the URL is unusable, or does not lead to the HTTP+SSE transport that is configured.
    """
    bodies = children.bodies if children is not None else None
    if isinstance(entry, StdioServer):
        async with open_stdio(server, entry, log, max_line_bytes=MAX_MESSAGE_BYTES, children=children, bodies=bodies) as carrier:
            yield carrier
        return
    _check_url(server, entry)
    if isinstance(entry, SseServer):
        await load("gateway.upstream.carriers.sse_carrier")
        from gateway.upstream.carriers.sse_carrier import open_sse

        async with open_sse(server, entry, credentials) as carrier:
            yield carrier
        return
    direct = open_http_carrier(server, entry, credentials, max_body_bytes=MAX_MESSAGE_BYTES, bodies=bodies, tls=tls) if is_direct else None
    if direct is not None:
        yield HttpOrSdkCarrier(direct, lambda on_session: _open_streams(server, entry, credentials, tls, on_session))
        return
    async with _open_streams(server, entry, credentials, tls) as streams:
        yield SdkCarrier(server, lambda: nullcontext(streams))


@asynccontextmanager
async def _open_streams(
    server: str, entry: HttpServer, credentials: Credentials | None, tls: ssl.SSLContext | None, on_session: OnSession | None = None
) -> AsyncGenerator[Streams, None]:
    await load("gateway.upstream.carriers.sdk_streams")
    from gateway.upstream.carriers.sdk_streams import open_streamable

    async with open_streamable(server, entry, credentials, on_session, tls) as streams:
        yield streams


def _check_url(server: str, entry: HttpServer | SseServer) -> None:
    parts = urlsplit(entry.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NotSent(f"{entry.url!r} is not an http(s) URL; set `mcpServers.{server}.url`.", server=server)
