"""Chained gateways: what of a server's `_meta` is kept, and the guard against loops between gateways.

Each gateway adds its own id to a request's `via` list, refuses a request that already carries it, and stops after `MAX_HOPS`. The first
half of an id is the gateway's configuration, the second the endpoint that serves it (`app.hop_id`). Which keys are kept is
`policy.metadata`'s decision; this module finds every `_meta` of an answer. Used by `upstream`, and by `server` for listings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gateway.errors import ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.metadata import HOPS_KEY, VIA_KEY, gateway_ids, is_own_key, peer_meta

MAX_HOPS = 8
"""Gateways one call may pass."""

_PLAIN = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
"""Members of a plain result of `tools/call`; in any other one, `_meta` may be anywhere."""

_TEXT_MEMBERS = 2
"""Members of a plain text block: its type and its text."""

_DATA = frozenset({"_meta", "structuredContent", "arguments", "input"})
"""Members whose value is data of a tool, or of `_meta` itself."""


def received_call(result: JsonObject) -> JsonObject:
    """A server's result of `tools/call` itself, with the `_meta` that the gateway takes. On the path of every call."""
    for name in result:
        if name not in _PLAIN:
            return received(result)
    if "_meta" in result:
        _keep_taken(result)
    content: JsonValue = result.get("content")
    if isinstance(content, list):
        for item in cast("list[JsonValue]", content):
            block: JsonObject | None = item  # at best
            if isinstance(block, dict) and (len(block) != _TEXT_MEMBERS or not isinstance(block.get("text"), str)):
                received(block)
    return result


def received(result: JsonObject) -> JsonObject:
    """A server's result, listed entry or part of them itself, with the `_meta` that the gateway takes, in every object of it."""
    left: list[JsonValue] = [result]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += [item for item in cast("list[JsonValue]", value) if isinstance(item, dict | list)]
        elif isinstance(value, dict):
            fields = cast("JsonObject", value)
            _keep_taken(fields)
            error: JsonValue = fields.get("error")
            if isinstance(error, dict) and "data" in error:
                error["data"] = received_data(cast("JsonObject", error)["data"])
            left += [item for name, item in fields.items() if isinstance(item, dict | list) and name not in _DATA]
    return result


def received_ask(request: JsonObject) -> JsonObject:
    """A server's request for input itself, with the `_meta` that the gateway takes."""
    params: JsonObject | None = request.get("params")  # at best
    if isinstance(params, dict) and not isinstance(params.get("_meta", {}), dict):
        del params["_meta"]
    return received(request)


def received_data(data: JsonValue) -> JsonValue:
    """The data of a server's error, without keys of the gateway's own."""
    if not isinstance(data, dict):
        return data
    fields = {key: value for key, value in cast("JsonObject", data).items() if not is_own_key(key)}
    _keep_taken(fields)
    return fields


def _keep_taken(holder: JsonObject) -> None:
    meta: JsonValue = holder.get("_meta")
    if isinstance(meta, dict) and (kept := peer_meta(cast("JsonMapping", meta))) is not meta:
        if kept:
            holder["_meta"] = kept
        else:
            del holder["_meta"]


def received_entries(entries: Sequence[JsonObject]) -> Sequence[JsonObject]:
    """A server's listed entries themselves, with the `_meta` that the gateway takes."""
    for entry in entries:
        received(entry)
    return entries


def hops_of(meta: JsonMapping | None, key: str) -> list[str]:
    """The list of gateway ids under `key`; anything malformed reads as empty."""
    return gateway_ids(meta.get(key)) if meta else []


def configuration_of(gateway_id: str) -> str:
    """The half of a gateway's id that is the same for every endpoint where its configuration is served."""
    return gateway_id[: len(gateway_id) // 2]


def extend_via(meta: JsonMapping, own_id: str, server: str) -> JsonObject:
    """`meta` of a request to `server` with `own_id` appended to its `via` list.

    Raises:
        ToolFailed: The call came through this gateway before, or through too many.
    """
    via = hops_of(meta, VIA_KEY)
    if own_id in via:
        fix = "`moongate list` on that gateway's machine names the server that leads back"
        raise ToolFailed(f"Call of server {server!r} refused: it came back to a gateway that it already passed (a loop); {fix}.")
    if len(via) >= MAX_HOPS:
        fix = "connect to a gateway nearer to the server"
        raise ToolFailed(f"Call of server {server!r} refused: it passed {len(via)} gateways, and at most {MAX_HOPS} are allowed; {fix}.")
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
