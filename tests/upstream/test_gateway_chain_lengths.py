"""What one call costs at the server behind a gateway, counted there: one request, and no new connection."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client

from tests.fakes.running import child, free_port, gateway_http, wait_until_ready

CALLS = 40
AT_ONCE = 8


def counts(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/counts", timeout=5) as answer:
        return json.load(answer)


async def call_often(client: Client, at_once: int) -> None:
    """Make `CALLS` calls, `at_once` at a time, and check that each call gets its own result."""

    async def one_after_the_other(first: int) -> None:
        for number in range(first, CALLS, at_once):
            result = await client.call_tool("tool_1", {"text": f"say {number}"})
            assert result.content[0].model_dump()["text"] == f"say {number}"

    async with anyio.create_task_group() as tasks:
        for first in range(at_once):
            tasks.start_soon(one_after_the_other, first)


@pytest.mark.requirement("M7")
@pytest.mark.parametrize("kind", ["both", "streams", "2025", "2025-streams"])
async def test_steady_state_call_is_one_request_on_an_open_connection(tmp_path: Path, kind: str) -> None:
    port = free_port()
    with child("-m", "benchmarks.upstream", str(port), "2", "60000", kind, log=tmp_path / "upstream.log") as upstream:
        wait_until_ready(upstream, f"http://127.0.0.1:{port}/counts", tmp_path / "upstream.log")
        config = {"mcpServers": {"up": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}, "policies": {"up": {"prefix": ""}}}
        with gateway_http(tmp_path, config) as url:
            for mode in ("2026-07-28", "legacy"):
                async with Client(url, mode=mode, cache=None) as client:
                    await call_often(client, AT_ONCE)
                    before = counts(port)
                    await call_often(client, 1)
                    after = counts(port)
                assert after["requests"]["tools/call"] - before["requests"]["tools/call"] == CALLS
                assert sum(after["requests"].values()) - sum(before["requests"].values()) == CALLS
                assert after["connections"] == before["connections"]
