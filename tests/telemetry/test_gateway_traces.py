"""A gateway that is told to export traces: one trace from the client's request to the upstream server's answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.house.sources import ROOT

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "traceparent": PARENT,
}
UPSTREAM = '''
import sys
import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

async def list_tools(ctx, params):
    return ListToolsResult(tools=[Tool(name="trace", input_schema={"type": "object"})])

async def call_tool(ctx, params):
    return CallToolResult(content=[TextContent(type="text", text=str((ctx.meta or {}).get("traceparent")))])

async def main():
    server = Server("traced", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
'''


def answer(line: str) -> Any:
    return json.loads(line)


@pytest.mark.requirement("OT1")
@pytest.mark.parametrize("is_on", [False, True], ids=["off", "on"])
def test_a_clients_trace_goes_on_at_the_upstream_server(tmp_path: Path, is_on: bool) -> None:
    (tmp_path / "upstream.py").write_text(UPSTREAM, encoding="utf-8")
    config = {"mcpServers": {"up": {"command": sys.executable, "args": [str(tmp_path / "upstream.py")]}}}
    (tmp_path / "gateway.json").write_text(json.dumps(config), encoding="utf-8")
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "up__trace", "arguments": {}, "_meta": META}}
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    if is_on:
        environ |= {"ENABLE_INSTRUMENTATION": "true", "ENABLE_CONSOLE_EXPORTERS": "true"}
    command = [sys.executable, "-m", "gateway", "run", "--stdio", "--config", str(tmp_path / "gateway.json")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, cwd=ROOT
    ) as gateway:
        assert gateway.stdin is not None and gateway.stdout is not None and gateway.stderr is not None
        gateway.stdin.write(json.dumps(request) + "\n")
        gateway.stdin.flush()
        result = answer(gateway.stdout.readline())["result"]
        gateway.stdin.close()
        told = gateway.stderr.read()
    [content] = result["content"]
    _, trace, span, _ = content["text"].split("-")
    assert trace == TRACE
    assert (span != PARENT.split("-")[2]) is is_on, "with tracing on the gateway's own span stands between"
    assert ('"name": "tools/call up__trace"' in told) is is_on
