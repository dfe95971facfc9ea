"""Serves the gateway over standard input and output: what an IDE starts.

The SDK takes the real descriptors for the wire and diverts prints, so nothing else reaches stdout. Ends when
the client closes our standard input.
"""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from gateway.server.build import GatewayServer


async def serve_stdio(server: GatewayServer) -> None:
    """Serve one client until it closes the pipe."""
    async with stdio_server() as (read, write):
        await server.mcp.run(read, write, server.mcp.create_initialization_options())
