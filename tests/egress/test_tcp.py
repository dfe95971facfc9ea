"""Connections to servers: an attempt that is cancelled at any moment leaves no socket open."""

from __future__ import annotations

import asyncio  # noqa: TID251  # how a cancelled attempt ends
import gc
import warnings
from contextlib import suppress

import pytest

from gateway.egress.tcp import connector


class Closing(asyncio.Protocol):
    """Closes each connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


@pytest.mark.parametrize("turns", range(14))
async def test_cancelled_attempt_leaves_no_socket_open(turns: int) -> None:
    server = await asyncio.get_running_loop().create_server(Closing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attempt = asyncio.ensure_future(connector("127.0.0.1", port, None)(Closing))
        for _ in range(turns):
            await asyncio.sleep(0)
        attempt.cancel()
        with suppress(asyncio.CancelledError):
            await attempt
        del attempt
        await asyncio.sleep(0.02)
        gc.collect()
        server.close()
        await server.wait_closed()
    assert [str(warning.message) for warning in caught if f"raddr=('127.0.0.1', {port})" in str(warning.message)] == []
