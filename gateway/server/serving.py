"""Serves a gateway over HTTP, or over standard input and output. Used by `Gateway`.

Serving ends at a signal, if the calling task is cancelled, or, over standard input and output, if the client closes its end of the pipe.

This module handles signals, the listening socket and the HTTP server uvicorn; the ASGI application is passed in.

Decided: one gateway is one process. Because: several worker processes behind one address cost more CPU per call and served fewer calls
per second, since all workers except one had to forward the requests that need shared state. Measured 2026-11-24 on 2 cores, medians of 3
runs of 12,000 calls, as ms of CPU per call / calls per second:

| client, connections | 1 process | 2 workers | 4 workers |
|---|---|---|---|
| 2026, 8 | 0.108 / 7,648 | 0.144 / 7,184 | 0.158 / 6,603 |
| 2026, 32 | 0.107 / 8,272 | 0.137 / 7,889 | 0.137 / 8,593 |
| 2025, 8 | 0.120 / 7,364 | 0.406 / 2,989 | 0.444 / 3,015 |
| 2025, 32 | 0.088 / 11,143 | 0.273 / 5,419 | 0.435 / 3,465 |

Instead of: worker processes with one that holds all state, or equal processes on one `SO_REUSEPORT` address.
With `storage.url`, several processes on one machine are replicas like those on several machines: start one per port, behind a balancer.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # connections that the kernel has queued are accepted without uvicorn
import contextlib
import errno
import functools
import logging
import socket
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.lowlevel

from gateway.config.models import HttpSettings, ServerSettings
from gateway.errors import ConfigError
from gateway.server.origins import host_port, shown_host
from gateway.stop_signals import stop_signals

if TYPE_CHECKING:
    import uvicorn

    from gateway.server.certificate import ServerCertificate
    from gateway.server.key_gate import KeyGate
    from gateway.server.running_calls import RunningCalls
    from gateway.server.startup_answers import Listed, StartupAnswers
    from gateway.server.stdio_transport import StdioParts
    from gateway.wire.http1_exchange import ConnectionWriter

logger = logging.getLogger(__name__)

SIGNAL_BURST_SECONDS = 0.5
"""SIGINT and SIGTERM signals within this many seconds count as one, because a terminal and a supervisor may both send a signal."""

IDLE_SECONDS = 0.5
"""Seconds for which idle connections of clients stay open after the listening socket was closed."""

QUEUED = 2_048
"""Maximum number of connections that the kernel keeps until the gateway accepts them."""

ACCEPT_TURNS = 4
"""Turns of the event loop in which asyncio hands a connection, which it accepted before the listening socket was closed, to the server."""

ANSWER_SECONDS = 1.0
"""Maximum seconds in which the calls that are ended may still answer their clients with an error."""

END_SECONDS = 5.0
"""Maximum seconds for which the ASGI application may clean up after its in-flight requests were cancelled."""


async def serve_stdio(server: StdioParts, first: StartupAnswers | None = None, listed: Listed | None = None) -> None:
    """Serve one client over standard input and output until it closes its end of the pipe, or SIGINT or SIGTERM arrives.

    `first` is the object that answered the client while the gateway was loading. `listed` is a function that stores results for the next
    start. It is called at most once, after the first listing that the fast path (without the MCP SDK) has handled in a 2025 session.
    """
    from gateway.server.stdio_transport import serve_stdio

    async with anyio.create_task_group() as tasks:

        def stop(count: int) -> None:
            tasks.cancel_scope.cancel()

        tasks.start_soon(_on_signals, stop)
        await serve_stdio(server, first, listed)
        tasks.cancel_scope.cancel()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A socket that listens for HTTP clients, with the URL at which clients reach the gateway."""

    listener: socket.socket
    settings: ServerSettings
    port: int
    """The TCP port of the socket. If port 0 was requested, the operating system chose it."""
    url: str
    """URL of the MCP endpoint, for clients."""

    @classmethod
    def bind(cls, host: str, port: int, settings: ServerSettings, listener: socket.socket | None = None) -> Endpoint:
        """Listen for HTTP clients at `host` and `port`, or use the socket `listener`, which `bind` has bound to them.

        Clients can connect from now on. `serve_http` answers them, and closes the socket when it ends.

        Raises:
            ConfigError: Another program listens at the address, or this process cannot listen there for another reason.
        """
        listener = listener or bind(host, port)
        try:
            listener.listen(QUEUED)
        except OSError as error:
            listener.close()
            raise _not_bound(error, host, port) from None
        bound = int(listener.getsockname()[1])
        scheme = "http" if settings.http.tls is None else "https"
        return cls(listener, settings, bound, f"{scheme}://{shown_host(host, bound, settings.http.allowed_hosts)}{settings.http.path}")


async def serve_http(
    endpoint: Endpoint,
    app: KeyGate,
    on_ready: Callable[[str], None],
    calls: RunningCalls,
    certificate: ServerCertificate | None = None,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Serve the ASGI application `app` over HTTP until SIGINT or SIGTERM arrives, or the calling task is cancelled.

    With `certificate`, clients use HTTPS, and new connections use a renewed certificate.

    `on_ready` is called with the endpoint's URL when the server has started, and `on_stop` at the first signal. For `leave_seconds` after
    the first signal, new requests are still served. Then in-flight requests have `drain_seconds` to finish; a second signal ends them at
    once. A client that has just lost the stream of its call, as `calls` knows, gets time to come back before the listening socket closes.
    A call that is ended is answered with an error.
    """
    import uvicorn

    from gateway.server.http_protocol import http_protocol

    http = endpoint.settings.http
    tls = certificate.context if certificate is not None else None
    server = _quiet_server(
        uvicorn.Config(
            app,
            http=http_protocol(endpoint.settings, app.take, app.admit, app.usages, tls),
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # `sdk_path.application` evaluates `X-Forwarded-Proto` itself
            server_header=False,
            lifespan="on",
            timeout_keep_alive=75,
        )
    )
    async with anyio.create_task_group() as tasks:

        async def announce() -> None:
            while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
                await anyio.sleep(0.005)
            on_ready(endpoint.url)

        async def drain() -> None:
            await anyio.sleep(await _leave(server, http, calls))
            await _end_calls(server, calls, "grace_period_over")

        def stop(count: int) -> None:
            if count > 1:
                server.should_exit = True
                tasks.start_soon(_end_calls, server, calls, "second_signal")
                return
            on_stop()
            tasks.start_soon(drain)

        tasks.start_soon(announce)
        if certificate is not None:
            tasks.start_soon(certificate.follow)
        tasks.start_soon(_on_signals, stop)
        try:
            await server.serve(sockets=[endpoint.listener])
        except anyio.get_cancelled_exc_class():
            server.force_exit = True
            with anyio.CancelScope(shield=True):
                await server.shutdown(sockets=[endpoint.listener])
            raise
        finally:
            if server.force_exit:
                await _end_application(server)
        tasks.cancel_scope.cancel()


async def _leave(server: uvicorn.Server, http: HttpSettings, calls: RunningCalls) -> float:
    """Serve new requests for `leave_seconds`, and then let the server refuse them. Return the seconds that are left of `drain_seconds`.

    New requests are also served while the client of a call may come back for the result, because it needs a new connection for that.
    """
    if http.leave_seconds:
        logger.warning("stopping, new requests are still served leave_seconds=%s", http.leave_seconds)
        await anyio.sleep(http.leave_seconds)
    began = anyio.current_time()
    while calls.may_be_resumed() and anyio.current_time() < began + http.drain_seconds:  # noqa: ASYNC110  # there is no event for the time
        await anyio.sleep(0.05)
    left = max(began + http.drain_seconds - anyio.current_time(), 0)
    if server.server_state.tasks:
        logger.warning("stopping, in-flight calls may finish until a second signal grace_seconds=%g", left)
    await _stop_listening(server)
    return left


async def _end_calls(server: uvicorn.Server, calls: RunningCalls, reason: str) -> None:
    """Cancel the in-flight calls, wait up to `ANSWER_SECONDS` until their clients have the errors, and let the server end."""
    if requests := len(server.server_state.tasks):
        logger.warning("ending in-flight calls reason=%s calls=%d", reason, requests)
    if calls.stop():
        with anyio.move_on_after(ANSWER_SECONDS):
            while server.server_state.tasks:  # noqa: ASYNC110  # uvicorn has no event for it
                await anyio.sleep(0.02)
    server.force_exit = True


async def _stop_listening(server: uvicorn.Server) -> None:
    """Close the listening socket, serve what comes over idle connections for `IDLE_SECONDS`, and then let the server shut down.

    A load balancer notices by the refused connections that the gateway is gone. A request that it has sent over an idle connection would
    be lost if the gateway closed the connection at once.
    """
    queued = [each for listener in (server.servers if server.started else ()) for each in _close(listener)]
    _leave_connections(server)
    await _serve_queued(server, queued)
    for _ in range(ACCEPT_TURNS):
        await anyio.lowlevel.checkpoint()
    until = anyio.current_time() + IDLE_SECONDS
    while _leave_connections(server) and anyio.current_time() < until:  # noqa: ASYNC110  # no event for it
        await anyio.sleep(0.02)
    server.should_exit = True


def _leave_connections(server: uvicorn.Server) -> int:
    """Let each connection close after its next response, and return the number of those that are idle."""
    connections = [cast("ConnectionWriter[Any]", each) for each in server.server_state.connections]
    return sum(connection.leave() for connection in connections)


def _close(listener: asyncio.Server) -> list[socket.socket]:
    """Close a listener, and return the connections that clients have opened and that it has not accepted yet.

    The kernel would reset them, with the requests that are already in them.
    """
    copies, found = [each.dup() for each in listener.sockets], list[socket.socket]()
    listener.close()
    for copy in copies:
        with copy, contextlib.suppress(OSError):  # the socket does not block, and raises `BlockingIOError` after the last connection
            while True:
                found.append(copy.accept()[0])
    return found


async def _serve_queued(server: uvicorn.Server, connections: list[socket.socket]) -> None:
    """Serve accepted connections like those that the server has accepted itself."""
    protocol = cast("Callable[..., asyncio.Protocol]", server.config.http_protocol_class)
    make = functools.partial(protocol, config=server.config, server_state=server.server_state, app_state=server.lifespan.state)
    for connection in connections:
        with contextlib.suppress(OSError):  # the client has closed the connection meanwhile
            await asyncio.get_running_loop().connect_accepted_socket(make, connection)


async def _end_application(server: uvicorn.Server) -> None:
    """Cancel the in-flight requests and end the ASGI application's lifespan, because uvicorn does neither when `force_exit` is set.

    If the lifespan did not end here, the closing event loop would cancel it, and uvicorn would log a traceback.
    """
    for request in server.server_state.tasks:
        request.cancel()
    with anyio.move_on_after(END_SECONDS, shield=True):
        await server.lifespan.shutdown()


async def _on_signals(stop: Callable[[int], None]) -> None:
    """Wait for SIGINT and SIGTERM until cancelled. At each signal, call `stop` with the number of signals so far (1, 2, …).

    Signals within `SIGNAL_BURST_SECONDS` count as one. Outside the main thread, which alone receives signals, return at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread receives signals; another thread stops the gateway by cancellation
    with stop_signals() as signals:
        count, last = 0, float("-inf")
        async for _ in signals:
            if anyio.current_time() - last > SIGNAL_BURST_SECONDS:
                count, last = count + 1, anyio.current_time()
                stop(count)


def _quiet_server(config: uvicorn.Config) -> uvicorn.Server:
    """Return a uvicorn server that does not handle signals.

    The signal handler of uvicorn raises each signal again, which ends the process.
    """
    import uvicorn

    class Quiet(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

    return Quiet(config)


class AddressTaken(ConfigError):
    """Raised if the gateway cannot listen at its address, because another program listens there."""


_LIVENESS = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 60),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 15),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 120_000),
)
"""Socket options (level, name, value) that close a TCP connection when the client's machine has not responded for two minutes.

Times are in seconds, except the value of `TCP_USER_TIMEOUT`, which is in milliseconds. On Linux, accepted connections inherit the options
of the listening socket. Options that the operating system does not have are not set.
"""


def bind(host: str, port: int, *, listens: bool = True) -> socket.socket:
    """Create a TCP socket that is bound to `host` and `port`, and return it.

    With `listens`, clients can connect from now on, and wait until the gateway serves. Without it, connections are refused until then
    (`Endpoint.bind`), so that a load balancer sends requests to another gateway.

    Raises:
        AddressTaken: Another program listens at the address.
        ConfigError: This process cannot listen at the address for another reason, such as a missing permission.
    """
    try:
        return bound_socket(host, port, listens=listens)
    except OSError as error:
        raise _not_bound(error, host, port) from None


def bound_socket(host: str, port: int, *, listens: bool = True) -> socket.socket:
    """Create a TCP socket that is bound to `host` and `port`, and return it. With `listens`, it also listens.

    Raises:
        OSError: This process cannot listen there; `errno` is `EADDRINUSE` if another program does.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that were created with IPPROTO_TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # On Windows, SO_REUSEADDR would let two programs listen at one address.
    exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR if exclusive is None else exclusive, 1)
    for level, name, value in _LIVENESS:
        if (option := getattr(socket, name, None)) is not None:
            listener.setsockopt(level, option, value)
    try:
        listener.bind((host, port))
        if listens:
            listener.listen(QUEUED)
    except OSError:
        listener.close()
        raise
    listener.set_inheritable(False)
    return listener


def _not_bound(error: OSError, host: str, port: int) -> ConfigError:
    text = f"Cannot listen on {host_port(host, port)}: {error.strerror or error}."
    if error.errno == errno.EADDRINUSE:
        return AddressTaken(f"{text} Stop the program that listens there, or choose another address.", path="server.http.port")
    return ConfigError(f"{text} Choose another address with `--http HOST:PORT`.", path="server.http.port")
