"""No request starts a program: what runs is what the configuration names."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.attacks.test_envelopes import ACCEPT, META
from tests.fakes.running import gateway_http, upstream_stdio

MARK = "/tmp/never-made-by-a-request"
ENTRY: dict[str, Any] = {"command": "touch", "args": [MARK], "env": {"LD_PRELOAD": "/tmp/x.so"}, "transport": "stdio", "name": "evil"}
PATHS = [
    "/", "/status.json", "/servers", "/api/servers", "/api/mcp/test", "/admin", "/admin/servers", "/mcp/servers", "/config",
    "/gateway.json", "/reload", "/register", "/preview", "/agui/evil",
]  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with gateway_http(tmp_path_factory.mktemp("programs"), {"mcpServers": {"up": upstream_stdio()}}) as url:
        yield url


@pytest.mark.attack(8)
@pytest.mark.attack(9)
@pytest.mark.parametrize("path", PATHS)
def test_no_page_takes_a_command(url: str, path: str) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = httpx2.request(method, url.removesuffix("/mcp") + path, headers=ACCEPT, json={"mcpServers": {"evil": ENTRY}, **ENTRY})
        assert answer.status_code in (400, 404, 405)
    assert not Path(MARK).exists()


@pytest.mark.attack(8)
@pytest.mark.attack(9)
@pytest.mark.parametrize("method", ["tools/call", "servers/add", "config/set", "server/start", "initialize", "server/discover"])
def test_no_message_takes_a_command(url: str, method: str) -> None:
    meta = {**META, "dev.moongate/server": ENTRY, "command": "touch"}
    params = {"name": "up__echo", "arguments": {"text": "x", **ENTRY}, "_meta": meta, "mcpServers": {"evil": ENTRY}, **ENTRY}
    headers = {**ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": method, "mcp-name": "up__echo"}
    httpx2.post(url, headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    assert not Path(MARK).exists()
    listed = httpx2.get(url.replace("/mcp", "/status.json")).json()
    assert [source["name"] for source in listed["sources"] if source["name"] == "evil"] == []


def test_the_mark_could_be_made() -> None:
    """Otherwise the tests above would prove nothing."""
    assert os.access("/tmp", os.W_OK)
    assert sys.platform != "win32"
