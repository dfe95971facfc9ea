"""A server of raw bytes in the event loop of the test."""

from __future__ import annotations

import asyncio  # noqa: TID251  # its streams
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def streams(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncGenerator[str]:
    """Run a TCP server and yield its URL. Each connection is passed to `serve` and closed after it; all are closed at the end."""
    running: set[asyncio.Task[None]] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                await serve(reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()
        running.discard(task)

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
