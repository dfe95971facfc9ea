"""A gateway that stops serves what a load balancer has already sent over an idle connection, and refuses new connections."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from gateway.server.serving import IDLE_SECONDS
from tests.fakes.running import child, free_port, wait_until_ready, write_config

pytestmark = pytest.mark.timeout(60)


def status(connection: HTTPConnection) -> tuple[int, str | None]:
    """Send a request over a connection; return the status and the header `Connection` of the response."""
    connection.request("GET", "/health")
    response = connection.getresponse()
    response.read()
    return response.status, response.getheader("connection")


def read_status(connection: HTTPConnection) -> int:
    """Read the response of a connection and close the connection; return the status."""
    with closing(connection):
        return connection.getresponse().status


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except ConnectionRefusedError:
        return True
    return False


def test_request_on_an_idle_connection_is_served_after_sigterm(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    path = write_config(tmp_path, {})
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        used, idle = HTTPConnection("127.0.0.1", port, timeout=10), HTTPConnection("127.0.0.1", port, timeout=10)
        assert status(used) == status(idle) == (200, None)
        os.kill(process.pid, signal.SIGTERM)
        stopped = time.monotonic()
        while not is_refused(port):
            assert time.monotonic() - stopped < IDLE_SECONDS, "new connections are refused at once"
        assert status(used) == (200, "close")
        process.wait(10)
        assert time.monotonic() - stopped < IDLE_SECONDS + 3
        idle.close()
    assert "Traceback" not in log.read_text()


def test_queued_connection_is_served_after_sigterm(tmp_path: Path) -> None:
    """A connection that the kernel has accepted, but the busy gateway has not, is served with the request that it contains."""
    port, log = free_port(), tmp_path / "log"
    path = write_config(tmp_path, {})
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        os.kill(process.pid, signal.SIGSTOP)
        queued = [HTTPConnection("127.0.0.1", port, timeout=10) for _ in range(20)]
        for connection in queued:
            connection.request("GET", "/health")
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGCONT)
        assert [read_status(connection) for connection in queued] == [200] * 20
        process.wait(10)
    assert "Traceback" not in log.read_text()
