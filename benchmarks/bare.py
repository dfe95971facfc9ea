"""The yardstick of starting: a server on the SDK's low-level `Server` over standard input and output, with one tool.

    python -m benchmarks.bare
"""

from __future__ import annotations

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

ECHO = types.Tool(name="echo", description="Says it back.", input_schema={"type": "object", "properties": {"text": {"type": "string"}}})


async def list_tools(ctx: ServerRequestContext, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    """One tool."""
    return types.ListToolsResult(tools=[ECHO], ttl_ms=60_000, cache_scope="private")


async def call_tool(ctx: ServerRequestContext, params: types.CallToolRequestParams) -> types.CallToolResult:
    """What it was given."""
    return types.CallToolResult(content=[types.TextContent(text=str((params.arguments or {}).get("text")))])


async def main() -> None:
    """Serve until the client closes the pipe."""
    server = Server("bare", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
