"""The SDK's message streams to one server over streamable HTTP. Loaded when a session first needs them (`gateway.sdk`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from mcp.client.streamable_http import streamable_http_client

from gateway.config.models import HttpServer
from gateway.upstream.credentials import Credentials
from gateway.upstream.http import build_http_client
from gateway.upstream.link import Streams
from gateway.upstream.links import OnSession
from gateway.upstream.standins import MAX_MESSAGE_BYTES


@asynccontextmanager
async def open_streamable(
    server: str, entry: HttpServer, credentials: Credentials | None, up: OnSession | None = None
) -> AsyncGenerator[Streams]:
    """Streamable HTTP, both eras; `up` is told of a 2025 session."""
    async with (
        build_http_client(server, entry.url, entry.headers, credentials, max_body_bytes=MAX_MESSAGE_BYTES, up=up) as client,
        streamable_http_client(entry.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams
