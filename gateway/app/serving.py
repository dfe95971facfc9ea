"""Brings a gateway to its clients, over standard input and output or over HTTP, until a signal ends it.

Knows signals, sockets and uvicorn; what is served it is handed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from gateway.app.workers import Place, shared
from gateway.config.models import ServerSettings
from gateway.errors import ConfigError
from gateway.server.build import GatewayServer
from gateway.server.origins import host_port, shown_host

if TYPE_CHECKING:
    import uvicorn

    from gateway.server.first_answers import FirstAnswers, Listed
    from gateway.server.http import KeyGate

logger = logging.getLogger(__name__)

SIGNAL_BURST_SECONDS = 0.5
"""Signals closer together count once: a terminal and a supervisor may both send one."""


async def serve_stdio(server: GatewayServer, first: FirstAnswers | None = None, listed: Listed | None = None) -> None:
    """Serve one client until it closes the pipe, or SIGINT or SIGTERM comes. The other arguments are as in `server.stdio`."""
    from gateway.server.stdio import serve_stdio

    async with anyio.create_task_group() as tasks:

        def stop(count: int) -> None:
            tasks.cancel_scope.cancel()

        tasks.start_soon(_on_signals, stop)
        await serve_stdio(server, first, listed)
        tasks.cancel_scope.cancel()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Listening sockets and the address at which clients reach them."""

    listeners: list[socket.socket]
    settings: ServerSettings
    port: int
    """The one bound, which may not be the one asked for."""
    url: str
    """Of the MCP endpoint."""

    @classmethod
    def bind(cls, host: str, port: int, settings: ServerSettings, listener: socket.socket | None = None) -> Endpoint:
        """Listen, unless `listener` does; clients may connect from here on and wait until they are served. `serve_http` closes it.

        Raises:
            ConfigError: The address is taken or may not be used.
        """
        listener = listener or bind(host, port)
        return cls([listener], settings, *_reached_at(host, listener, settings))

    @classmethod
    def at_place(cls, host: str, place: Place, settings: ServerSettings) -> Endpoint:
        """Where a worker serves: the socket that all share, and at home the one for what the others hand on."""
        reached_at = _reached_at(host, place.listener, settings)
        listeners = [shared(place.listener)]
        if place.is_home:
            listeners.append(shared(place.home))
        else:
            place.home.close()
        return cls(listeners, settings, *reached_at)


def _reached_at(host: str, listener: socket.socket, settings: ServerSettings) -> tuple[int, str]:
    """Port and URL of the MCP endpoint."""
    bound = int(listener.getsockname()[1])
    return bound, f"http://{shown_host(host, bound, settings.http.allowed_hosts)}{settings.http.path}"


async def serve_http(endpoint: Endpoint, app: KeyGate, on_ready: Callable[[str], None], on_stop: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM comes or it is cancelled; `on_ready` gets the endpoint's URL once it serves.

    `on_stop` is called at a signal, before the listeners close.

    After the first signal calls that run may finish, for `drain_seconds` at most; the second ends them.
    """
    import uvicorn

    from gateway.app.http1 import patient_protocol

    http = endpoint.settings.http
    server = _quiet_server(
        uvicorn.Config(
            app,
            http=patient_protocol(endpoint.settings, app.take, app.admit, app.usages),
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # `server.http` has them
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=http.drain_seconds,
            timeout_keep_alive=75,
        )
    )
    async with anyio.create_task_group() as tasks:

        async def announce() -> None:
            while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
                await anyio.sleep(0.005)
            on_ready(endpoint.url)

        def stop(count: int) -> None:
            on_stop()
            if server.server_state.tasks and count == 1:
                logger.warning("Stopping; what runs may take %s s more, a second signal ends it now", http.drain_seconds)
            server.should_exit = True
            server.force_exit = count > 1

        tasks.start_soon(announce)
        tasks.start_soon(_on_signals, stop)
        try:
            await server.serve(sockets=endpoint.listeners)
        except anyio.get_cancelled_exc_class():
            server.force_exit = True  # what runs is cancelled too
            with anyio.CancelScope(shield=True):
                await server.shutdown(sockets=endpoint.listeners)
                await server.lifespan.shutdown()
            raise
        tasks.cancel_scope.cancel()


async def _on_signals(stop: Callable[[int], None]) -> None:
    """Call `stop` with 1, 2, … for each SIGINT or SIGTERM, until cancelled; one stop often comes as a burst."""
    if threading.current_thread() is not threading.main_thread():
        return  # signals are the main thread's; whoever runs us beside it cancels
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        count, last = 0, float("-inf")
        async for _ in signals:
            if anyio.current_time() - last > SIGNAL_BURST_SECONDS:
                count, last = count + 1, anyio.current_time()
                stop(count)


def _quiet_server(config: uvicorn.Config) -> uvicorn.Server:
    """A uvicorn server that leaves signals to us: its own handling ends the process by re-raising them."""
    import uvicorn

    class Quiet(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

    return Quiet(config)


class AddressTaken(ConfigError):
    """Another program listens on the address."""


_LIVENESS = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 60),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 15),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 120_000),
)
"""Options by which a connection ends after two minutes without a reaction of the client's machine, which may have slept meanwhile. They are
in seconds, the last one in milliseconds. Accepted connections inherit them on Linux. Names that the system lacks are left out."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        AddressTaken: Another program listens there.
        ConfigError: The address may not be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns off delays (TCP_NODELAY) only for sockets that say TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for level, name, value in _LIVENESS:
        if (option := getattr(socket, name, None)) is not None:
            listener.setsockopt(level, option, value)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise _not_bound(error, host, port) from None
    listener.set_inheritable(False)
    return listener


def _not_bound(error: OSError, host: str, port: int) -> ConfigError:
    text = f"Cannot listen on {host_port(host, port)}: {error.strerror or error}."
    if error.errno == errno.EADDRINUSE:
        return AddressTaken(text, path="server.http.port")
    return ConfigError(f"{text} Choose another address with `--http HOST:PORT`.", path="server.http.port")
