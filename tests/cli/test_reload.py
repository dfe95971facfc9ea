"""A running gateway reloads its changed configuration file: real processes, real files, both transports and both client eras."""

from __future__ import annotations

import json
import os
import shlex
import signal
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import mcp_types as t
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.cli.processes import environment, moongate
from tests.fakes.accepting import accept_text
from tests.fakes.nursery import sooner
from tests.fakes.running import ROOT, child, free_port, gateway_command, wait_until_ready

pytestmark = pytest.mark.timeout(90)
MODERN = "2026-07-28"
WAYS = [(front, era) for front in ("http", "stdio") for era in ("legacy", MODERN)]
both_ways = pytest.mark.parametrize(("front", "era"), WAYS, ids=[f"{front}-{era}" for front, era in WAYS])


def server(folder: Path, name: str, tools: int = 0) -> dict[str, Any]:
    """Return a server that records its requests."""
    command, args = sooner("tests.fakes.counting_upstream", str(folder), name, str(tools))
    return {"command": command, "args": args, "cwd": str(ROOT)}


class File:
    """The configuration of the test, written the way editors do: a new file in place of the old one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gateway.json"
        self.folder = folder

    def write(self, servers: dict[str, Any], **more: Any) -> None:
        """Write a configuration that a person has accepted."""
        text = self.text(servers, **more)
        accept_text(self.path, text)
        self.put(text)

    def write_unaccepted(self, servers: dict[str, Any], **more: Any) -> None:
        """Write a configuration that nobody has accepted."""
        self.put(self.text(servers, **more))

    def text(self, servers: dict[str, Any], **more: Any) -> str:
        return json.dumps({"mcpServers": servers, "storage": {"dir": str(self.folder / "state")}, **more})

    def put(self, text: str) -> None:
        aside = self.folder / "gateway.json~"
        aside.write_text(text)
        aside.replace(self.path)


@dataclass
class Running:
    """A gateway with a client."""

    client: Client
    heard: list[Any]
    pid: Callable[[], int]
    log: Path
    port: int | None

    async def names(self) -> set[str]:
        return {tool.name for tool in (await self.client.list_tools()).tools if "__" in tool.name}

    async def text(self, tool: str) -> str:
        result: Any = await self.client.call_tool(tool, {})
        assert not result.is_error, result.content
        return result.content[0].text

    async def status(self) -> dict[str, Any]:
        result: Any = await self.client.call_tool("gateway_status", {})
        return result.structured_content


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition that depends on another process is true."""
    with anyio.fail_after(30):
        while not await true():
            await anyio.sleep(0.05)


@asynccontextmanager
async def gateway(file: File, front: str, era: str) -> AsyncGenerator[Running]:
    """Run `moongate run` with a client of the era, and stop it with everything that it started."""
    heard: list[Any] = []
    log, mark = file.folder / "gateway.log", file.folder / "gateway.pid"

    async def hear(message: Any) -> None:
        heard.append(message)

    if front == "stdio":
        command, args = gateway_command(file.path)
        script = f"echo $$ > {shlex.quote(str(mark))}; exec {shlex.join([command, *args])} 2>{shlex.quote(str(log))}"
        parameters = StdioServerParameters(command="sh", args=["-c", script], env=environment(file.folder))
        async with Client(stdio_client(parameters), mode=era, cache=None, message_handler=hear) as client:
            yield Running(client, heard, lambda: int(mark.read_text()), log, None)
        return
    port = free_port()
    with child("-m", "gateway", "run", "--http", f":{port}", "--config", str(file.path), log=log) as process:
        await anyio.to_thread.run_sync(wait_until_ready, process, f"http://127.0.0.1:{port}/ready", log)
        target = f"http://127.0.0.1:{port}/mcp"
        async with Client(target, mode=era, cache=None, message_handler=hear) as client:
            yield Running(client, heard, lambda: process.pid, log, port)


@asynccontextmanager
async def told_of_tools(running: Running, era: str) -> AsyncGenerator[None]:
    """Wait until the client is notified of a changed tool list."""
    if era == MODERN:
        async with running.client.listen(tools_list_changed=True) as changes:
            yield
            with anyio.fail_after(30):
                await anext(aiter(changes))
        return

    async def heard() -> bool:
        return any(isinstance(message, t.ToolListChangedNotification) for message in running.heard)

    yield
    await until(heard)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@both_ways
async def test_servers_come_change_rest_and_go_while_the_others_stay(tmp_path: Path, front: str, era: str) -> None:
    file = File(tmp_path)
    one, two = server(tmp_path, "one"), server(tmp_path, "two")
    file.write({"one": one})
    async with gateway(file, front, era) as running:
        pid = await running.text("one__pid")
        async with told_of_tools(running, era):
            file.write({"two": two, "one": one})

        async def has_two() -> bool:
            return "two__pid" in await running.names()

        await until(has_two)
        second = int(await running.text("two__pid"))
        assert [s["name"] for s in (await running.status())["sources"]] == ["two", "one"]
        # A policy changes what one server shows; it alone is started again.
        file.write({"two": two, "one": one}, policies={"two": {"tools": {"allow": ["pid"]}, "prefix": "second"}})

        async def is_narrow() -> bool:
            return {name for name in await running.names() if not name.startswith("one__")} == {"second__pid"}

        await until(is_narrow)
        third = int(await running.text("second__pid"))
        assert third != second
        await until(lambda: gone(second))
        file.write({"two": {**two, "disabled": True}, "one": one})

        async def only_one() -> bool:
            return all(name.startswith("one__") for name in await running.names())

        await until(only_one)
        assert {s["name"]: s["state"] for s in (await running.status())["sources"]} == {"one": "ready", "two": "disabled"}
        await until(lambda: gone(third))
        assert await running.text("one__pid") == pid
        file.write({})

        async def nothing() -> bool:
            return not await running.names()

        await until(nothing)
        await until(lambda: gone(int(pid)))


def status_page(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=5) as answer:
        return json.loads(answer.read())


async def gone(pid: int) -> bool:
    return not alive(pid)


@both_ways
@pytest.mark.fault(30)
async def test_broken_file_changes_nothing_and_is_reported_until_fixed(tmp_path: Path, front: str, era: str) -> None:
    file = File(tmp_path)
    one = server(tmp_path, "one")
    file.write({"one": one})
    async with gateway(file, front, era) as running:
        pid = await running.text("one__pid")
        for broken in ('{"mcpServers": {', '{"mcpServers": {}, "polices": {}}'):
            file.put(broken)

            async def is_told(word: str = "polices" if "polices" in broken else "gateway.json") -> bool:
                return any(word in problem for problem in (await running.status()).get("problems", []))

            await until(is_told)
            assert await running.text("one__pid") == pid
        file.path.unlink()

        async def is_missed() -> bool:
            return any("does not exist" in problem for problem in (await running.status()).get("problems", []))

        await until(is_missed)
        if running.port is not None:
            status = await anyio.to_thread.run_sync(status_page, running.port)
            assert "does not exist" in status["problems"][0]
        file.write({"one": one, "two": server(tmp_path, "two")})

        async def is_mended() -> bool:
            return "problems" not in await running.status() and "two__pid" in await running.names()

        await until(is_mended)
        assert await running.text("one__pid") == pid


@both_ways
@pytest.mark.fault(30)
async def test_running_call_survives_the_removal_of_its_server(tmp_path: Path, front: str, era: str) -> None:
    file = File(tmp_path)
    file.write({"one": server(tmp_path, "one")})
    async with gateway(file, front, era) as running:
        pid = int(await running.text("one__pid"))
        answers: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                answers.append(await running.text("one__wait"))

            tasks.start_soon(call)

            async def is_running() -> bool:
                return "tools/call wait" in (tmp_path / "one.requests").read_text()

            await until(is_running)
            file.write({})

            async def nothing() -> bool:
                return not await running.names()

            await until(nothing)
            assert alive(pid)
            assert answers == []
            (tmp_path / "go").touch()
        assert answers == ["waited"]
        await until(lambda: gone(pid))


@both_ways
async def test_sighup_reloads_also_where_the_file_is_not_followed(tmp_path: Path, front: str, era: str) -> None:
    file = File(tmp_path)
    one, two = server(tmp_path, "one"), server(tmp_path, "two")
    file.write({"one": one}, server={"reload": False})
    async with gateway(file, front, era) as running:
        pid = await running.text("one__pid")
        file.write({"one": one, "two": two}, server={"reload": False, "http": {"port": 1}, "pageSize": 7})
        os.kill(running.pid(), signal.SIGHUP)

        async def has_two() -> bool:
            return "two__pid" in await running.names()

        await until(has_two)
        assert await running.text("one__pid") == pid
        log = running.log.read_text()
        assert "setting changed, restart the gateway to apply it path=server.http.port" in log
        assert "setting changed, restart the gateway to apply it path=server.pageSize" in log


async def test_tools_on_demand_and_pins_can_begin_while_it_runs(tmp_path: Path) -> None:
    file = File(tmp_path)
    one = server(tmp_path, "one", tools=2)
    file.write({"one": one})
    async with gateway(file, "http", "legacy") as running:
        assert "one__tool-1" in await running.names()
        file.write({"one": one}, policies={"one": {"disclosure": "on-demand"}})

        async def is_hidden() -> bool:
            return not await running.names() and "load_tools" in {x.name for x in (await running.client.list_tools()).tools}

        await until(is_hidden)
        await running.client.call_tool("load_tools", {"names": ["one__pid"]})
        assert await running.names() == {"one__pid"}
        locked = await anyio.to_thread.run_sync(lambda: moongate("lock", "one", cwd=tmp_path))
        assert locked.code == 0
        document = json.loads((tmp_path / "gateway.lock.json").read_text())
        document["servers"]["one"]["tools"].pop("tool-1")
        (tmp_path / "other.lock.json").write_text(json.dumps(document))
        file.write({"one": one}, server={"lockFile": "other.lock.json"})

        async def is_pinned() -> bool:
            names = await running.names()
            return "one__tool-0" in names and "one__tool-1" not in names

        await until(is_pinned)
        assert "load_tools" not in {x.name for x in (await running.client.list_tools()).tools}


@pytest.mark.fault(22)
@pytest.mark.faults
async def test_reload_and_notification_are_limited_to_once_a_second(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.write({"one": server(tmp_path, "one")})
    async with gateway(file, "http", "legacy") as running:
        await running.names()
        before = (tmp_path / "one.requests").read_text().count("tools/list")
        running.heard.clear()
        started = anyio.current_time()
        await running.text("one__flood")

        async def has_last() -> bool:
            return "one__last" in await running.names()

        await until(has_last)
        seconds = anyio.current_time() - started
        read = (tmp_path / "one.requests").read_text().count("tools/list") - before
        told = sum(isinstance(message, t.ToolListChangedNotification) for message in running.heard)
        assert 1 <= read <= seconds + 2
        assert 1 <= told <= seconds + 2


@pytest.mark.timeout(180)
async def test_fifty_servers_list_two_thousand_tools_and_call_once(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.write({f"s{n}": server(tmp_path, f"s{n}", tools=37) for n in range(50)}, server={"pageSize": 300, "startupTimeoutSeconds": 90})
    async with gateway(file, "stdio", "legacy") as running:

        async def listed() -> set[str]:
            names: set[str] = set()
            page = await running.client.list_tools()
            while True:
                names |= {tool.name for tool in page.tools if "__" in tool.name}
                if page.next_cursor is None:
                    return names
                page = await running.client.list_tools(cursor=page.next_cursor)

        with anyio.fail_after(120):
            while len(await listed()) < 2_000:
                await anyio.sleep(0.2)
        assert len(await listed()) == 2_000

        def requests(n: int) -> list[str]:
            return (tmp_path / f"s{n}.requests").read_text().splitlines()

        before = {n: requests(n) for n in range(50)}
        for n in range(50):
            assert await running.text(f"s{n}__tool-{n % 37}") == f"tool-{n % 37}"
        assert {n: requests(n)[len(before[n]) :] for n in range(50)} == {n: [f"tools/call tool-{n % 37}"] for n in range(50)}
