"""`Listings`: builds the result pages of `tools/list`, `resources/list`, `resources/templates/list` and `prompts/list`.

The fast path (without the MCP SDK) and the SDK path both use it. A cursor names the last entry of the previous page, so paging survives
changes of earlier entries. A listing waits, with a deadline, for sources that are still starting.
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
from gateway.tools.base import Kind, cacheable, complete_result
from gateway.upstream.gateway_chain import with_hops

LIST_TTL_MS = 5_000
"""Milliseconds for which a 2026 client may cache a listing. Clients that subscribed are notified of changes earlier."""

Listed: TypeAlias = Kind | Literal["tools"]
"""The kind of entries in a listing: tools, resources, resource templates or prompts."""

LISTINGS: Mapping[str, Listed] = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "templates",
    "prompts/list": "prompts",
}
"""MCP method of a listing request → the kind of entries (tools, resources, …) that the method lists."""

WIRE_KEY: Mapping[Listed, str] = {
    "tools": "tools",
    "resources": "resources",
    "templates": "resourceTemplates",
    "prompts": "prompts",
}
"""Kind of entries (tools, resources, …) → the key in the result of a listing request whose value is the list of these entries."""


@dataclass(frozen=True, slots=True)
class ListingRequest:
    """A client's request for one page of a listing (of tools, resources, resource templates or prompts)."""

    principal: Principal
    scope: str
    """Key under which `catalog.disclosure` stores the on-demand tools that the client has loaded. The listing leaves out all other
    on-demand tools."""
    is_modern: bool
    via: tuple[str, ...] = ()
    """Ids of the gateways through which the request came. In a listing for another gateway, each entry names the gateways that it came
    through."""
    cursor: str | None = None


class Listings:
    """Builds the result pages of the requests that list the catalog's tools, resources, resource templates and prompts."""

    def __init__(self, catalog: Catalog, *, page_size: int, own_id: str) -> None:
        self._catalog = catalog
        self._page_size = page_size
        self._own_id = own_id

    async def page(self, method: str, request: ListingRequest) -> JsonObject:
        """Return one page of the listing that `method` (such as `tools/list`) requests. Raises `RpcError` for an invalid cursor."""
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
        """Whether a listing request already passed this gateway. `via` has the ids of the gateways that the request passed.

        If it did, `page` returns an empty page, because two gateways that wait for each other's listings would deadlock.
        """
        return self._own_id in via

    def _page(self, request: ListingRequest, wire_key: str, key: str, entries: Sequence[JsonObject]) -> JsonObject:
        start = 0 if request.cursor is None else _position(request.cursor, wire_key, key, entries)
        end = start + self._page_size
        page: JsonObject = {wire_key: list(entries[start:end])}
        if end < len(entries):
            page["nextCursor"] = _cursor(wire_key, end - 1, str(entries[end - 1][key]))
        if request.is_modern:
            page = cacheable(complete_result(page, is_modern=True), LIST_TTL_MS)
        if request.via:
            page[wire_key] = with_hops(page[wire_key], self._own_id)
            page["_meta"] = {GATEWAY_KEY: self._own_id}
        return page


def _cursor(listing: str, index: int, name: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([listing, index, name]).encode()).decode()


def _position(cursor: str, listing: str, key: str, entries: Sequence[JsonObject]) -> int:
    """Return the index in `entries` (tools, resources, …) at which the page that `cursor` requests starts: after the entry that it names.

    If this entry no longer exists, return the index that it had. Raises `RpcError` if the cursor is invalid.
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
