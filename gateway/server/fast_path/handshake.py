"""Parses `initialize` requests of 2025 clients without the models of the MCP SDK. Used by the fast path and by `startup_answers`.

The result equals that of the SDK's models (`tests/server/test_fast_sessions.py` compares them). An invalid request is left to the SDK.
Valid requests must be parsed here: only sessions that the fast path opens can continue at other replicas (`server.sealed_sessions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from gateway.server.fast_path.plain_entries import are_icons
from gateway.tools.ports import ClientProfile
from gateway.wire.rpc_envelope import plain_members

_PARAMS = frozenset({"protocolVersion", "capabilities", "clientInfo"})
_TEXTS = ("title", "description", "websiteUrl")
_FLAG: Final = "a flag"
_OBJECTS: Final = "objects by name"

Shape = Mapping[str, "Shape | str"]

_NOTHING: Shape = {}
_CAPABILITIES: Shape = {
    "experimental": _OBJECTS,
    "sampling": {"context": _NOTHING, "tools": _NOTHING},
    "elicitation": {"form": _NOTHING, "url": _NOTHING},
    "roots": {"listChanged": _FLAG},
    "extensions": _OBJECTS,
    "tasks": {
        "list": _NOTHING,
        "cancel": _NOTHING,
        "requests": {"sampling": {"createMessage": _NOTHING}, "elicitation": {"create": _NOTHING}},
    },
}
"""Client capabilities that the 2025 protocol defines, with the types of their members. Other capabilities are ignored."""


@dataclass(frozen=True, slots=True)
class InitializeRequest:
    """The content of an `initialize` request of a 2025 client."""

    number: int | str
    """The JSON-RPC id of the request."""
    client: ClientProfile
    """The client, with the negotiated protocol version: the version that the client requests, or the latest 2025 version if the gateway
    does not support the requested version."""


def plain_initialize(message: JsonMapping) -> InitializeRequest | None:
    """Parse a valid `initialize` request; return `None` for any other message. Unknown parameters are ignored, as the SDK ignores them."""
    members = plain_members(message)
    if members is None or members[1] != "initialize" or not members[2].keys() >= _PARAMS or not _is_meta(members[2].get("_meta", {})):
        return None
    number, _, fields = members
    wanted, info = fields["protocolVersion"], fields["clientInfo"]
    capabilities = _shaped(fields["capabilities"], _CAPABILITIES)
    if not isinstance(wanted, str) or capabilities is None or not isinstance(info, dict):
        return None
    said = cast("JsonMapping", info)
    name, version = said.get("name"), said.get("version")
    icons = said.get("icons")
    if not isinstance(name, str) or not isinstance(version, str) or (icons is not None and not are_icons(icons)):
        return None
    if not all(isinstance(said.get(text), str | None) for text in _TEXTS):
        return None
    spoken = wanted if wanted in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
    return InitializeRequest(number, ClientProfile("legacy", spoken, name, version, capabilities))


def _is_meta(value: JsonValue) -> bool:
    """Return whether `value` can be the `_meta` of a request."""
    if not isinstance(value, dict):
        return False
    token = cast("JsonMapping", value).get("progressToken", "")
    return isinstance(token, str | int) and not isinstance(token, bool)


def _shaped(value: JsonValue, shape: Shape) -> JsonObject | None:
    """Return a copy of the JSON object `value` that has only the members named in `shape`.

    Return `None` if `value` is not an object, or if one of the named members has a type that `shape` does not allow.
    """
    if not isinstance(value, dict):
        return None
    found: JsonObject = {}
    for key, inner in shape.items():
        given = cast("JsonMapping", value).get(key)
        if given is None:
            continue
        if inner is _FLAG:
            kept: JsonValue = given if isinstance(given, bool) else None
        elif inner is _OBJECTS:
            objects = cast("JsonObject", given) if isinstance(given, dict) else None
            kept = objects if objects is not None and all(isinstance(one, dict) for one in objects.values()) else None
        else:
            kept = _shaped(given, cast("Shape", inner))
        if kept is None:
            return None
        found[key] = kept
    return found
