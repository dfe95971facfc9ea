"""Requests to a stdio server with `single: true` through its owner and another gateway: cancellations, resources, a broken program."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from tests.fakes.running import ROOT, upstream_stdio
from tests.fakes.shared_gateways import SharedGateways
from tests.interaction.wire import Era, HttpWire, Wire, over_http
from tests.tasks.test_gateways import stop

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

ERAS: list[Era] = ["legacy", "modern"]
BROKEN = """\
import os, runpy, sys
if os.path.exists(sys.argv[1]):
    sys.exit("ledger is locked")
sys.argv = ["upstream", "--stdio", "--legacy"]
runpy.run_module("tests.fakes.upstream", run_name="__main__")
"""
"""A server that does not start while a file exists."""



class Start(SharedGateways):
    """Starts two gateways with one single server, and returns their URLs. The first gateway runs the server."""

    def __call__(self, server: dict[str, Any]) -> list[str]:
        """Start both gateways. Blocks."""
        for _ in range(2):
            self.start_with(
                {
                    "mcpServers": {"one": {**server, "single": True}},
                    "policies": {"one": {"era": "legacy"}},
                    "server": {"http": {"drainSeconds": 1}},
                }
            )
        return self.urls


@pytest.fixture
async def start(tmp_path: Path) -> AsyncGenerator[Start]:
    begin = Start(tmp_path, f"sqlite:///{tmp_path}/shared.db")
    try:
        yield begin
    finally:
        await anyio.to_thread.run_sync(begin.stop)


@pytest.fixture
async def urls(start: Start) -> list[str]:
    return await anyio.to_thread.run_sync(start, upstream_stdio("--legacy"))


async def call(wire: Wire, name: str, **arguments: Any) -> dict[str, Any]:
    return await wire.send("tools/call", name=f"one__{name}", arguments=arguments)


async def stats(wire: Wire) -> dict[str, Any]:
    return (await call(wire, "stats"))["result"]["structuredContent"]


async def until(wire: Wire, kind: str, count: int, seconds: float = 10) -> None:
    """Wait until so many calls of `hang` have begun (`calls`) or were cancelled (`cancelled`) at the server."""
    with anyio.fail_after(seconds):
        while (found := (await stats(wire))[kind].get("hang", 0)) != count:
            assert found < count
            await anyio.sleep(0.05)


async def cancel(wire: HttpWire) -> None:
    """Cancel the request of a client in a 2025 session. Its response means that every gateway has received the cancellation."""
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    headers = {"Accept": "application/json, text/event-stream", **wire.headers}
    assert (await wire.http.post(wire.url, json=body, headers=headers)).status_code == 202


@pytest.mark.parametrize("at", [0, 1])
async def test_lost_client_cancels_its_call_at_the_server(urls: list[str], at: int) -> None:
    """In 2026, a client cancels a call by closing its connection."""
    async with over_http(urls[1 - at], "legacy", tasks=False) as looking, over_http(urls[at], "modern", tasks=False) as caller:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, caller, "hang")
            await until(looking, "calls", 1)
            tasks.cancel_scope.cancel()
        await until(looking, "cancelled", 1, 3)


@pytest.mark.parametrize(("runs_at", "cancelled_at"), [(0, 0), (0, 1), (1, 0), (1, 1)])
async def test_cancellation_at_any_gateway_reaches_the_server(urls: list[str], runs_at: int, cancelled_at: int) -> None:
    async with over_http(urls[runs_at], "legacy", tasks=False) as caller, over_http(urls[0], "modern", tasks=False) as looking:
        other = HttpWire(caller.http, urls[cancelled_at], "legacy", False, {}, caller.headers)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_hang, caller)
            await until(looking, "calls", 1)
            await cancel(other)
            await until(looking, "cancelled", 1, 2)
            assert "result" in await call(other, "echo", text="still here")
            tasks.cancel_scope.cancel()


async def _hang(caller: HttpWire) -> None:
    headers = {"Accept": "application/json, text/event-stream", **caller.headers}
    params: dict[str, Any] = {"name": "one__hang", "arguments": {}}
    await caller.http.post(caller.url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, headers=headers)


@pytest.mark.parametrize("era", ERAS)
async def test_resources_and_prompts_are_read_at_both_gateways(urls: list[str], era: Era) -> None:
    seen: list[Any] = []
    for url in urls:
        async with over_http(url, era, tasks=False) as wire:
            listed = (await wire.send("resources/list"))["result"]["resources"]
            uris = sorted(row["uri"] for row in listed if "watched" in row["uri"] or "report" in row["uri"])
            read = [(await wire.send("resources/read", uri=uri))["result"]["contents"] for uri in uris]
            greeting = await wire.send("prompts/get", name="one__greet", arguments={"who": "Ada"})
            unknown = await wire.send("resources/read", uri=uris[0] + "-none")
            assert "error" in unknown
            assert "Greet Ada." in json.dumps(greeting)
            seen.append((uris, read, unknown["error"]["code"]))
    assert seen[0] == seen[1]
    assert "watched" in json.dumps(seen[0])


@pytest.mark.parametrize("at", [0, 1])
async def test_subscriber_at_any_gateway_is_notified_once_per_update(urls: list[str], at: int) -> None:
    async with over_http(urls[at], "legacy", tasks=False) as subscriber, over_http(urls[0], "modern", tasks=False) as other:
        listed = (await subscriber.send("resources/list"))["result"]["resources"]
        uri = next(row["uri"] for row in listed if "watched" in row["uri"])
        assert "error" not in await subscriber.send("resources/subscribe", uri=uri)
        headers = {**subscriber.headers, "Accept": "text/event-stream"}
        updates: list[str] = []
        async with anyio.create_task_group() as tasks, subscriber.http.stream("GET", urls[at], headers=headers) as stream:
            assert stream.status_code == 200
            tasks.start_soon(_collect, stream, updates)
            for count in (1, 2):
                await call(other, "touch")
                with anyio.fail_after(5):
                    while len(updates) < count:
                        await anyio.sleep(0.05)
                await anyio.sleep(0.5)
                assert updates == [uri] * count
            assert "error" not in await subscriber.send("resources/unsubscribe", uri=uri)
            await call(other, "touch")
            await anyio.sleep(0.7)
            assert updates == [uri] * 2
            tasks.cancel_scope.cancel()


async def _collect(stream: httpx2.Response, updates: list[str]) -> None:
    async for line in stream.aiter_lines():
        found = line.startswith("data: {") and "resources/updated" in line
        updates += [json.loads(line[6:])["params"]["uri"]] if found else []


async def test_server_is_unsubscribed_from_what_a_killed_gateway_watched(start: Start, tmp_path: Path) -> None:
    program = [str(ROOT / "tests" / "interaction" / "single_server.py"), str(tmp_path / "journal")]
    urls = await anyio.to_thread.run_sync(start, {"command": sys.executable, "args": program})

    def events() -> list[str]:
        said = [json.loads(line)["event"] for line in (tmp_path / "journal").read_text().splitlines()]
        return [event.removeprefix("resources/") for event in said if event.startswith("resources/")]

    async with over_http(urls[1], "legacy", tasks=False) as subscriber, over_http(urls[0], "legacy", tasks=False) as other:
        listed = (await subscriber.send("resources/list"))["result"]["resources"]
        uri = next(row["uri"] for row in listed if "data://one" in row["uri"])
        for wire in (subscriber, other):
            assert "error" not in await wire.send("resources/subscribe", uri=uri)
        assert events() == ["subscribe"]
        assert "error" not in await other.send("resources/unsubscribe", uri=uri)
        assert events() == ["subscribe"], "the other gateway still watches the resource"
        await anyio.to_thread.run_sync(stop, start.processes[1])
        with anyio.fail_after(10):
            while events() != ["subscribe", "unsubscribe"]:
                await anyio.sleep(0.05)


async def test_list_that_a_call_changes_changes_at_both_gateways(urls: list[str]) -> None:
    async with over_http(urls[0], "modern", tasks=False) as a, over_http(urls[1], "modern", tasks=False) as b:
        for wire, other in ((a, b), (b, a)):
            name = "one__" + (await call(wire, "grow"))["result"]["content"][0]["text"]
            with anyio.fail_after(5):
                while name not in json.dumps(await other.send("tools/list")):
                    await anyio.sleep(0.05)


async def test_program_that_cannot_start_is_named_at_both_gateways(start: Start) -> None:
    program = ["-c", "import sys; sys.exit('ledger is locked')"]
    urls = await anyio.to_thread.run_sync(start, {"command": sys.executable, "args": program})
    async with httpx2.AsyncClient(timeout=10) as http:
        for url in urls:
            with anyio.fail_after(20):
                while "ledger is locked" not in (said := (await http.get(url.removesuffix("/mcp") + "/status.json")).text):
                    await anyio.sleep(0.2)
            (status,) = [source for source in json.loads(said)["sources"] if source["name"] == "one"]
            assert "ledger is locked" in json.dumps(status), status


async def until_echo(wire: Wire) -> None:
    """Wait until the server answers."""
    with anyio.fail_after(40):
        while "hello" not in json.dumps(await call(wire, "echo", text="hello")):
            await anyio.sleep(0.3)


async def test_program_that_starts_later_is_served_by_both_gateways(start: Start, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    (tmp_path / "broken.py").write_text(BROKEN)
    server = upstream_stdio()
    arguments = [str(tmp_path / "broken.py"), str(lock)]
    command = {**server, "command": sys.executable, "args": arguments, "env": {"PYTHONPATH": server["cwd"]}}
    urls = await anyio.to_thread.run_sync(start, command)
    async with over_http(urls[0], "legacy", tasks=False) as a, over_http(urls[1], "modern", tasks=False) as b:
        lock.unlink()
        for wire in (a, b):
            await until_echo(wire)
        lock.touch()
        await call(b, "die")
        for wire in (a, b):
            with anyio.fail_after(20):
                while "ledger is locked" not in (said := json.dumps(await call(wire, "echo", text="hello"))):
                    assert "'one'" in said, said
                    await anyio.sleep(0.3)
            assert "'one'" in said, said
        lock.unlink()
        for wire in (a, b):
            await until_echo(wire)
