"""Filters the `_meta` that servers send, and prevents loops between gateways that are connected to each other.

Each gateway appends its id to the `via` list in a request's `_meta`. It rejects a request that already contains its id, or that passed
`MAX_HOPS` gateways. The first half of an id identifies the configuration, and the second half identifies the endpoint that serves the
configuration (`upstream.hop_id`). `policy.metadata` decides which `_meta` keys the gateway accepts; this module finds the `_meta`
objects of a response, except inside data of tools (`_DATA`). Used by `upstream`, and by `server` for listings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from gateway.errors import ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.metadata import HOPS_KEY, VIA_KEY, gateway_ids, is_own_key, peer_meta

MAX_HOPS = 8
"""Maximum number of gateways through which one call may pass."""

_DATA = frozenset({"_meta", "structuredContent", "arguments", "input"})
"""Members of a result that are not searched for further `_meta`, because they contain data of a tool, or are a `_meta` themselves."""


_ValueT = TypeVar("_ValueT", JsonObject, list[JsonObject])


def received(result: _ValueT) -> _ValueT:
    """Remove the `_meta` keys that the gateway does not accept from servers, also in nested objects, and return the changed `result`.

    `result` is the result of a request, or a list of listing entries.
    """
    left: list[JsonValue] = [cast("JsonValue", result)]
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


def received_input_request(request: JsonObject) -> JsonObject:
    """Remove the `_meta` keys that the gateway does not accept from a server's request for input, and return the request."""
    params: JsonObject | None = request.get("params")  # may have any type; checked below
    if isinstance(params, dict) and not isinstance(params.get("_meta", {}), dict):
        del params["_meta"]
    return received(request)


def received_data(data: JsonValue) -> JsonValue:
    """Return the `data` of a server's JSON-RPC error without the keys that only this gateway may set."""
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


def hops_of(meta: JsonMapping | None, key: str) -> list[str]:
    """Return the list of gateway ids under the key `key` of a `_meta`; empty if the list is missing or malformed."""
    return gateway_ids(meta.get(key)) if meta else []


def configuration_of(gateway_id: str) -> str:
    """Return the first half of a gateway's id, which is the same for all endpoints of one configuration."""
    return gateway_id[: len(gateway_id) // 2]


def extend_via(meta: JsonMapping, own_id: str, server: str) -> JsonObject:
    """Return the `_meta` of a request to `server`, with `own_id` appended to its `via` list (ids of the gateways that the request passed).

    Raises:
        ToolFailed: The call came through this gateway before, or through too many gateways.
    """
    via = hops_of(meta, VIA_KEY)
    if own_id in via:
        fix = "`moongate list` on that gateway's machine names the server that leads back"
        raise ToolFailed(f"Call of server {server!r} refused: it returned to a gateway that it already passed (a loop); {fix}.")
    if len(via) >= MAX_HOPS:
        fix = "connect to a gateway nearer to the server"
        raise ToolFailed(f"Call of server {server!r} refused: it passed {len(via)} gateways, and at most {MAX_HOPS} are allowed; {fix}.")
    return {**meta, VIA_KEY: [*via, own_id]}


def without_loops(entries: Sequence[JsonObject], own_id: str) -> list[JsonObject]:
    """Return the listing entries of a server without those that came through this gateway.

    The `_meta` of an entry lists the ids of the gateways that it came through; `own_id` is the id of this gateway.
    """
    return [e for e in entries if own_id not in hops_of(cast("JsonMapping | None", e.get("_meta")), HOPS_KEY)]


def with_hops(entries: Sequence[JsonObject], own_id: str) -> list[JsonObject]:
    """Return listing entries for a client that is a gateway too, each with the list of gateways that it came through in its `_meta`.

    `own_id`, the id of this gateway, is the first of the list.
    """
    listed: list[JsonObject] = []
    for entry in entries:
        meta = cast("JsonObject", entry.get("_meta") or {})
        listed.append({**entry, "_meta": {**meta, HOPS_KEY: [own_id, *hops_of(meta, HOPS_KEY)]}})
    return listed
