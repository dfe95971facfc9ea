"""A gateway that is bound beyond loopback: the address it prints works, and a refused host name is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cli.processes import environment, moongate, write_gateway
from tests.fakes.running import child, free_port, wait_until_ready

HUB = "hub.example.com"


@pytest.mark.parametrize("names", [[], [f"{HUB}:*"]])
def test_printed_address_works_and_rejected_host_names_the_setting(tmp_path: Path, names: list[str]) -> None:
    write_gateway(tmp_path, storage={"dir": str(tmp_path / "state")}, server={"http": {"allowedHosts": names}})
    assert moongate("keys", "add", "laptop", cwd=tmp_path).code == 0
    port, log = free_port(), tmp_path / "log"
    arguments = ["run", "--http", f"0.0.0.0:{port}", "--config", str(tmp_path / "gateway.json")]
    with child("-m", "gateway", *arguments, env=environment(tmp_path), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        foreign: Any = httpx2.get(f"http://127.0.0.1:{port}/mcp", headers={"host": f"other.example.com:{port}"})
        named = httpx2.get(f"http://127.0.0.1:{port}/mcp", headers={"host": f"{HUB}:{port}"})
    said = log.read_text()
    assert f"moongate serves http://{HUB if names else '127.0.0.1'}:{port}/mcp" in said
    assert ("clients on other machines are rejected (421)" in said, named.status_code) == ((False, 401) if names else (True, 421))
    assert (foreign.status_code, "server.http.allowedHosts" in foreign.text) == (421, True)
    assert f"request refused status=421 host='other.example.com:{port}' setting=server.http.allowedHosts" in said
