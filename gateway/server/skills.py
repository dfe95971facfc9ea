"""The extension `io.modelcontextprotocol/skills` (SEP-2640): binds its three methods to the skills room's payloads.

Legacy clients never see the capability (the SDK drops `extensions` from a handshake); they have the same skills as
resources, prompts and tools.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, PaginatedRequestParams, RequestParams

from gateway.errors import GatewayError, NotFound
from gateway.json_types import JsonObject
from gateway.server.clients import RequestContext
from gateway.server.errors import to_mcp_error
from gateway.skills.extension import CAPABILITY, EXTENSION_ID, SkillsExtension


class SkillParams(RequestParams):
    """Parameters of `skills/get`."""

    uri: str


class DirectoryParams(PaginatedRequestParams):
    """Parameters of `resources/directory/read`."""

    uri: str


Gate = Callable[[RequestContext, str, Callable[[], Awaitable[JsonObject]]], Awaitable[JsonObject]]
"""Runs a read of the named skill or folder within the limits of the skill source: `(request, name, work)`."""


def bind_skills(server: Server[Any], extension: SkillsExtension, gate: Gate) -> None:
    """Declare the extension and serve its methods, each through `gate`; bound again, the later ones count."""

    async def list_skills(ctx: RequestContext, params: PaginatedRequestParams) -> JsonObject:
        return await _answer(gate(ctx, params.cursor or "", lambda: extension.list_page(params.cursor)))

    async def get_skill(ctx: RequestContext, params: SkillParams) -> JsonObject:
        return await _answer(gate(ctx, params.uri, lambda: extension.get(params.uri)))

    async def read_directory(ctx: RequestContext, params: DirectoryParams) -> JsonObject:
        return await _answer(gate(ctx, params.uri, lambda: extension.directory(params.uri, params.cursor)))

    server.extensions[EXTENSION_ID] = dict(CAPABILITY)
    server.add_request_handler("skills/list", PaginatedRequestParams, list_skills)
    server.add_request_handler("skills/get", SkillParams, get_skill)
    server.add_request_handler("resources/directory/read", DirectoryParams, read_directory)


def unbind_skills(server: Server[Any]) -> None:
    """Serve no skills any more: the methods are unknown again."""

    async def unknown(ctx: RequestContext, params: RequestParams) -> JsonObject:
        raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)

    if server.extensions.pop(EXTENSION_ID, None) is not None:
        for method in ("skills/list", "skills/get", "resources/directory/read"):
            server.add_request_handler(method, RequestParams, unknown)


async def _answer(work: Awaitable[JsonObject]) -> JsonObject:
    try:
        return {**await work, "resultType": "complete"}
    except NotFound as error:
        raise MCPError(INVALID_PARAMS, str(error), {"uri": error.name}) from None
    except GatewayError as error:
        raise to_mcp_error(error, "modern") from None
