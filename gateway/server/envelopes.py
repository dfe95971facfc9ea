"""A request as it came: its message, and whether what one of 2026 says of itself in `_meta`, and once more in headers, is as the protocol
has it.

What is said in the plainest way is known here; all else is shown to the SDK's models where the SDK is there, and is not plain before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.metadata import request_meta
from gateway.protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    MODERN_PROTOCOL_VERSIONS,
    NAME_BEARING_METHODS,
    PROTOCOL_VERSION_META_KEY,
)
from gateway.server.clients import modern_profile
from gateway.tools.context import ClientProfile

MAX_KNOWN_CLIENTS = 256
"""Client declarations remembered as valid."""

MAX_KEPT_CHARS = 2_048
"""Of an envelope that a connection keeps, to know it again."""

ENVELOPE_KEYS = (PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY)
ENVELOPE = frozenset(ENVELOPE_KEYS)

_NOTHING: JsonMapping = {}
_INFO = {"name", "version", "title", "description"}


class Introduced:
    """What the `_meta` of a `tools/call` said of its client, which was found to be in order."""

    __slots__ = ("_envelope", "_spelled", "profile")

    def __init__(self, meta: JsonMapping, profile: ClientProfile) -> None:
        """`profile` is what `meta` says."""
        self.profile = profile
        envelope = {key: meta[key] for key in ENVELOPE_KEYS if key in meta}
        is_small, is_exact = _measured(envelope)
        self._envelope = envelope if is_small else None
        self._spelled = "" if is_exact else repr(envelope)

    def crossing(self, meta: JsonValue) -> JsonMapping | None:
        """What of another `_meta` goes on to the next hop, if that says the same of its client and asks for nothing."""
        known, own = self._envelope, _NOTHING
        envelope: JsonMapping | None = meta  # at best
        if known is None or not isinstance(envelope, dict):
            return None
        if len(envelope) != len(known):
            if not is_plain_meta(envelope):
                return None
            own = request_meta(envelope)
            envelope = {key: value for key, value in envelope.items() if key in ENVELOPE}
        if envelope != known or (self._spelled and repr(envelope) != self._spelled):
            return None
        return own


def is_plain_meta(meta: JsonMapping) -> bool:
    """Whether nothing in a `_meta` asks for something, beside the envelope."""
    for key in meta:
        if key not in ENVELOPE and (key == "progressToken" or key.startswith("io.modelcontextprotocol/")):
            return False
    return True


def is_named(name: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether headers say this name, in the plainest way."""
    return name.isascii() and "=?" not in name and headers.get(b"mcp-name") == name.encode()


def _measured(envelope: JsonMapping) -> tuple[bool, bool]:
    """Whether an envelope is small enough to be kept; whether only what says the same equals it: 1, 1.0 and true are equal."""
    left: list[JsonValue] = [envelope]
    room, is_exact = MAX_KEPT_CHARS, True
    while left and room > 0:
        value = left.pop()
        if isinstance(value, dict):
            fields = cast("JsonMapping", value)
            left += fields.values()
            room -= sum(map(len, fields)) + 1
        elif isinstance(value, list):
            left += cast("list[JsonValue]", value)
            room -= 1
        elif isinstance(value, str):
            room -= len(value)
        elif value is not None:
            room, is_exact = room - 1, False
    return room > 0, is_exact


class Envelopes:
    """Which client declarations are valid: each is looked at once."""

    def __init__(self, has_sdk: Callable[[], bool]) -> None:
        """`has_sdk` says whether the SDK is loaded."""
        self._has_sdk = has_sdk
        self._valid: OrderedDict[str, ClientProfile] = OrderedDict()

    def profile_of(self, meta: JsonMapping) -> ClientProfile | None:
        """What a request's `_meta` says of its client, if version, capabilities and name are as the protocol has them."""
        envelope = {key: meta[key] for key in ENVELOPE_KEYS if key in meta}
        key = repr(envelope)
        known = self._valid.get(key)
        if known is not None:
            return known
        if not is_plain_envelope(envelope) and not (self._has_sdk() and _is_valid(envelope)):
            return None
        profile = self._valid[key] = modern_profile(str(envelope[PROTOCOL_VERSION_META_KEY]), envelope)
        if len(self._valid) > MAX_KNOWN_CLIENTS:
            self._valid.popitem(last=False)
        return profile

    def agree(self, message: JsonObject, headers: Mapping[bytes, bytes]) -> bool:
        """Whether headers and body of a request with a `_meta` say the same."""
        return _says_the_same(message, headers) or (self._has_sdk() and _routes(message, headers))


def is_plain_envelope(envelope: JsonMapping) -> bool:
    """Whether an envelope is valid and has nothing but what is known here."""
    if envelope.get(PROTOCOL_VERSION_META_KEY) not in MODERN_PROTOCOL_VERSIONS:
        return False
    info = envelope.get(CLIENT_INFO_META_KEY, {"name": "", "version": ""})
    if not isinstance(info, dict) or not {"name", "version"} <= info.keys() <= _INFO or not _are(cast("JsonMapping", info), str):
        return False
    said = envelope.get(CLIENT_CAPABILITIES_META_KEY)
    return isinstance(said, dict) and all(_is_plain_capability(name, value) for name, value in cast("JsonMapping", said).items())


def _is_plain_capability(name: str, value: JsonValue) -> bool:
    if not isinstance(value, dict):
        return False
    fields = cast("JsonMapping", value)
    match name:
        case "roots":
            return True
        case "elicitation":
            return fields.keys() <= {"form", "url"} and _are(fields, dict)
        case "sampling":
            return fields.keys() <= {"context", "tools"} and _are(fields, dict)
        case "extensions" | "experimental":
            return _are(fields, dict)
        case _:
            return False


def _are(fields: JsonMapping, kind: type) -> bool:
    return all(isinstance(value, kind) for value in fields.values())


def _says_the_same(message: JsonMapping, headers: Mapping[bytes, bytes]) -> bool:
    """Whether headers and body agree in the plainest way."""
    method, params = cast("str", message["method"]), cast("JsonMapping", message["params"])
    meta = cast("JsonMapping", params["_meta"])
    version = meta.get(PROTOCOL_VERSION_META_KEY)
    if version not in MODERN_PROTOCOL_VERSIONS or CLIENT_CAPABILITIES_META_KEY not in meta or not method.isascii():
        return False
    if headers.get(b"mcp-protocol-version") != version.encode() or headers.get(b"mcp-method") != method.encode():
        return False
    if method not in NAME_BEARING_METHODS:
        return True
    return is_named(cast("str", params[NAME_BEARING_METHODS[method]]), headers)


def _routes(message: JsonObject, headers: Mapping[bytes, bytes]) -> bool:
    from mcp.shared.inbound import InboundModernRoute, classify_inbound_request

    told = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
    return isinstance(classify_inbound_request(message, headers=told), InboundModernRoute)


def _is_valid(envelope: JsonMapping) -> bool:
    from mcp_types import methods
    from pydantic import ValidationError

    try:
        methods.validate_client_request("tools/call", str(envelope[PROTOCOL_VERSION_META_KEY]), {"name": "any", "_meta": envelope})
    except (ValidationError, ValueError, KeyError):
        return False
    return True
