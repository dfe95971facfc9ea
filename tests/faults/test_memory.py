"""What many large results at once cost a gateway: its memory while they are worked on, and afterwards."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.raw_upstream import Raw, http_server
from tests.fakes.running import child, free_port, wait_until_ready, write_config
from tests.interaction.ways import Way, connected
from tests.interaction.wire import over_http

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

BYTES = 60_000_000
PEAK_MEGABYTES, KEPT_MEGABYTES = 250, 64
TOLD: dict[str, Any] = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("big", "echo")]}


class Large(Raw):
    """Answers `big` with `BYTES` of text."""

    def __init__(self) -> None:
        super().__init__(TOLD, modern=True)
        self.text = "Some plain text, \"quoted\".\n" * (BYTES // 27)

    def call(self, params: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        text = self.text if params["name"] == "big" else "done"
        return {"content": [{"type": "text", "text": text}]}


@contextmanager
def serving() -> Generator[str]:
    server: ThreadingHTTPServer = http_server(Large(), 0)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    finally:
        server.shutdown()
        server.server_close()


def megabytes(pid: int, field: str) -> float:
    """`VmRSS` or `VmHWM` (its peak) of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


async def as_a_call(url: str) -> dict[str, Any]:
    """Make a plain call and return the `_meta` of its result."""
    async with connected(Way("http", "modern", "up"), url) as (client, _):
        return (await client.call_tool("up__big", {})).meta or {}


async def as_a_task(url: str) -> dict[str, Any]:
    """Start a call as a task and return the `_meta` of the task's result."""
    async with over_http(url, "modern") as wire:
        task_id = (await wire.send("tools/call", name="up__big", arguments={}))["result"]["taskId"]
        while (task := (await wire.send("tasks/get", taskId=task_id))["result"])["status"] == "working":
            await anyio.sleep(0.2)
        return task["result"]["_meta"]


@pytest.mark.fault(20)
@pytest.mark.parametrize(
    ("promote", "large", "at_once"),
    [([], as_a_call, 8), (["big"], as_a_call, 3), (["big"], as_a_task, 3)],
    ids=["plain call", "call that may become a task", "task"],
)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory of a process is read from /proc")
async def test_results_of_60_megabytes_at_once_take_bounded_memory(
    promote: list[str], large: Callable[[str], Awaitable[dict[str, Any]]], at_once: int, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "gateway.log"
    url = f"http://127.0.0.1:{port}/mcp"
    with serving() as upstream:
        servers = {"up": {"type": "http", "url": upstream}}
        policies = {"up": {"timeoutSeconds": 240, "tasks": {"promote": promote}}}
        path = write_config(tmp_path, {"mcpServers": servers, "policies": policies})
        with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path), log=log) as process:
            wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
            async with connected(Way("http", "modern", "up"), url) as (client, _):
                await client.call_tool("up__echo", {})
            idle = megabytes(process.pid, "VmRSS")
            told: list[dict[str, Any]] = []

            async def call() -> None:
                told.append(await large(url))

            async with anyio.create_task_group() as tasks:
                for _ in range(at_once):
                    tasks.start_soon(call)
            peak = megabytes(process.pid, "VmHWM")
            with anyio.fail_after(10):
                while megabytes(process.pid, "VmRSS") > idle + KEPT_MEGABYTES:
                    await anyio.sleep(0.2)
    assert [json.dumps(meta).count('"bytes"') for meta in told] == [1] * at_once
    assert peak <= PEAK_MEGABYTES
