"""`tools/list`, `resources/list`, `resources/templates/list` and `prompts/list`: pages over the catalog.

Answered from memory. Cursors name the last entry served, so a page survives changes before it; a cursor that is
not ours is -32602. The first listing of a process waits, bounded, for sources that are still starting.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import cast

from mcp_types import PaginatedRequestParams

from gateway.catalog import Catalog
from gateway.json_types import JsonMapping, JsonObject
from gateway.protocol import INVALID_PARAMS, RpcError
from gateway.server.clients import Clients, RequestContext, is_modern, principal_of
from gateway.tools.base import Kind
from gateway.upstream.hop import GATEWAY_KEY, VIA_KEY, with_hops

LIST_TTL_MS = 5_000
"""How long a modern client may keep a listing; changes are also announced at once on `subscriptions/listen`."""

CACHE_SCOPE = "private"
"""Listings may differ by caller, so nobody in between may share them."""

_WIRE_KEY: dict[Kind, str] = {"resources": "resources", "templates": "resourceTemplates", "prompts": "prompts"}


class ListHandler:
    """Serves the four listings."""

    def __init__(self, catalog: Catalog, clients: Clients, *, page_size: int, own_id: str) -> None:
        self._catalog = catalog
        self._clients = clients
        self._page_size = page_size
        self._own_id = own_id

    async def tools(self, ctx: RequestContext, params: PaginatedRequestParams | None) -> JsonObject:
        """`tools/list`."""
        await self._catalog.ready()
        entries: Sequence[JsonObject] = self._catalog.wire_tools(principal_of(ctx))
        if self._catalog.disclosure is not None:
            entries = self._catalog.disclosure.visible(entries, self._clients.scope(ctx))
        return self._page(ctx, params, "tools", "name", entries)

    async def resources(self, ctx: RequestContext, params: PaginatedRequestParams | None) -> JsonObject:
        """`resources/list`."""
        return await self._kind(ctx, params, "resources", "uri")

    async def templates(self, ctx: RequestContext, params: PaginatedRequestParams | None) -> JsonObject:
        """`resources/templates/list`."""
        return await self._kind(ctx, params, "templates", "uriTemplate")

    async def prompts(self, ctx: RequestContext, params: PaginatedRequestParams | None) -> JsonObject:
        """`prompts/list`."""
        return await self._kind(ctx, params, "prompts", "name")

    async def _kind(self, ctx: RequestContext, params: PaginatedRequestParams | None, kind: Kind, key: str) -> JsonObject:
        await self._catalog.ready()
        return self._page(ctx, params, _WIRE_KEY[kind], key, self._catalog.wire(kind, principal_of(ctx)))

    def _page(
        self, ctx: RequestContext, params: PaginatedRequestParams | None, wire_key: str, key: str, entries: Sequence[JsonObject]
    ) -> JsonObject:
        cursor = params.cursor if params is not None else None
        start = 0 if cursor is None else _position(cursor, wire_key, key, entries)
        end = start + self._page_size
        page: JsonObject = {wire_key: list(entries[start:end])}
        if end < len(entries):
            page["nextCursor"] = _cursor(wire_key, end - 1, str(entries[end - 1][key]))
        if is_modern(ctx):
            page |= {"resultType": "complete", "ttlMs": LIST_TTL_MS, "cacheScope": CACHE_SCOPE}
        if VIA_KEY in cast("JsonMapping", (ctx.params or {}).get("_meta") or {}):
            page[wire_key] = with_hops(page[wire_key], self._own_id)
            page["_meta"] = {GATEWAY_KEY: self._own_id}
        return page


def _cursor(listing: str, index: int, name: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([listing, index, name]).encode()).decode()


def _position(cursor: str, listing: str, key: str, entries: Sequence[JsonObject]) -> int:
    """Where the page after `cursor` starts: behind the named entry, or where it would have been."""
    try:
        decoded = json.loads(base64.b64decode(cursor.encode(), altchars=b"-_", validate=True))
        named, index, name = decoded
        if named != listing or not isinstance(index, int) or isinstance(index, bool) or index < 0 or not isinstance(name, str):
            raise ValueError
    except (ValueError, TypeError, binascii.Error):
        raise RpcError(INVALID_PARAMS, "Invalid cursor; start the listing again without one.") from None
    if index < len(entries) and entries[index][key] == name:
        return index + 1
    found = next((i for i, entry in enumerate(entries) if entry[key] == name), None)
    return min(index, len(entries)) if found is None else found + 1
