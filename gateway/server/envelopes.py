"""`Envelopes`: checks what a request of protocol version 2026-07-28 declares about its client, and whether its headers repeat its body.

The envelope is the part of `_meta` that the protocol defines: protocol version, client capabilities and client name. Common forms are
checked here. Unusual forms are checked by the models of the MCP SDK if the SDK is loaded; if not, the SDK handles the whole request (on the
SDK path). Used by the fast path, which answers requests without the SDK.
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
"""Maximum number of different valid envelopes (what a 2026 client declares in `_meta`) that are cached, so that they are not checked
again."""

MAX_KEPT_CHARS = 2_048
"""Maximum size, in characters (approximate), of an envelope (what a 2026 client declares in `_meta`) that `KnownClient` stores. If a later
call on the connection has an equal envelope, it is not checked again. A larger envelope is looked up in the cache of `Envelopes`."""

ENVELOPE_KEYS = (PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY)
ENVELOPE = frozenset(ENVELOPE_KEYS)

_INFO = {"name", "version", "title", "description"}


class KnownClient:
    """The client of a 2026-07-28 tool call, as it described itself in the call's `_meta`. The description is known to be valid.

    If a later call on the same connection has the same description, it is not checked again.
    """

    __slots__ = ("envelope", "facts", "spelled")

    def __init__(self, meta: JsonMapping, facts: CallFacts) -> None:
        """`meta` is the valid `_meta` of a call. `facts` describe the client, and go into the context of each call of the client."""
        self.facts = facts
        envelope = {key: meta[key] for key in ENVELOPE_KEYS if key in meta}
        is_small, is_exact = _measured(envelope)
        self.envelope = envelope if is_small else None
        """Protocol version, capabilities and name of the client, as in `_meta`; `None` if they are too large to store."""
        self.spelled = "" if is_exact else repr(envelope)
        """`envelope` as text; empty if the envelope has no numbers and booleans.

        It is compared in addition to `envelope`, because different JSON values, such as 1 and true, can be equal in Python.
        """


def is_plain_meta(meta: JsonMapping) -> bool:
    """Whether `_meta` of a request requests no feature: it has no progress token, and no MCP key except those that describe the client."""
    for key in meta:
        if key not in ENVELOPE and (key == "progressToken" or key.startswith("io.modelcontextprotocol/")):
            return False
    return True


def is_named(name: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the header `Mcp-Name` contains exactly `name`, as ASCII text without the encoding that MCP defines for other text."""
    return name.isascii() and "=?" not in name and headers.get(b"mcp-name") == name.encode()


def _measured(envelope: JsonMapping) -> tuple[bool, bool]:
    """Return whether an envelope (what a 2026 client declares) is small enough to store, and whether Python's `==` compares it exactly.

    `==` does not compare numbers and booleans exactly: 1, 1.0 and true are different JSON values, but equal in Python.
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
    """Checks envelopes: protocol version, capabilities and name that a client declares in `_meta` of each 2026-07-28 request.

    Valid envelopes are remembered, so that an envelope that arrives again is not checked again.
    """

    def __init__(self, has_sdk: Callable[[], bool]) -> None:
        """`has_sdk` returns whether the MCP SDK is loaded, whose models can check unusual envelopes."""
        self._has_sdk = has_sdk
        self._valid: OrderedDict[str, ClientProfile] = OrderedDict()

    def profile_of(self, meta: JsonMapping) -> ClientProfile | None:
        """Return the profile (protocol version, capabilities, name) of the client that sent a request of protocol version 2026-07-28.

        `meta` is the request's `_meta`, in which the client declares this profile. Return `None` if the declaration is invalid. Also return
        `None` if its form is unusual (such as capabilities that only the MCP SDK's models can check) and the SDK is not loaded.
        """
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
        """Whether the headers of a 2026-07-28 request repeat the protocol version, method and name (of a tool, prompt, …) of its body.

        Also false if they may do so in an encoded form, which only the MCP SDK can compare, and the SDK is not loaded.
        """
        return _repeat_body(message, headers) or (self._has_sdk() and _routes(message, headers))


def is_plain_envelope(envelope: JsonMapping) -> bool:
    """Check, without the MCP SDK, what a 2026-07-28 request declares about its client in `_meta`. Return whether it is valid.

    Return false for unusual capabilities, which only the SDK's models can check.
    """
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
    """Whether the headers repeat the protocol version, method and name of the request body exactly, as ASCII text without an encoding."""
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
