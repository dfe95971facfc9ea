"""A restarted gateway lists at once what its servers listed last, pins included: real processes on one state folder."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.fakes.running import gateway_command, raw_stdio, write_config

pytestmark = pytest.mark.timeout(60)

TOOL = {"name": "search", "inputSchema": {"type": "object"}}
HANGS = "import sys; sys.stdin.read()"


def write(folder: Path, code: Path, text: str) -> Path:
    """Write the server's code to a file and return the configuration, whose entry and its digest are the same for any code."""
    code.write_text(text)
    entry = {"command": sys.executable, "args": [str(code)], "cwd": str(folder)}
    return write_config(folder, {"mcpServers": {"docs": entry}})


def serving(folder: Path) -> str:
    real = raw_stdio({"tools": [TOOL]})
    return f"import os; os.chdir({real['cwd']!r}); os.execv({real['command']!r}, {[real['command'], *real['args']]!r})"


async def tools(path: Path) -> set[str]:
    command, arguments = gateway_command(path)
    async with Client(stdio_client(StdioServerParameters(command=command, args=arguments)), mode="legacy") as client:
        with anyio.fail_after(20):
            return {tool.name for tool in (await client.list_tools()).tools}


def kept(folder: Path) -> list[Path]:
    return list(folder.glob("gateway-state/catalog/docs-*.json"))


def run_two_and_kill(path: Path) -> None:
    """Run two gateways on one state folder, and kill both when a listing is stored."""
    command, arguments = gateway_command(path)
    with ExitStack() as stack:
        pair = [
            stack.enter_context(subprocess.Popen([command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)) for _ in range(2)
        ]
        deadline = time.monotonic() + 30
        while not kept(path.parent) and time.monotonic() < deadline:
            time.sleep(0.02)
        for process in pair:
            process.kill()


async def test_starting_server_is_listed_from_the_run_before_a_kill(tmp_path: Path) -> None:
    path = write(tmp_path, tmp_path / "server.py", serving(tmp_path))
    await anyio.to_thread.run_sync(run_two_and_kill, path)
    write(tmp_path, tmp_path / "server.py", HANGS)
    assert "docs__search" in await tools(path)


@pytest.mark.faults
async def test_damaged_cache_file_is_replaced_from_the_server(tmp_path: Path) -> None:
    path = write(tmp_path, tmp_path / "server.py", serving(tmp_path))
    assert "docs__search" in await tools(path)
    [file] = kept(tmp_path)
    good = json.loads(file.read_text())
    for damage in ("{", json.dumps({**good, "version": 99}), json.dumps({**good, "lists": {"tools": [1]}})):
        file.write_text(damage)
        assert "docs__search" in await tools(path)
