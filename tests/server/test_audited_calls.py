"""Gateways over HTTP and stdio audit every call of a caller, and a kill right after a refusal does not lose the refusal."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cli.processes import environment, moongate, write_gateway
from tests.fakes.running import child, free_port, upstream_http, upstream_stdio, wait_until_ready
from tests.interaction.wire import Era, over_stdio

MODERN = "2026-07-28"
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "Test Client", "version": "1"},
}
RULES = {"up": {"arguments": {"echo": {"text": {"maxLength": 20}}}}}


def call(http: httpx2.Client, url: str, text: str) -> Any:
    headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "up__echo"}
    params = {"name": "up__echo", "arguments": {"text": text}, "_meta": META}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return http.post(url, json=message, headers=headers).json()["result"]


@pytest.mark.timeout(80)
@pytest.mark.parametrize("path", ["auto", "off"], ids=["fast path", "SDK path"])
def test_killed_gateway_has_stored_the_refusal_and_the_calls_before(tmp_path: Path, path: str) -> None:
    port, log = free_port(), tmp_path / "log"
    with upstream_http() as upstream:
        server = {"http": {"directPath": path}}
        audit = {"arguments": {"up/echo": {"*": "hash"}}}
        servers = {"up": {"url": upstream}}
        config = write_gateway(tmp_path, storage={"dir": "state"}, mcpServers=servers, policies=RULES, server=server, audit=audit)
        key = str(moongate("keys", "add", "ada", "--json", cwd=tmp_path).data["key"])
        headers = {"authorization": f"Bearer {key}", "accept": "application/json, text/event-stream"}
        argv = ["-m", "gateway", "run", "--http", f":{port}", "-c", str(config)]
        with child(*argv, env=environment(tmp_path), log=log) as process, httpx2.Client(headers=headers, timeout=30) as http:
            url = f"http://127.0.0.1:{port}/mcp"
            wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
            for _ in range(20):
                assert not call(http, url, "hello").get("isError")
            time.sleep(1)  # what a kill may lose of allowed calls
            assert call(http, url, "x" * 21)["isError"]
            os.kill(process.pid, signal.SIGKILL)
    entries = moongate("audit", "show", "--calls", "--json", cwd=tmp_path).data["entries"]
    assert [entry["kind"] for entry in entries] == ["call.finished"] * 20 + ["call.refused"]
    for entry in entries:
        assert (entry["source"], entry["name"], entry["client"], entry["endpoint"]) == ("up", "up__echo", "Test Client", "/mcp")
        assert entry["principal"].startswith("key:") and entry["milliseconds"] > 0 and list(entry["arguments"]) == ["text"]
    assert {entry["bytes"] > len("hello") for entry in entries[:-1]} == {True}
    assert entries[-1]["rule"] == "arguments.echo.text"
    assert moongate("audit", "verify", "--json", cwd=tmp_path).data == {"entries": 21, "problem": None}


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize(("calls", "kinds"), [("all", ["call.finished", "call.refused"]), ("authenticated", ["call.refused"])])
async def test_local_user_over_stdio_is_audited_on_request(tmp_path: Path, era: Era, calls: str, kinds: list[str]) -> None:
    config = write_gateway(
        tmp_path, storage={"dir": str(tmp_path / "state")}, mcpServers={"up": upstream_stdio()}, policies=RULES, audit={"calls": calls}
    )
    async with over_stdio(config, era) as client:
        for text in ("hello", "x" * 21):
            answer = await client.send("tools/call", name="up__echo", arguments={"text": text})
            assert answer["result"].get("isError", False) == (text != "hello"), answer
    entries = moongate("audit", "show", "--calls", "--json", cwd=tmp_path).data["entries"]
    assert [(entry["kind"], entry["endpoint"], entry["principal"]) for entry in entries] == [(kind, "stdio", "local") for kind in kinds]
