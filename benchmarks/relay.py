"""A minimal MCP relay on the Python SDK, tuned with the SDK's public options: the baseline for ratios to SDK-based proxies.

    python -m benchmarks.relay PORT UPSTREAM_URL
"""

from __future__ import annotations

import sys

import anyio
import mcp_types as types
import uvicorn
from mcp.client.client import Client
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server


async def main(port: int, upstream: str) -> None:
    """Connect to the upstream, cache its tool list, and relay calls until the process is stopped."""
    async with Client(upstream, mode="auto") as client:
        listed = await client.list_tools()
        schemas = {tool.name: tool.input_schema for tool in listed.tools}

        async def list_tools(ctx: ServerRequestContext, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
            return types.ListToolsResult(tools=listed.tools, ttl_ms=5_000, cache_scope="private")

        async def call_tool(ctx: ServerRequestContext, params: types.CallToolRequestParams) -> types.CallToolResult:
            return await client.session.call_tool(params.name, params.arguments)

        server = Server("relay", on_list_tools=list_tools, on_call_tool=call_tool, get_tool_input_schema=schemas.get)
        config = uvicorn.Config(server.streamable_http_app(), host="127.0.0.1", port=port, log_level="error")
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]), sys.argv[2])
