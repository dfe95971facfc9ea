"""Gateways behind gateways beyond the two-hop ways: over stdio, in a circle, and the older transport at the end."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest

from tests.cli.processes import moongate
from tests.fakes.nursery import Child
from tests.fakes.running import (
    ROOT,
    child,
    free_port,
    gateway_command,
    gateway_http,
    upstream_http,
    upstream_stdio,
    wait_until_ready,
    write_config,
)
from tests.interaction.test_faults import marked, sources
from tests.interaction.ways import Era, Way, connected

pytestmark = pytest.mark.timeout(90)
ERAS = [Way("http", era, "chain") for era in get_args(Era)]


def text_of(result: Any) -> str:
    return result.content[0].text


@pytest.mark.parametrize("seconds", [10, 0], ids=["lists with its servers", "lists before they are up"])
@pytest.mark.parametrize("way", ERAS, ids=str)
async def test_a_gateway_started_over_stdio_serves_as_a_server_of_another(tmp_path: Path, way: Way, seconds: int) -> None:
    relay, server = {"sampling": {"mode": "relay"}}, {"startupTimeoutSeconds": seconds}
    inner = write_config(tmp_path, {"mcpServers": {"up": upstream_stdio()}, "policies": {"up": relay}, "server": server}, "inner")
    command, args = gateway_command(inner)
    outer = {"mcpServers": {"hub": {"command": command, "args": args, "cwd": str(ROOT)}}, "policies": {"hub": relay}}
    heard: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    with gateway_http(tmp_path, outer, "outer") as url:
        async with connected(way, url) as (client, _):
            with anyio.fail_after(60):  # of what comes up later than that the outer one is told, as any client
                while "hub__up__ask_name" not in {tool.name for tool in (await client.list_tools()).tools}:
                    await anyio.sleep(0.1)
            assert text_of(await client.call_tool("hub__up__ask_name", {})) == "accept: Ada"
            assert text_of(await client.call_tool("hub__up__ask_model", {})) == "Paris"
            await client.call_tool("hub__up__progress", {}, progress_callback=note)
            failed = await client.call_tool("hub__up__fail", {})
    assert heard == [1, 2, 3]
    assert failed.is_error


def test_built_in_tools_that_a_gateway_without_a_prefix_loses_here_are_named(tmp_path: Path) -> None:
    command, args = gateway_command(write_config(tmp_path, {"mcpServers": {}}, "inner"))
    servers = {"hub": {"command": command, "args": args, "cwd": str(ROOT)}}
    write_config(tmp_path, {"mcpServers": servers, "policies": {"hub": {"prefix": ""}}})
    checks = {check["subject"]: check for check in moongate("doctor", "--json", cwd=tmp_path).data["checks"]}
    assert {"name gateway_status", "name read_result"} <= set(checks)
    assert "'hub' a `prefix`" in checks["name gateway_status"]["text"]


async def test_two_gateways_that_list_each_other_settle_and_refuse_to_go_round(tmp_path: Path) -> None:
    ports = {"a": free_port(), "b": free_port()}
    with ExitStack() as stack:
        processes: dict[str, tuple[Child, Path]] = {}
        for name, other in (("a", "b"), ("b", "a")):
            servers = {"own": upstream_stdio(), other: {"type": "http", "url": f"http://127.0.0.1:{ports[other]}/mcp"}}
            path = write_config(tmp_path, {"mcpServers": servers, "server": {"startupTimeoutSeconds": 2}}, name)
            log = tmp_path / f"{name}.log"
            argv = ["-m", "gateway", "run", "--http", f"127.0.0.1:{ports[name]}", "--config", str(path)]
            processes[name] = (stack.enter_context(child(*argv, log=log)), log)
        for name, (process, log) in processes.items():
            wait_until_ready(process, f"http://127.0.0.1:{ports[name]}/ready", log)
        way = Way("http", "modern", "a")
        async with connected(way, f"http://127.0.0.1:{ports['a']}/mcp") as (client, _):
            with anyio.fail_after(30):
                while not (names := {tool.name for tool in (await client.list_tools()).tools}) >= {"own__echo", "b__own__echo"}:
                    await anyio.sleep(0.1)
            assert not [name for name in names if name.startswith("b__a__")]
            assert text_of(await client.call_tool("b__own__echo", {"text": "across"})) == "across"
            via: Any = {"dev.moongate/via": [str(n) for n in range(8)]}
            refused = await client.call_tool("own__echo", {"text": "x"}, meta=via)
    assert refused.is_error
    assert "gateways" in text_of(refused)


@pytest.mark.attack(35)
async def test_a_gateway_that_starts_itself_over_stdio_does_so_once(tmp_path: Path) -> None:
    marks = {name: f"{tmp_path}-{name}" for name in ("own", "me")}
    start = ["-m", "gateway", "run", "--stdio", "--config", str(tmp_path / "gateway.json")]
    circle = {"command": sys.executable, "args": start, "cwd": str(ROOT), "env": {"MARK": marks["me"]}}
    own = {**upstream_stdio(), "env": {"MARK": marks["own"]}}
    with gateway_http(tmp_path, {"mcpServers": {"own": own, "me": circle}, "server": {"startupTimeoutSeconds": 5}}) as url:
        with anyio.fail_after(30):
            while sources(url)["me"]["state"] != "ready":  # it has tried to start its servers by then
                await anyio.sleep(0.1)
        async with connected(Way("http", "modern", "own"), url) as (client, _):
            assert text_of(await client.call_tool("own__echo", {"text": "fine"})) == "fine"
        started = {name: len(marked(mark)) for name, mark in marks.items()}
    assert started == {"own": 1, "me": 1}


@pytest.mark.parametrize("way", ERAS, ids=str)
async def test_a_server_with_the_older_sse_transport_works(tmp_path: Path, way: Way) -> None:
    with upstream_http("--sse") as sse, gateway_http(tmp_path, {"mcpServers": {"old": {"type": "sse", "url": sse}}}) as url:
        async with connected(way, url) as (client, _):
            assert text_of(await client.call_tool("old__echo", {"text": "over sse"})) == "over sse"


