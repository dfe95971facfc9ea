"""Published attack suites against a gateway with API keys, beside a bare server on the SDK. `make attacks` installs them."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.machine import python, started, wait_for_port
from gateway.auth.api_keys import KeyStore
from tests.architecture.documents import read
from tests.fakes.running import free_port, gateway_http, upstream_stdio, write_config

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(120)]
HOME = Path(os.environ.get("ATTACKS_HOME") or Path.home() / ".cache" / "moongate-attacks")
AUTHLAB = HOME / "authlab" / "bin" / "mcp-authlab"

NO_INBOUND_OAUTH = {"CHAL-02", "PRM-01"}
"""Checks of protected resource metadata (RFC 9728), which the gateway does not serve: callers authenticate with API keys."""


@dataclass(frozen=True)
class Scan:
    """Ids of the checks of one scan, by outcome."""

    passed: set[str]
    failed: set[str]
    warned: set[str]

    def row(self, title: str) -> str:
        """The row of the table in the documentation."""
        failed = ", ".join(sorted(self.failed)) or "none"
        return f"| {title} | {len(self.passed)} | {len(self.failed)} ({failed}) | {len(self.warned)} |"


def scan(url: str, *options: str) -> Scan:
    """Run mcp-authlab on an endpoint."""
    command = [str(AUTHLAB), "scan", url, "--no-login", "--format", "json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    by_status = {status: {check["id"] for check in found if check["status"] == status} for status in ("pass", "fail", "warn")}
    return Scan(by_status["pass"], by_status["fail"], by_status["warn"])


def test_authlab_fails_only_the_documented_inbound_oauth_checks(tmp_path: Path) -> None:
    if not AUTHLAB.exists():
        pytest.skip(f"mcp-authlab is not installed in {HOME}; run `make attacks`")
    config = {"mcpServers": {"up": upstream_stdio()}}
    write_config(tmp_path, config)
    key = KeyStore(tmp_path / "gateway-state" / "keys.json").add("weak", scopes=("up",)).token
    with gateway_http(tmp_path, config) as url:
        gateway = scan(url, "--token", key)
    with started(python("-m", "benchmarks.bare", str(port := free_port()))) as process:
        wait_for_port(port, process, 20)
        bare = scan(f"http://127.0.0.1:{port}/mcp", "--token", "any")
    assert gateway.failed == NO_INBOUND_OAUTH
    assert len(gateway.passed) > len(bare.passed)
    page = read("docs/deploy.md")
    assert gateway.row("Moongate with API keys") in page and bare.row("server on the SDK alone") in page, (gateway, bare)
