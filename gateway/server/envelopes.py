"""`Envelopes`: checks what a 2026 request declares about its client in `_meta`, and that its headers repeat the same values.

The envelope is the part of `_meta` that the protocol defines: version, capabilities and name of the client. Common forms are checked
here; all others are checked by the SDK's models if the SDK is loaded, and if it is not loaded, the request is left to the SDK path. Used
by the fast path.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import starmap
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    MODERN_PROTOCOL_VERSIONS,
    NAME_BEARING_METHODS,
    PROTOCOL_VERSION_META_KEY,
)
from gateway.server.clients import modern_profile
from gateway.tools.call_facts import CallFacts
from gateway.tools.ports import ClientProfile

MAX_KNOWN_CLIENTS = 256
"""Maximum number of client declarations that are remembered as valid."""

MAX_KEPT_CHARS = 2_048
"""Maximum characters of an envelope that a connection keeps, to compare the next request with it."""

ENVELOPE_KEYS = (PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY)
ENVELOPE = frozenset(ENVELOPE_KEYS)

_INFO = {"name", "version", "title", "description"}


class KnownClient:
    """The client of a 2026 call on the fast path, as declared in `_meta`. A next call that declares the same is not checked again."""

    __slots__ = ("envelope", "facts", "spelled")

    def __init__(self, meta: JsonMapping, facts: CallFacts) -> None:
        """`meta` is the valid `_meta` of a call, and `facts` are those that all calls of the client share."""
        self.facts = facts
        envelope = {key: meta[key] for key in ENVELOPE_KEYS if key in meta}
        is_small, is_exact = _measured(envelope)
        self.envelope = envelope if is_small else None
        """The declaration of the client in `_meta` (its envelope); `None` if it is too large to keep."""
        self.spelled = "" if is_exact else repr(envelope)
        """The declaration as text, for comparison, if different declarations may be equal in Python; else empty."""


def is_plain_meta(meta: JsonMapping) -> bool:
    """Whether `_meta` requests nothing: it has no progress token, and no key of the protocol other than those of the envelope."""
    for key in meta:
        if key not in ENVELOPE and (key == "progressToken" or key.startswith("io.modelcontextprotocol/")):
            return False
    return True


def is_named(name: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the header `Mcp-Name` is `name` in plain ASCII, without an encoding."""
    return name.isascii() and "=?" not in name and headers.get(b"mcp-name") == name.encode()


def _measured(envelope: JsonMapping) -> tuple[bool, bool]:
    """Return whether an envelope is small enough to keep, and whether it has no numbers or booleans.

    With them, different JSON values may be equal: in Python, 1, 1.0 and true are.
    """
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
    """Checks envelopes, and remembers the valid ones, so that an envelope that arrives again is not checked again."""

    def __init__(self, has_sdk: Callable[[], bool]) -> None:
        """`has_sdk` returns whether the SDK is loaded."""
        self._has_sdk = has_sdk
        self._valid: OrderedDict[str, ClientProfile] = OrderedDict()

    def profile_of(self, meta: JsonMapping) -> ClientProfile | None:
        """Return the client that `_meta` declares; `None` if version, capabilities or name are invalid, or only the SDK can check them."""
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
        """Whether the headers of a request repeat version, method and name with the values that its body has."""
        return _repeat_body(message, headers) or (self._has_sdk() and _routes(message, headers))


def is_plain_envelope(envelope: JsonMapping) -> bool:
    """Whether the `_meta` keys of a 2026 request that describe its client are valid, with only capabilities that this module can check."""
    if envelope.get(PROTOCOL_VERSION_META_KEY) not in MODERN_PROTOCOL_VERSIONS:
        return False
    info = envelope.get(CLIENT_INFO_META_KEY, {"name": "", "version": ""})
    if not isinstance(info, dict) or not {"name", "version"} <= info.keys() <= _INFO or not _are(cast("JsonMapping", info), str):
        return False
    declared = envelope.get(CLIENT_CAPABILITIES_META_KEY)
    return isinstance(declared, dict) and all(starmap(_is_plain_capability, cast("JsonMapping", declared).items()))


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


def _repeat_body(message: JsonMapping, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the headers repeat version, method and name of the body in plain ASCII, without an encoding."""
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

    decoded = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
    return isinstance(classify_inbound_request(message, headers=decoded), InboundModernRoute)


def _is_valid(envelope: JsonMapping) -> bool:
    from mcp_types import methods
    from pydantic import ValidationError

    try:
        methods.validate_client_request("tools/call", str(envelope[PROTOCOL_VERSION_META_KEY]), {"name": "any", "_meta": envelope})
    except (ValidationError, ValueError, KeyError):
        return False
    return True
