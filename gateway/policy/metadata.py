"""`_meta`: which keys the gateway accepts in a client's request and in a server's response, and which keys are well-formed.

Plain data only. `server` applies `request_meta` to every request; `upstream` applies `peer_meta` to everything that a server sends, before
anything reads it. `upstream.delivery` applies `judge_meta` before a request is sent, so a malformed key stops the call in time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_object, items_of, members_of
from gateway.policy.decision import PASS, Pass, Reject
from gateway.policy.hidden_text import strip_text

RULE = "_meta"
"""Rule id of a rejection because of malformed metadata."""

OWN_PREFIX = "dev.moongate/"
"""Prefix of keys that gateways use among each other."""

VIA_KEY = "dev.moongate/via"
"""Request `_meta`: ids of the gateways that forwarded the request, oldest first."""

IDEMPOTENCY_KEY = "dev.moongate/idempotencyKey"
"""Request `_meta`: a text that stays the same when a call is sent again, so that the receiver can recognise the repetition."""

HOPS_KEY = "dev.moongate/hops"
"""`_meta` of listed entries between gateways: ids of the gateways that forwarded an entry, nearest first."""

GATEWAY_KEY = "dev.moongate/gateway"
"""Result `_meta` of a listing between gateways: id of the answering gateway."""

ASK_KEY = "dev.moongate/askKey"
"""`_meta` of a request for input: the key that its server gave it. A gateway in front uses the same key for its 2026 clients."""

HELD_KEY = "dev.moongate/held"
"""`_meta` of an `input_required` result between gateways: `true` if the call stays in flight until the client retries with answers."""

WITHDRAWN_KEY = "dev.moongate/withdrawn"
"""`_meta` of the retry of a call with `HELD_KEY`: `true` if nobody will answer, so that the gateway behind ends the call."""

TASK_META_KEY = "dev.moongate/task"
"""Result `_meta` of a call that continues in the background: the task that runs the call."""

AGENT_META_KEY = "dev.moongate/agent"
"""Result `_meta` of an agent: model, token usage, citations and how the run ended."""

SESSION_META_KEY = "dev.moongate/sessionId"
"""Result `_meta` of an agent: the session to which the call belongs."""

PART_META_KEY = "dev.moongate/part"
"""Result `_meta` of `read_result`: which part of which result it contains."""

CONNECTION_KEYS = frozenset(
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
"""Keys that belong to one connection and never cross a gateway, unlike trace context and vendor keys."""

MAX_ID_CHARS = 64
"""Maximum length of the id of a gateway in `via` and `hops`. Ids of Moongate have 32 characters."""

MAX_PEER_ID_CHARS = 200
"""Maximum length of an id of any kind in `_meta` from a gateway behind this one (closer to the server)."""

MAX_IDEMPOTENCY_CHARS = 1_000
"""A longer idempotency key is replaced by its SHA-256 digest, which identifies the same call."""

_LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*/)?(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?")
"""MCP 2026-07-28, basic: an optional prefix of dotted labels and a slash, then a name that may be empty."""

MAX_KEY_LENGTH = 256
"""Maximum length of a key; the longest in use has about 50 characters."""


def is_meta_key(key: object) -> bool:
    """Return whether `key` is a well-formed `_meta` key."""
    return isinstance(key, str) and 0 < len(key) <= MAX_KEY_LENGTH and _KEY.fullmatch(key) is not None


def judge_meta(meta: object) -> Pass | Reject:
    """Accept a request's `_meta` if it is an object with well-formed keys; otherwise reject it."""
    if not isinstance(meta, dict):
        return Reject(RULE, "`_meta` must be an object.")
    for key in cast("dict[object, object]", meta):
        if not is_meta_key(key):
            shown = ascii(key)[:60]
            return Reject(RULE, f"{shown} is not a `_meta` key: an optional `example.com/` prefix, then letters, digits, `-`, `_` and `.`.")
    return PASS


def gateway_ids(value: JsonValue) -> list[str]:
    """Return the ids in a list of gateways (`via`, `hops`), in order. Items that cannot be an id are dropped."""
    return [item for item in items_of(value) if isinstance(item, str) and 0 < len(item) <= MAX_ID_CHARS]


def request_meta(meta: JsonMapping | None) -> JsonObject:
    """Return the part of a client's `_meta` that the gateway accepts, as a new dict.

    Dropped are keys of the connection, and all keys with `OWN_PREFIX` except `via`, `idempotencyKey` and `withdrawn`: a client cannot set
    facts that the gateway decides by. Malformed values of these three count as absent.
    """
    taken: JsonObject = {}
    if meta:
        for key, value in meta.items():
            if key in CONNECTION_KEYS:
                continue
            if key.startswith(OWN_PREFIX):
                if not (own := _own_request_value(key, value)):
                    continue
                value = own
            taken[key] = value
    return taken


def _own_request_value(key: str, value: JsonValue) -> JsonValue:
    """Return the accepted value of a `dev.moongate/` key of a request; empty or `None` if the key or value is not accepted."""
    if key == VIA_KEY:
        return gateway_ids(value)
    if key == WITHDRAWN_KEY:
        return value is True
    if key != IDEMPOTENCY_KEY or not isinstance(value, str):
        return None
    if len(value) <= MAX_IDEMPOTENCY_CHARS:
        return value
    return f"sha256:{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()}"


def is_own_key(key: str) -> bool:
    """Return whether a key has `OWN_PREFIX`, also after hidden characters are removed."""
    return (key if key.isascii() and key.isprintable() else strip_text(key)).startswith(OWN_PREFIX)


def via_of(meta: JsonMapping) -> tuple[str, ...]:
    """Return the ids of the gateways that forwarded a request, from its `_meta`, oldest first."""
    return tuple(gateway_ids(meta.get(VIA_KEY))) if VIA_KEY in meta else ()


def peer_meta(meta: JsonMapping) -> JsonMapping:
    """Return the part of a server's `_meta` that the gateway accepts; `meta` itself if all of it is accepted.

    Dropped are keys of the connection, and keys with `OWN_PREFIX` that a gateway behind this one does not need to send. Accepted keys
    only describe the server's response and grant no rights.
    """
    for key in meta:
        if key in CONNECTION_KEYS or is_own_key(key):
            break
    else:
        return meta
    taken: JsonObject = {}
    for key, value in meta.items():
        if key in CONNECTION_KEYS:
            continue
        if is_own_key(key):
            check = _PEER_VALUES.get(key)
            if check is None or not (own := check(value)):
                continue
            value = own
        taken[key] = value
    return taken


def _id(value: JsonValue) -> JsonValue:
    return value if isinstance(value, str) and 0 < len(value) <= MAX_PEER_ID_CHARS else None


def _fact(value: JsonValue) -> JsonValue:
    return value is True


def _task(value: JsonValue) -> JsonValue:
    facts = members_of(value)
    return facts if _id(facts.get("taskId")) and isinstance(facts.get("status"), str) else None


_PEER_VALUES: Mapping[str, Callable[[JsonValue], JsonValue]] = {
    HOPS_KEY: gateway_ids,
    GATEWAY_KEY: _id,
    ASK_KEY: _id,
    HELD_KEY: _fact,
    TASK_META_KEY: _task,
    AGENT_META_KEY: as_object,
    SESSION_META_KEY: _id,
    PART_META_KEY: as_object,
}
"""Key that a gateway behind this one may send → function that returns the accepted value, or an empty value if it is malformed."""


def listed_meta(meta: JsonValue) -> JsonObject:
    """Return the keys of a listed tool's `_meta` that are sent with every call of it: well-formed keys without `OWN_PREFIX`.

    They override the values that the caller sends under the same keys.
    """
    return {key: value for key, value in members_of(meta).items() if is_meta_key(key) and not key.startswith(OWN_PREFIX)}
