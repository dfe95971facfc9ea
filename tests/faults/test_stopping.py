"""A gateway that receives SIGTERM lets calls finish, and nothing delays its end beyond the grace period."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
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
    async with serving(tmp_path, 60) as gateway:
        headers = {"accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient(timeout=20) as raw:
            opened = await raw.post(gateway.url, headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO})
            session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
            await raw.post(gateway.url, headers=headers | session, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
            async with raw.stream("GET", gateway.url, headers={"accept": "text/event-stream"} | session) as news:
                assert news.status_code == 200
                gateway.process.send_signal(signal.SIGTERM)
                await gateway.until_ended(8)


BOTH = {"accept": "application/json, text/event-stream"}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
CALL: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "slow__wait", "arguments": {}}}


async def lost(gateway: Stopped, raw: httpx2.AsyncClient) -> dict[str, str]:
    """Begin a call in a new 2025 session, lose its stream, and return the headers of the GET that resumes it."""
    opened = await raw.post(gateway.url, headers=BOTH, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO})
    session = BOTH | {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    await raw.post(gateway.url, headers=session, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
    async with raw.stream("POST", gateway.url, headers=session, json=CALL) as stream:
        first = await anext(stream.aiter_lines())
    assert first.startswith("id: ")
    await anyio.sleep(0.3)  # the gateway notices that the stream is lost
    return {**session, "accept": "text/event-stream", "last-event-id": first.removeprefix("id: ")}


async def heard(gateway: Stopped, raw: httpx2.AsyncClient, resumed: dict[str, str], reached: anyio.Event) -> list[dict[str, Any]]:
    """Resume a stream, read it to its end, and return its messages."""
    async with raw.stream("GET", gateway.url, headers=resumed) as stream:
        assert stream.status_code == 200
        reached.set()
        return [json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: {")]


@pytest.mark.fault(5)
@pytest.mark.parametrize("returns", ["before", "after"])
async def test_call_of_a_returned_client_gets_its_response(tmp_path: Path, returns: str) -> None:
    got: list[dict[str, Any]] = []
    async with serving(tmp_path, 20) as gateway, httpx2.AsyncClient(timeout=20) as raw, anyio.create_task_group() as tasks:
        resumed, reached = await lost(gateway, raw), anyio.Event()

        async def resume() -> None:
            got.extend(await heard(gateway, raw, resumed, reached))

        if returns == "after":
            gateway.process.send_signal(signal.SIGTERM)
            await anyio.sleep(1)
        tasks.start_soon(resume)
        with anyio.fail_after(10):
            await reached.wait()
        if returns == "before":
            gateway.process.send_signal(signal.SIGTERM)
        await anyio.sleep(2.5)
        assert gateway.process.poll() is None
        assert not got
        (tmp_path / "go").touch()
        await gateway.until_ended(10)
    assert [(message["id"], message["result"]["content"][0]["text"]) for message in got] == [(7, "waited")]


@pytest.mark.fault(5)
async def test_endless_call_of_a_returned_client_ends_with_an_error(tmp_path: Path) -> None:
    got: list[dict[str, Any]] = []
    async with serving(tmp_path, 2) as gateway, httpx2.AsyncClient(timeout=20) as raw, anyio.create_task_group() as tasks:
        resumed, reached = await lost(gateway, raw), anyio.Event()

        async def resume() -> None:
            got.extend(await heard(gateway, raw, resumed, reached))

        tasks.start_soon(resume)
        with anyio.fail_after(10):
            await reached.wait()
        gateway.process.send_signal(signal.SIGTERM)
        await gateway.until_ended(12)
    assert [(message["id"], "was stopped before" in message["error"]["message"]) for message in got] == [(7, True)]
    assert "Traceback" not in gateway.log.read_text()


@pytest.mark.fault(5)
async def test_call_of_a_client_that_stays_away_does_not_delay_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path, 40) as gateway, httpx2.AsyncClient(timeout=20) as raw:
        await lost(gateway, raw)
        gateway.process.send_signal(signal.SIGTERM)
        await anyio.sleep(2)
        assert gateway.process.poll() is None
        await gateway.until_ended(12)


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
