"""An MCP server with one tool on the low-level `Server` of the Python SDK: the baseline for start times and idle memory.

    python -m benchmarks.bare         serve over stdin and stdout
    python -m benchmarks.bare PORT    serve over HTTP, as an upstream for call benchmarks
"""

from __future__ import annotations

import sys

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

TOOL = types.Tool(name="tool_1", description="Says it back.", input_schema={"type": "object", "properties": {"text": {"type": "string"}}})


async def list_tools(ctx: ServerRequestContext, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    """Return the only tool, `tool_1`."""
    return types.ListToolsResult(tools=[TOOL], ttl_ms=60_000, cache_scope="private")


async def call_tool(ctx: ServerRequestContext, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Return the argument `text` as the result."""
    return types.CallToolResult(content=[types.TextContent(text=str((params.arguments or {}).get("text")))])


async def main(port: int) -> None:
    """Serve over HTTP until the process is stopped, or with port 0 over stdio until the client closes stdin."""
    schemas = {TOOL.name: TOOL.input_schema}
    server = Server("bare", on_list_tools=list_tools, on_call_tool=call_tool, get_tool_input_schema=schemas.get)
    if port:
        import uvicorn  # imported here, because loading it would slow down a start over stdio

        config = uvicorn.Config(server.streamable_http_app(), host="127.0.0.1", port=port, log_level="error")
        await uvicorn.Server(config).serve()
    else:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if sys.argv[1:] else 0)
