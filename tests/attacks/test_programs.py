"""No request starts a program: only programs that the configuration names run."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.attacks.test_envelopes import ACCEPT, META
from tests.fakes.running import gateway_http, upstream_stdio

PATHS = [
    "/", "/status.json", "/servers", "/api/servers", "/api/mcp/test", "/admin", "/admin/servers", "/mcp/servers", "/config",
    "/gateway.json", "/reload", "/register", "/preview", "/agui/evil",
]  # fmt: skip


@dataclass(frozen=True)
class Deployment:
    """A gateway, and the file that exists if the gateway started a forbidden server."""

    url: str
    mark: Path

    @property
    def entry(self) -> dict[str, Any]:
        """An entry whose program creates the file `mark`."""
        return {"command": "touch", "args": [str(self.mark)], "transport": "stdio", "name": "evil"}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    folder = tmp_path_factory.mktemp("programs")
    settings = {"mcpServers": {"up": upstream_stdio(), "named": {"command": "touch", "args": [str(folder / "named")]}}}
    with gateway_http(folder, settings) as url:
        yield Deployment(url, folder / "mark")


def test_configured_program_is_started(deployment: Deployment) -> None:
    assert deployment.mark.with_name("named").exists()


@pytest.mark.attack(8)
@pytest.mark.attack(9)
@pytest.mark.parametrize("path", PATHS)
def test_no_page_takes_a_command(deployment: Deployment, path: str) -> None:
    body = {"mcpServers": {"evil": deployment.entry}, **deployment.entry}
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = httpx2.request(method, deployment.url.removesuffix("/mcp") + path, headers=ACCEPT, json=body)
        assert answer.status_code in (400, 404, 405)
    assert not deployment.mark.exists()


@pytest.mark.attack(8)
@pytest.mark.attack(9)
@pytest.mark.parametrize("method", ["tools/call", "servers/add", "config/set", "server/start", "initialize", "server/discover"])
def test_no_message_takes_a_command(deployment: Deployment, method: str) -> None:
    entry = deployment.entry
    meta = {**META, "dev.moongate/server": entry, "command": "touch"}
    params = {"name": "up__echo", "arguments": {"text": "x", **entry}, "_meta": meta, "mcpServers": {"evil": entry}, **entry}
    headers = {**ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": method, "mcp-name": "up__echo"}
    httpx2.post(deployment.url, headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    listed = httpx2.get(deployment.url.replace("/mcp", "/status.json")).json()
    assert {source["name"] for source in listed["sources"]} >= {"up", "named"}
    assert "evil" not in {source["name"] for source in listed["sources"]}
    assert not deployment.mark.exists()
