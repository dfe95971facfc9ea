"""`Listings`: builds the pages of `tools/list`, `resources/list`, `resources/templates/list` and `prompts/list` for both paths.

A cursor names the last entry of its page, so paging survives changes of earlier entries. The first listing of a process waits for sources
that are still starting, with a deadline.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gateway.auth.principal import Principal
from gateway.catalog import Catalog
from gateway.catalog.source_listing import KEY_OF
from gateway.json_types import JsonObject
from gateway.policy.metadata import GATEWAY_KEY
from gateway.protocol import INVALID_PARAMS, RpcError
from gateway.tools.base import Kind, complete_result
from gateway.upstream.gateway_chain import with_hops

LIST_TTL_MS = 5_000
"""How long a 2026 client may cache a listing. Changes are also announced on `subscriptions/listen`."""

CACHE_SCOPE = "private"
"""Listings differ by caller, so shared caches must not store them."""

Listed: TypeAlias = Kind | Literal["tools"]
"""What a listing contains: tools, or a kind of other entries."""

LISTINGS: Mapping[str, Listed] = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "templates",
    "prompts/list": "prompts",
}
"""The kind of entries that each method lists."""

WIRE_KEY: Mapping[Listed, str] = {
    "tools": "tools",
    "resources": "resources",
    "templates": "resourceTemplates",
    "prompts": "prompts",
}
"""The key of the list of entries in a result, by what the listing contains."""


@dataclass(frozen=True, slots=True)
class ListingRequest:
    """A request for a page of a listing."""

    principal: Principal
    scope: str
    """Key of the tools that the client has loaded, which a listing of tools shows (`catalog.disclosure`)."""
    is_modern: bool
    via: tuple[str, ...] = ()
    """Ids of the gateways that the request came through. A listing for a gateway names the originating gateways of its entries."""
    cursor: str | None = None


class Listings:
    """Builds the listings of one server."""

    def __init__(self, catalog: Catalog, *, page_size: int, own_id: str) -> None:
        self._catalog = catalog
        self._page_size = page_size
        self._own_id = own_id

    async def page(self, method: str, request: ListingRequest) -> JsonObject:
        """Return the result of `method`, one of `LISTINGS`: one page. Raises `RpcError` for an invalid cursor."""
        kind = LISTINGS[method]
        if self.is_loop(request.via):
            return self._page(dataclasses.replace(request, cursor=None), WIRE_KEY[kind], "name", ())
        await self._catalog.ready()
        if kind != "tools":
            return self._page(request, WIRE_KEY[kind], KEY_OF[kind], self._catalog.wire(kind, request.principal))
        entries: Sequence[JsonObject] = self._catalog.wire_tools(request.principal)
        if self._catalog.disclosure is not None:
            entries = self._catalog.disclosure.visible(entries, request.scope)
        return self._page(request, WIRE_KEY[kind], "name", entries)

    def is_loop(self, via: Sequence[str]) -> bool:
        """Whether the request came through this gateway before. `page` then returns an empty page, because waiting would deadlock."""
        return self._own_id in via

    def _page(self, request: ListingRequest, wire_key: str, key: str, entries: Sequence[JsonObject]) -> JsonObject:
        start = 0 if request.cursor is None else _position(request.cursor, wire_key, key, entries)
        end = start + self._page_size
        page: JsonObject = {wire_key: list(entries[start:end])}
        if end < len(entries):
            page["nextCursor"] = _cursor(wire_key, end - 1, str(entries[end - 1][key]))
        if request.is_modern:
            page = complete_result(page, is_modern=True) | {"ttlMs": LIST_TTL_MS, "cacheScope": CACHE_SCOPE}
        if request.via:
            page[wire_key] = with_hops(page[wire_key], self._own_id)
            page["_meta"] = {GATEWAY_KEY: self._own_id}
        return page


def _cursor(listing: str, index: int, name: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([listing, index, name]).encode()).decode()


def _position(cursor: str, listing: str, key: str, entries: Sequence[JsonObject]) -> int:
    """Return the index at which the page after `cursor` starts: after the entry that the cursor names.

    If this entry no longer exists, return the index that it had.
    """
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
