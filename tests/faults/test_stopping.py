"""A gateway that receives SIGTERM lets calls finish, and nothing delays its end beyond the grace period."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError

from tests.fakes.nursery import Child
from tests.fakes.running import ROOT, child, free_port, wait_until_ready, write_config
from tests.interaction.ways import Way, connected

pytestmark = pytest.mark.timeout(60)


@dataclass
class Stopped:
    """A gateway in front of one server whose `wait` answers once `release` exists."""

    process: Child
    url: str
    folder: Path
    log: Path

    async def until_waiting(self, calls: int) -> None:
        """Wait until `calls` calls have reached the server."""
        journal = self.folder / "slow.requests"
        with anyio.fail_after(20):
            while not journal.exists() or journal.read_text().count("tools/call wait") < calls:
                await anyio.sleep(0.02)

    async def until_ended(self, seconds: float) -> None:
        """Until the process has ended, in good order."""
        with anyio.fail_after(seconds):
            while self.process.poll() is None:
                await anyio.sleep(0.02)
        assert self.process.returncode == 0, self.log.read_text()


@asynccontextmanager
async def serving(folder: Path, drain: float) -> AsyncGenerator[Stopped]:
    entry = {"command": sys.executable, "args": ["-m", "tests.fakes.counting_upstream", str(folder), "slow", "1"], "cwd": str(ROOT)}
    config = write_config(folder, {"mcpServers": {"slow": entry}, "server": {"http": {"drainSeconds": drain}}})
    port, log = free_port(), folder / "gateway.log"
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(config), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        yield Stopped(process, f"http://127.0.0.1:{port}/mcp", folder, log)


@pytest.mark.fault(5)
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_running_calls_get_their_response_and_listeners_end_at_once(tmp_path: Path, era: Any) -> None:
    answers: list[Any] = []
    async with serving(tmp_path, 20) as gateway, AsyncExitStack() as stack:
        clients = [(await stack.enter_async_context(connected(Way("http", era, "slow"), gateway.url)))[0] for _ in range(3)]

        async def wait(client: Any) -> None:
            answers.append(await client.call_tool("slow__wait"))

        async def listen(client: Any) -> None:
            with suppress(SubscriptionLost, MCPError):
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        pass

        async with anyio.create_task_group() as tasks:
            for client in clients:
                await client.list_tools()  # otherwise the SDK lists the tools after the call, when the gateway is closed
                for _ in range(4):
                    tasks.start_soon(wait, client)
                if era == "modern":
                    tasks.start_soon(listen, client)
            await gateway.until_waiting(12)
            gateway.process.send_signal(signal.SIGTERM)
            await anyio.sleep(0.3)  # the gateway is stopping, and no call has ended
            assert not answers
            (tmp_path / "go").touch()
            await gateway.until_ended(10)
            with anyio.move_on_after(10):  # the clients read the responses that the gateway sent before it ended
                while len(answers) < 12:
                    await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
    assert [answer.content[0].text for answer in answers] == ["waited"] * 12


@pytest.mark.fault(5)
@pytest.mark.parametrize("signals", [1, 2])
async def test_endless_call_ends_after_the_set_time_or_a_second_signal(tmp_path: Path, signals: int) -> None:
    async with serving(tmp_path, 2 if signals == 1 else 60) as gateway, anyio.create_task_group() as tasks:
        async with connected(Way("http", "modern", "slow"), gateway.url) as (client, _):

            async def wait() -> None:
                with suppress(MCPError):
                    await client.call_tool("slow__wait")

            tasks.start_soon(wait)
            await gateway.until_waiting(1)
            gateway.process.send_signal(signal.SIGTERM)
            if signals == 2:
                await anyio.sleep(0.7)  # the gateway treats signals in quick succession as one
                gateway.process.send_signal(signal.SIGTERM)
            await gateway.until_ended(12)
            tasks.cancel_scope.cancel()
    log = gateway.log.read_text()
    reason = "grace_period_over" if signals == 1 else "second_signal"
    assert "grace_seconds=" in log
    assert log.count("ending in-flight calls") == 1
    assert f"ending in-flight calls reason={reason} calls=1" in log
    assert "Traceback" not in log
    assert "uvicorn" not in log


@pytest.mark.fault(5)
async def test_idle_gateway_with_listeners_ends_at_once(tmp_path: Path) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    async with serving(tmp_path, 60) as gateway:
        import httpx2

        headers = {"accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient(timeout=20) as raw:
            opened = await raw.post(gateway.url, headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
            session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
            await raw.post(gateway.url, headers=headers | session, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
            async with raw.stream("GET", gateway.url, headers={"accept": "text/event-stream"} | session) as news:
                assert news.status_code == 200
                gateway.process.send_signal(signal.SIGTERM)
                await gateway.until_ended(8)


FOR_EVER = """
import pathlib, time
from gateway.tools.function import tool

@tool
def endless() -> str:
    "Never ends."
    pathlib.Path(__file__).with_suffix(".began").touch()
    while True:
        time.sleep(0.02)
"""


@pytest.mark.fault(5)
async def test_endless_function_does_not_keep_a_stopped_gateway(tmp_path: Path) -> None:
    (tmp_path / "for_ever.py").write_text(FOR_EVER)
    config = write_config(tmp_path, {"expose": {"functions": ["for_ever"]}, "server": {"http": {"drainSeconds": 1}}})
    port, log = free_port(), tmp_path / "gateway.log"
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(config), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        way, url = Way("http", "modern", "function"), f"http://127.0.0.1:{port}/mcp"
        async with connected(way, url) as (client, _), anyio.create_task_group() as tasks:

            async def call() -> None:
                with suppress(MCPError):
                    await client.call_tool("function__endless")

            tasks.start_soon(call)
            with anyio.fail_after(20):
                while not (tmp_path / "for_ever.began").exists():
                    await anyio.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            await Stopped(process, url, tmp_path, log).until_ended(20)
            tasks.cancel_scope.cancel()
