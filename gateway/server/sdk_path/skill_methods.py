"""Serves the three methods of the MCP extension `io.modelcontextprotocol/skills` (SEP-2640) from the catalog's skills.

The 2025 protocol has no extensions, so 2025 clients use the same skills as resources, prompts and tools. `sdk_server` converts exceptions
of the handlers with `gate.rpc_errors`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.lowlevel import Server
from mcp_types import PaginatedRequestParams, RequestParams

from gateway.catalog.skill_catalog import SkillCatalog
from gateway.json_types import JsonObject
from gateway.protocol import METHOD_NOT_FOUND, RpcError
from gateway.server.clients import RequestContext
from gateway.tools.base import complete_result
from gateway.tools.context import CallContext


class SkillParams(RequestParams):
    """Parameters of a `skills/get` request."""

    uri: str


class DirectoryParams(PaginatedRequestParams):
    """Parameters of a `resources/directory/read` request."""

    uri: str


Facts = Callable[[RequestContext], CallContext]
"""A function that returns the call context (`CallContext`) of a request, given the SDK's context of the request."""


def bind_skills(server: Server[Any], face: SkillCatalog, facts: Facts) -> None:
    """Register the handlers of `skills/list`, `skills/get` and `resources/directory/read` with the SDK's server.

    `face` finds the skills, and `facts` returns the call context of a request.
    """

    async def list_skills(ctx: RequestContext, params: PaginatedRequestParams) -> JsonObject:
        return await _answer(ctx, lambda: face.list_page(params.cursor, facts(ctx)))

    async def get_skill(ctx: RequestContext, params: SkillParams) -> JsonObject:
        return await _answer(ctx, lambda: face.get(params.uri, facts(ctx)))

    async def read_directory(ctx: RequestContext, params: DirectoryParams) -> JsonObject:
        return await _answer(ctx, lambda: face.directory(params.uri, params.cursor, facts(ctx)))

    async def _answer(ctx: RequestContext, work: Callable[[], Awaitable[JsonObject]]) -> JsonObject:
        if not face.has_skills:
            raise RpcError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        return complete_result(await work(), is_modern=True)

    server.add_request_handler("skills/list", PaginatedRequestParams, list_skills)
    server.add_request_handler("skills/get", SkillParams, get_skill)
    server.add_request_handler("resources/directory/read", DirectoryParams, read_directory)
