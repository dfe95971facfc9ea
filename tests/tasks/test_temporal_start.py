"""The start of a gateway whose Temporal server is unreachable, silent or refuses it: the start ends with the address and the reason."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.running import ROOT, free_port, write_config
from tests.fakes.temporal import TemporalServer

pytestmark = pytest.mark.timeout(120)

KEY = "tmprl-key-in-no-output"


def run_gateway(folder: Path, temporal_section: dict[str, Any]) -> tuple[int, str, float]:
    """Exit code, output and seconds of a gateway that should not start."""
    tasks = {"engine": "temporal", "temporal": temporal_section}
    path = write_config(folder, {"tasks": tasks})
    began = time.monotonic()
    argv = [sys.executable, "-m", "gateway", "run", "--http", f"127.0.0.1:{free_port()}", "--config", str(path)]
    env = {**os.environ, "TEMPORAL_API_KEY": KEY}
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env=env)
    return ended.returncode, ended.stdout + ended.stderr, time.monotonic() - began


@pytest.mark.temporal
@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1", "no-such-host.invalid"])
def test_unreachable_server_ends_the_start_with_host_and_reason(host: str, tmp_path: Path, temporal_server: TemporalServer) -> None:
    address = f"{host}:{free_port()}"
    code, output, seconds = run_gateway(tmp_path, {"address": address, "apiKey": "${env:TEMPORAL_API_KEY}"})
    assert code != 0
    assert f"Temporal at {address} cannot be used" in output
    assert KEY not in output
    assert seconds < 10, "3.5 s for the connection, and the start of Python"


@pytest.mark.parametrize("more", [{}, {"apiKey": "${env:TEMPORAL_API_KEY}"}], ids=["plain", "tls"])
def test_server_that_accepts_and_never_answers_ends_the_start(more: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("temporalio")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts the connections
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        code, output, seconds = run_gateway(tmp_path, {"address": address, **more})
    assert code == 2
    assert f"Temporal at {address} cannot be used: " in output
    assert KEY not in output
    assert seconds < 9, "5 s, and more on a busy machine"


@pytest.mark.temporal
def test_unknown_namespace_ends_the_start(tmp_path: Path, temporal_server: TemporalServer) -> None:
    code, output, _ = run_gateway(tmp_path, {"address": temporal_server.address, "namespace": "nowhere"})
    assert code != 0
    assert f"Temporal at {temporal_server.address}: the namespace 'nowhere' does not exist there" in output


@pytest.mark.temporal
def test_tls_to_a_plain_server_ends_the_start(tmp_path: Path, temporal_server: TemporalServer) -> None:
    code, output, _ = run_gateway(tmp_path, {"address": temporal_server.address, "apiKey": KEY})
    assert code != 0
    assert f"Temporal at {temporal_server.address} cannot be used" in output
    assert KEY not in output


@pytest.mark.temporal
def test_missing_certificate_file_ends_the_start(tmp_path: Path, temporal_server: TemporalServer) -> None:
    code, output, _ = run_gateway(tmp_path, {"address": temporal_server.address, "tls": {"ca": "missing.pem"}})
    assert code != 0
    assert f"tasks.temporal.tls.ca: '{tmp_path / 'missing.pem'}' cannot be read" in output
