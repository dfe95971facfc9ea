"""The address at which `moongate run` serves metrics for Prometheus (`telemetry.prometheus`): binds it and serves them there.

The address is not that of the MCP endpoint, because metrics need no API key. Every program that can connect to the address can read them.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from gateway.errors import ConfigError
from gateway.server.origins import host_port, is_loopback
from gateway.server.serving import bound_socket

KEY = "telemetry.prometheus"


def bind_metrics(address: tuple[str, int]) -> socket.socket:
    """Listen at the host and port of `address`, and return the socket. Connections wait until `serving_metrics` accepts them.

    Raises:
        ConfigError: Another program listens at the address, or this process cannot listen there for another reason.
    """
    place = host_port(*address)
    try:
        return bound_socket(*address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            text = f"Cannot serve metrics at {place}: another program listens there. Stop it, or choose another port with `{KEY}`."
        else:
            text = f"Cannot serve metrics at {place}: {error.strerror or error}. Choose another address with `{KEY}`."
        raise ConfigError(text, path=KEY) from None


@asynccontextmanager
async def serving_metrics(
    listener: socket.socket, host: str, record: Callable[[], Callable[[], None]]
) -> AsyncGenerator[None]:
    """Serve metrics at the socket `listener`, which listens at `host`, until the context exits.

    `record` begins to record the gateway's metrics, and returns a function that stops this.
    """
    from gateway.telemetry.prometheus import metrics_page
    from gateway.wire.loopback_server import serving

    stop = record()
    try:
        async with serving(metrics_page(only_loopback=is_loopback(host)), listener=listener):
            yield
    finally:
        stop()
