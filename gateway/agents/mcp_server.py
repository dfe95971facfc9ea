"""Creates the MCP server of `Agent.as_mcp_server`, whose only tool runs one agent of a program, as in agent-framework.

The tool returns text only; the program provides the transport and access control. For agent files, the gateway (`agents.tool` and package
`server`) adds sessions, images, progress, approvals, tasks and API keys.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, Tool

from gateway.agents.base_agent import BaseAgent
from gateway.errors import GatewayError
from gateway.tools.base import Complete
from gateway.tools.context import CallContext

Lifespan = Callable[[Server[Any]], AbstractAsyncContextManager[Any]]


def to_mcp_server(agent: BaseAgent, *, name: str, version: str, instructions: str | None, lifespan: Lifespan | None) -> Server[Any]:
    """Return an MCP server whose only tool runs `agent`; the program runs the server on a transport.

    A failed run is a tool result with `isError`, so that the calling model can react to it.
    """
    tool = agent.as_tool(name=None if agent.name else "UnnamedAgent")
    listed = Tool(name=tool.name, description=tool.description, input_schema=tool.definition.input_schema)

    async def list_tools(ctx: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[listed])

    async def call_tool(ctx: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        if params.name != tool.name:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name}")
        try:
            outcome = await tool.call(params.arguments or {}, CallContext())
        except GatewayError as error:
            outcome = Complete.text(str(error), is_error=True)
        found = outcome if isinstance(outcome, Complete) else Complete.text("The agent waits for a person's answer.", is_error=True)
        return CallToolResult.model_validate(found.result)

    make = Server[Any] if lifespan is None else partial(Server[Any], lifespan=lifespan)
    return make(name, version=version, instructions=instructions, on_list_tools=list_tools, on_call_tool=call_tool)
