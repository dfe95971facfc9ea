"""`tools/list`, `resources/list`, `resources/templates/list` and `prompts/list`: pages over the catalog.

Answered from memory. Cursors name the last entry served, so a page survives changes before it; a cursor that is
not ours is -32602. The first listing of a process waits, bounded, for sources that are still starting.
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
from gateway.catalog.shelf import KEY_OF
from gateway.json_types import JsonObject
from gateway.policy.metadata import GATEWAY_KEY
from gateway.protocol import INVALID_PARAMS, RpcError
from gateway.tools.base import Kind
from gateway.upstream.hop import with_hops

LIST_TTL_MS = 5_000
"""How long a modern client may keep a listing; changes are also announced at once on `subscriptions/listen`."""

CACHE_SCOPE = "private"
"""Listings may differ by caller, so nobody in between may share them."""

Listed: TypeAlias = Kind | Literal["tools"]
"""What is listed."""

LISTINGS: Mapping[str, Listed] = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "templates",
    "prompts/list": "prompts",
}
"""Method → what it lists."""

WIRE_KEY: Mapping[Listed, str] = {
    "tools": "tools",
    "resources": "resources",
    "templates": "resourceTemplates",
    "prompts": "prompts",
}
"""Under which key a listing has its entries."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks for a listing, and how."""

    principal: Principal
    scope: str
    """Whose loaded tools are shown (`catalog.disclosure`)."""
    is_modern: bool
    via: tuple[str, ...] = ()
    """Ids of the gateways that ask; a listing for a gateway says which gateways its entries came through."""
    cursor: str | None = None


class ListHandler:
    """Makes the four listings."""

    def __init__(self, catalog: Catalog, *, page_size: int, own_id: str) -> None:
        self._catalog = catalog
        self._page_size = page_size
        self._own_id = own_id

    async def page(self, method: str, asking: Asking) -> JsonObject:
        """A page of the listing that `method` asks for, of `LISTINGS`. Raises `RpcError`."""
        kind = LISTINGS[method]
        if self.is_loop(asking.via):
            return self._page(dataclasses.replace(asking, cursor=None), WIRE_KEY[kind], "name", ())
        await self._catalog.ready()
        if kind != "tools":
            return self._page(asking, WIRE_KEY[kind], KEY_OF[kind], self._catalog.wire(kind, asking.principal))
        entries: Sequence[JsonObject] = self._catalog.wire_tools(asking.principal)
        if self._catalog.disclosure is not None:
            entries = self._catalog.disclosure.visible(entries, asking.scope)
        return self._page(asking, WIRE_KEY[kind], "name", entries)

    def is_loop(self, via: Sequence[str]) -> bool:
        """Whether this gateway asks itself. It is answered at once with an empty listing: waiting for its servers would wait for itself."""
        return self._own_id in via

    def _page(self, asking: Asking, wire_key: str, key: str, entries: Sequence[JsonObject]) -> JsonObject:
        start = 0 if asking.cursor is None else _position(asking.cursor, wire_key, key, entries)
        end = start + self._page_size
        page: JsonObject = {wire_key: list(entries[start:end])}
        if end < len(entries):
            page["nextCursor"] = _cursor(wire_key, end - 1, str(entries[end - 1][key]))
        if asking.is_modern:
            page |= {"resultType": "complete", "ttlMs": LIST_TTL_MS, "cacheScope": CACHE_SCOPE}
        if asking.via:
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
