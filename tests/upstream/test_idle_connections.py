"""The pool closes connections that were idle for a while, and keeps all others."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.inside import gateway_inside
from tests.fakes.raw_upstream import Raw, http_server
from tests.interaction.ways import Way, connected

MANY = 4
SECONDS = 20
TOLD = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("together", "slow", "fine")]}


class Counting(Raw):
    """A server that records its open connections. `slow` returns when `may_end` is set, `together` when `MANY` calls wait."""

    def __init__(self) -> None:
        super().__init__(TOLD, modern=True)
        self.open: set[Any] = set()
        self.together = threading.Barrier(MANY, timeout=SECONDS)
        self.may_end = threading.Event()

    def call(self, params: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        if params["name"] == "together":
            self.together.wait()
        elif params["name"] == "slow":
            self.may_end.wait(SECONDS)
        return super().call(params, headers)


@contextmanager
def counting() -> Generator[tuple[Counting, str]]:
    raw = Counting()
    server = http_server(raw, 0)
    server.daemon_threads = True
    take, end = server.process_request, server.shutdown_request

    def taken(request: Any, client_address: Any) -> None:
        raw.open.add(request)
        take(request, client_address)

    def ended(request: Any) -> None:
        raw.open.discard(request)
        end(request)

    server.process_request, server.shutdown_request = taken, ended
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield raw, f"http://127.0.0.1:{server.server_address[1]}/mcp"
    finally:
        raw.may_end.set()
        server.shutdown()
        server.server_close()
        thread.join()


async def test_idle_connections_are_closed_and_one_in_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.wire.http1_client.IDLE_SECONDS", 1.0)
    with counting() as (raw, upstream), gateway_inside(tmp_path, {"mcpServers": {"up": {"type": "http", "url": upstream}}}) as gateway:
        async with connected(Way("http", "modern", "up"), gateway.url) as (client, _):

            async def call(tool: str) -> None:
                assert not (await client.call_tool(f"up__{tool}", {})).is_error

            with anyio.fail_after(SECONDS):
                async with anyio.create_task_group() as tasks:
                    for _ in range(MANY):
                        tasks.start_soon(call, "together")
                assert len(raw.open) >= MANY
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call, "slow")
                    while len(raw.open) > 1:
                        await anyio.sleep(0.02)
                    raw.may_end.set()
                while raw.open:
                    await anyio.sleep(0.02)
                await call("fine")
