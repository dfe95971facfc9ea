"""The health check of the image, against a running gateway. `image.py` runs it in a built image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import environment, write_gateway
from tests.fakes.certificates import make_pair
from tests.fakes.running import ROOT, child, free_port, wait_until_ready

PROGRAM = ROOT / "deploy" / "health.py"


def check(port: int) -> int:
    """Run the health check, and return its exit code."""
    return subprocess.run([sys.executable, "-I", str(PROGRAM), str(port)], timeout=20, check=False).returncode


@pytest.mark.fleet
@pytest.mark.parametrize("has_tls", [False, True], ids=["http", "https"])
def test_health_check_passes_only_while_the_gateway_runs(tmp_path: Path, has_tls: bool) -> None:
    pair, port = make_pair(name="hub.example.com"), free_port()
    write_gateway(tmp_path, storage={"dir": "state"}, server={"http": {"port": port, **({"tls": pair.write(tmp_path)} if has_tls else {})}})
    log, scheme = tmp_path / "log", "https" if has_tls else "http"
    argv = ["-m", "gateway", "run", "--config", str(tmp_path / "gateway.json")]
    with child(*argv, env=environment(tmp_path), log=log) as process:
        wait_until_ready(process, f"{scheme}://127.0.0.1:{port}/ready", log, tls=pair.trusted() if has_tls else None)
        assert check(port) == 0
        process.terminate()
        process.wait(30)
    assert check(port) == 1
