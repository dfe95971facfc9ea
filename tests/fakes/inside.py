"""Gateways and raw servers inside the test process, each in a thread of its own: real sockets, without the start time of a process."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal

from gateway.app import Gateway
from gateway.cli.main import run_command
from gateway.config.load import load_config
from tests.cli.processes import Ended, untouched_logging
from tests.fakes.raw_upstream import Raw, http_server
from tests.fakes.recorded_events import RecordedEvents
from tests.fakes.running import START_SECONDS, write_config


@dataclass(frozen=True)
class Inside:
    """A running gateway in a thread of the test process."""

    url: str
    path: Path
    """Path of the gateway's configuration file."""
    _gateway: Gateway
    _portal: BlockingPortal

    def reload(self, folder: Path, config: dict[str, Any]) -> None:
        """Reload the gateway with another configuration, as SIGHUP does."""
        self._portal.call(self._gateway.reload, load_config(write_config(folder, config, self.path.stem), os.environ))

    def look(self) -> None:
        """Wait until the servers have connected or failed to connect, and update the catalog."""
        self._portal.call(self._gateway.ready, START_SECONDS)


@contextmanager
def gateway_inside(folder: Path, config: dict[str, Any], name: str = "gateway") -> Generator[Inside]:
    """Run a gateway over HTTP in a thread and yield it when it is ready."""
    path = write_config(folder, config, name)

    @asynccontextmanager
    async def serving() -> AsyncGenerator[tuple[str, Gateway]]:
        loaded = load_config(path, os.environ)
        async with Gateway.from_config(loaded, events=RecordedEvents()) as gateway, anyio.create_task_group() as tasks:

            async def serve(*, task_status: TaskStatus[str]) -> None:
                await gateway.serve_http("127.0.0.1", 0, on_ready=task_status.started)

            url = await tasks.start(serve)
            await gateway.ready(START_SECONDS)
            yield url, gateway
            tasks.cancel_scope.cancel()

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving()) as (url, gateway):
        yield Inside(url, path, gateway, portal)


def command(*arguments: str) -> Ended:
    """Run one command of the command line to its end, here."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), untouched_logging():
        code = run_command(arguments)
    return Ended(code, out.getvalue(), err.getvalue())


@contextmanager
def raw_inside(told: dict[str, Any] | Raw) -> Generator[str]:
    """`tests.fakes.raw_upstream`, over HTTP, modern or as given; yields its URL. What `told` holds can be changed meanwhile."""
    server = http_server(told if isinstance(told, Raw) else Raw(told, modern=True), 0)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
