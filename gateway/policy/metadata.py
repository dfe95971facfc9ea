"""`_meta`: which keys the gateway takes from a client's request and from a server's answer, and which keys are well formed.

Plain data only. `server` applies `request_meta` to every request, and `upstream` applies `peer_meta` to everything that a server sends,
before anything reads it. `upstream.delivery` applies `judge_meta` before a request leaves for a server, so a malformed key stops the call
while nothing has been sent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import PASS, Pass, Reject
from gateway.policy.hidden_text import strip_text

RULE = "_meta"
"""Rule id of a refusal for malformed metadata."""

OWN_PREFIX = "dev.moongate/"
"""Keys of this gateway and of the gateways before and behind it."""

VIA_KEY = "dev.moongate/via"
"""Request `_meta`: ids of the gateways that a request passed, oldest first."""

IDEMPOTENCY_KEY = "dev.moongate/idempotencyKey"
"""Request `_meta`: a text that is the same each time the same call is sent. A call inside a durable task carries one too."""

HOPS_KEY = "dev.moongate/hops"
"""`_meta` of listed entries between gateways: ids of the gateways that an entry passed, nearest first."""

GATEWAY_KEY = "dev.moongate/gateway"
"""Result `_meta` of a listing that one gateway gives another: id of the answering gateway."""

ASK_KEY = "dev.moongate/askKey"
"""`_meta` of a request for input: the key under which its server sent it. A gateway in front shows it to 2026 clients under that key."""

HELD_KEY = "dev.moongate/held"
"""`_meta` of an `input_required` result that one gateway gives another: `true` if a call keeps running there until the retry."""

WITHDRAWN_KEY = "dev.moongate/withdrawn"
"""`_meta` of the retry of such a call: `true` if nobody will answer, so the gateway that keeps the call running ends it."""

TASK_META_KEY = "dev.moongate/task"
"""Result `_meta` of a call that goes on in the background: its task."""

AGENT_META_KEY = "dev.moongate/agent"
"""Result `_meta` of an agent: model, usage, citations and how the run ended."""

SESSION_META_KEY = "dev.moongate/sessionId"
"""Result `_meta` of an agent: the session that the call was a turn of."""

PART_META_KEY = "dev.moongate/part"
"""Result `_meta` of `read_result`: which part of which result this is."""

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
"""Keys that belong to one connection. They never cross a gateway; trace context and vendor keys do."""

MAX_ID_CHARS = 64
"""Characters of a gateway's id; ours have 32."""

MAX_PEER_ID_CHARS = 200
"""Characters of any id that a gateway behind this one gives."""

MAX_IDEMPOTENCY_CHARS = 1_000
"""A longer idempotency key is replaced by its SHA-256 digest, which names the same call."""

_LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*/)?(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?")
"""MCP 2026-07-28, basic: an optional prefix of dotted labels and a slash, then a name that may be empty."""

MAX_KEY_LENGTH = 256
"""Longer keys are refused; the longest in use has about 50 characters."""


def is_meta_key(key: object) -> bool:
    """Whether `key` is a well-formed `_meta` key."""
    return isinstance(key, str) and 0 < len(key) <= MAX_KEY_LENGTH and _KEY.fullmatch(key) is not None


def judge_meta(meta: object) -> Pass | Reject:
    """Let request metadata through that is an object with well-formed keys."""
    if not isinstance(meta, dict):
        return Reject(RULE, "`_meta` must be an object.")
    for key in cast("dict[object, object]", meta):
        if not is_meta_key(key):
            shown = ascii(key)[:60]
            return Reject(RULE, f"{shown} is no `_meta` key: an optional `example.com/` prefix, then letters, digits, `-`, `_` and `.`.")
    return PASS


def gateway_ids(value: JsonValue) -> list[str]:
    """The ids in a list of gateways (`via`, `hops`), in order. Items that cannot be an id are dropped."""
    items = cast("list[JsonValue]", value) if isinstance(value, list) else []
    return [item for item in items if isinstance(item, str) and 0 < len(item) <= MAX_ID_CHARS]


def request_meta(meta: JsonMapping | None) -> JsonObject:
    """The part of a client's `_meta` that the gateway takes; always a new dict.

    Keys of the connection are dropped, and of the gateway's own keys all but `via`, `idempotencyKey` and `withdrawn`: a client sets no
    fact that the gateway decides by. Malformed values of these three count as absent.
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
    """The value of a `dev.moongate/` key of a request; empty or `None` if it is not taken."""
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
    """Whether a key is one of a gateway's own, also once hidden characters are removed from it."""
    return (key if key.isascii() and key.isprintable() else strip_text(key)).startswith(OWN_PREFIX)


def via_of(meta: JsonMapping) -> tuple[str, ...]:
    """The gateways that a request passed, by its `_meta`, oldest first."""
    return tuple(gateway_ids(meta.get(VIA_KEY))) if VIA_KEY in meta else ()


def peer_meta(meta: JsonMapping) -> JsonMapping:
    """The part of a server's `_meta` that the gateway takes; `meta` itself if that is all of it.

    Keys of the connection are dropped, and of the gateway's own keys all that a gateway behind this one does not need to send. What is
    kept describes the server's own answer and grants no right here.
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


def _facts(value: JsonValue) -> JsonValue:
    return cast("JsonObject", value) if isinstance(value, dict) else None


def _task(value: JsonValue) -> JsonValue:
    facts: JsonObject = _facts(value) or {}
    return facts if _id(facts.get("taskId")) and isinstance(facts.get("status"), str) else None


_PEER_VALUES: Mapping[str, Callable[[JsonValue], JsonValue]] = {
    HOPS_KEY: gateway_ids,
    GATEWAY_KEY: _id,
    ASK_KEY: _id,
    HELD_KEY: _fact,
    TASK_META_KEY: _task,
    AGENT_META_KEY: _facts,
    SESSION_META_KEY: _id,
    PART_META_KEY: _facts,
}
"""What a gateway behind this one sends. A check gives the value to take, or nothing for a malformed one."""


def listed_meta(meta: JsonValue) -> JsonObject:
    """What of a listed tool's `_meta` goes with every call of it: well-formed keys that are not a gateway's own.

    Such a value wins over the caller's of the same key (requirements 3.A/15).
    """
    if not isinstance(meta, dict):
        return {}
    return {key: value for key, value in cast("JsonMapping", meta).items() if is_meta_key(key) and not key.startswith(OWN_PREFIX)}
