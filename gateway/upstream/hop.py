"""Chained gateways: what of a server's `_meta` is kept, and the guard against loops between gateways.

Each gateway adds its own id to a request's `via` list, refuses a request that already carries it, and stops after `MAX_HOPS`. Which keys
are kept is `policy.metadata`'s decision; this module finds every `_meta` of an answer. Used by `upstream`, and by `server` for listings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gateway.errors import ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.metadata import HOPS_KEY, VIA_KEY, gateway_ids, is_own_key, peer_meta

MAX_HOPS = 8
"""Gateways one call may pass."""

_ITEMS = ("contents", "skills", "resources")
"""Members of results that list objects with `_meta`, beside `content` and `messages`."""


def received_call(result: JsonObject) -> JsonObject:
    """A server's result of `tools/call` itself, with the `_meta` that the gateway takes. On the path of every call."""
    if "_meta" in result:
        _keep_taken(result)
    content: JsonValue = result.get("content")
    if isinstance(content, list):
        for block in cast("list[JsonValue]", content):
            if isinstance(block, dict) and ("_meta" in block or "resource" in block):
                _received_block(cast("JsonObject", block))
    return result


def received(result: JsonObject) -> JsonObject:
    """A server's result of any method itself, with the `_meta` that the gateway takes."""
    received_call(result)
    for name in _ITEMS:
        for item in _objects(result.get(name)):
            received(item)
    _received_messages(result)
    for inner in _objects([result.get("result"), result.get("skill")]):
        received(inner)
    for error in _objects([result.get("error")]):
        error.update({"data": received_data(error["data"])} if "data" in error else {})
    return result


def received_ask(request: JsonObject) -> JsonObject:
    """A server's request for input itself, with the `_meta` that the gateway takes."""
    if isinstance(params := request.get("params"), dict):
        fields = cast("JsonObject", params)
        if not isinstance(fields.get("_meta", {}), dict):
            del fields["_meta"]
        _keep_taken(fields)
        _received_messages(fields)
    return request


def received_data(data: JsonValue) -> JsonValue:
    """The data of a server's error, without keys of the gateway's own."""
    if not isinstance(data, dict):
        return data
    fields = {key: value for key, value in cast("JsonObject", data).items() if not is_own_key(key)}
    _keep_taken(fields)
    return fields


def _received_messages(fields: JsonMapping) -> None:
    for message in _objects(fields.get("messages")):
        _keep_taken(message)
        content = message.get("content")
        for block in _objects(content if isinstance(content, list) else [content]):
            _received_block(block)


def _received_block(block: JsonObject) -> None:
    """A content block, the resource embedded in it, and the blocks of a tool's result in a sampling message."""
    _keep_taken(block)
    for inner in _objects([block.get("resource")]):
        _keep_taken(inner)
    for inner in _objects(block.get("content")):
        _received_block(inner)


def _keep_taken(holder: JsonObject) -> None:
    meta: JsonValue = holder.get("_meta")
    if isinstance(meta, dict) and (kept := peer_meta(cast("JsonMapping", meta))) is not meta:
        if kept:
            holder["_meta"] = kept
        else:
            del holder["_meta"]


def _objects(value: JsonValue) -> list[JsonObject]:
    items = cast("list[JsonValue]", value) if isinstance(value, list) else []
    return [cast("JsonObject", item) for item in items if isinstance(item, dict)]


def received_entries(entries: Sequence[JsonObject]) -> Sequence[JsonObject]:
    """A server's listed entries themselves, with the `_meta` that the gateway takes."""
    for entry in entries:
        _keep_taken(entry)
    return entries


def hops_of(meta: JsonMapping | None, key: str) -> list[str]:
    """The list of gateway ids under `key`; anything malformed reads as empty."""
    return gateway_ids(meta.get(key)) if meta else []


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
