"""Hop hygiene: which `_meta` keys cross a gateway, and the loop guard between chained gateways.

Connection-owned keys never cross; trace context and vendor keys do. Each gateway adds its own id to a `via`
list, refuses a call that already carries it, and stops after `MAX_HOPS`. Pure functions over plain data;
used on both sides, by `server` for what comes in and by `upstream` for what goes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gateway.errors import ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue

VIA_KEY = "dev.moongate/via"
"""Request `_meta`: ids of the gateways a request came through, oldest first."""

HOPS_KEY = "dev.moongate/hops"
"""`_meta` of listed entries between gateways: ids of the gateways an entry came through, nearest first."""

GATEWAY_KEY = "dev.moongate/gateway"
"""Result `_meta` of a listing that one gateway gives another: the answering gateway's id."""

MAX_HOPS = 8
"""Gateways one call may pass."""

_OWNED = frozenset(
    {
        "progressToken",
        "io.modelcontextprotocol/protocolVersion",
        "io.modelcontextprotocol/clientInfo",
        "io.modelcontextprotocol/clientCapabilities",
        "io.modelcontextprotocol/logLevel",
        "io.modelcontextprotocol/related-task",
        "io.modelcontextprotocol/subscriptionId",
        "io.modelcontextprotocol/serverInfo",
    }
)


def crossing_meta(meta: JsonMapping | None) -> JsonObject:
    """What of a request's or result's `_meta` may go on to the next hop; always a new dict."""
    return {k: v for k, v in meta.items() if k not in _OWNED} if meta else {}


def without_owned_meta(result: JsonObject) -> JsonObject:
    """`result` itself, without the `_meta` keys that belong to the connection it came over."""
    meta = result.get("_meta")
    if isinstance(meta, dict):
        kept = crossing_meta(cast("JsonMapping", meta))
        if kept:
            result["_meta"] = kept
        else:
            del result["_meta"]
    return result


def hops_of(meta: JsonMapping | None, key: str) -> list[str]:
    """The list of gateway ids under `key`; anything malformed reads as empty."""
    value: JsonValue = meta.get(key) if meta else None
    if not isinstance(value, list):
        return []
    return [item for item in cast("list[JsonValue]", value) if isinstance(item, str)]


def extend_via(meta: JsonMapping, own_id: str) -> JsonObject:
    """`meta` with `own_id` appended to its `via` list.

    Raises:
        ToolFailed: The call came through this gateway before, or through too many.
    """
    via = hops_of(meta, VIA_KEY)
    if own_id in via:
        raise ToolFailed("Refused: this call came back to a gateway it already passed (a loop between gateways).")
    if len(via) >= MAX_HOPS:
        raise ToolFailed(f"Refused: this call passed {len(via)} gateways; at most {MAX_HOPS} are allowed.")
    return {**meta, VIA_KEY: [*via, own_id]}


def without_loops(entries: Sequence[JsonObject], own_id: str) -> list[JsonObject]:
    """The listed entries that did not already come through this gateway (gateways listing each other)."""
    return [e for e in entries if own_id not in hops_of(cast("JsonMapping | None", e.get("_meta")), HOPS_KEY)]


def with_hops(entries: Sequence[JsonObject], own_id: str) -> list[JsonObject]:
    """The entries as listed to another gateway: each says which gateways it came through, ours first."""
    listed: list[JsonObject] = []
    for entry in entries:
        meta = cast("JsonObject", entry.get("_meta") or {})
        listed.append({**entry, "_meta": {**meta, HOPS_KEY: [own_id, *hops_of(meta, HOPS_KEY)]}})
    return listed
