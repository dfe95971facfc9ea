"""Gateways behind gateways, beyond the two-hop paths of `ways.py`: over stdio, and a server with the 2024 SSE transport."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import anyio
import pytest

from tests.cli.processes import moongate
from tests.fakes.running import (
    ROOT,
    gateway_command,
    gateway_http,
    upstream_http,
    upstream_stdio,
    write_config,
)
from tests.interaction.ways import Era, Way, connected

pytestmark = pytest.mark.timeout(90)
ERAS = [Way("http", era, "chain") for era in get_args(Era)]


def text_of(result: Any) -> str:
    return result.content[0].text


@pytest.mark.parametrize("seconds", [10, 0], ids=["lists with its servers", "lists before they are up"])
@pytest.mark.parametrize("way", ERAS, ids=str)
async def test_stdio_gateway_serves_as_server_of_another_gateway(tmp_path: Path, way: Way, seconds: int) -> None:
    relay, server = {"sampling": {"mode": "relay"}}, {"startupTimeoutSeconds": seconds}
    inner = write_config(tmp_path, {"mcpServers": {"up": upstream_stdio()}, "policies": {"up": relay}, "server": server}, "inner")
    command, args = gateway_command(inner)
    outer = {"mcpServers": {"hub": {"command": command, "args": args, "cwd": str(ROOT)}}, "policies": {"hub": relay}}
    heard: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    with gateway_http(tmp_path, outer, "outer") as url:
        async with connected(way, url) as (client, _):
            with anyio.fail_after(60):  # servers that start later are announced to the outer gateway as to any client
                while "hub__up__ask_name" not in {tool.name for tool in (await client.list_tools()).tools}:
                    await anyio.sleep(0.1)
            assert text_of(await client.call_tool("hub__up__ask_name", {})) == "accept: Ada"
            assert text_of(await client.call_tool("hub__up__ask_model", {})) == "Paris"
            await client.call_tool("hub__up__progress", {}, progress_callback=note)
            failed = await client.call_tool("hub__up__fail", {})
    assert heard == [1, 2, 3]
    assert failed.is_error


def test_shadowed_built_in_tools_of_unprefixed_gateway_are_named(tmp_path: Path) -> None:
    command, args = gateway_command(write_config(tmp_path, {"mcpServers": {}}, "inner"))
    servers = {"hub": {"command": command, "args": args, "cwd": str(ROOT)}}
    write_config(tmp_path, {"mcpServers": servers, "policies": {"hub": {"prefix": ""}}})
    checks = {check["subject"]: check for check in moongate("doctor", "--json", cwd=tmp_path).data["checks"]}
    assert {"name gateway_status", "name read_result"} <= set(checks)
    assert "'hub' a `prefix`" in checks["name gateway_status"]["text"]


@pytest.mark.parametrize("way", ERAS, ids=str)
async def test_server_with_2024_sse_transport_works(tmp_path: Path, way: Way) -> None:
    with upstream_http("--sse") as sse, gateway_http(tmp_path, {"mcpServers": {"old": {"type": "sse", "url": sse}}}) as url:
        async with connected(way, url) as (client, _):
            assert text_of(await client.call_tool("old__echo", {"text": "over sse"})) == "over sse"
