"""Opens the MCP SDK's message streams to one server over streamable HTTP. Imported on first use, because it imports the SDK."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from mcp.client.streamable_http import streamable_http_client

from gateway.config.models import HttpServer
from gateway.upstream.carriers.http_carrier import OnSession
from gateway.upstream.carriers.sdk_carrier import Streams
from gateway.upstream.carriers.sdk_http_transport import build_http_client
from gateway.upstream.credential_protocols import Credentials
from gateway.wire.message_sizes import MAX_MESSAGE_BYTES


@asynccontextmanager
async def open_streamable(
    server: str,
    entry: HttpServer,
    credentials: Credentials | None,
    on_session: OnSession | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[Streams]:
    """Open the SDK's message streams to a server over streamable HTTP, for MCP 2025 and 2026, and yield them.

    `on_session` is called when the handshake of an MCP 2025 session is complete. `tls` replaces the context that all outgoing
    connections share.
    """
    client = build_http_client(
        server, entry.url, entry.headers, credentials, max_body_bytes=MAX_MESSAGE_BYTES, on_session=on_session, tls=tls
    )
    async with client, streamable_http_client(entry.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams:
        yield streams
