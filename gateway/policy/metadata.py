"""Decides which keys of `_meta` the gateway accepts in a client's request and in a server's response, and which keys are well-formed.

Also defines Moongate's own `_meta` keys. If one gateway is a server of another gateway, several of these keys carry facts between them. The
package `server` applies `request_meta` to every request. `upstream` applies `peer_meta` to everything that a server sends, before other
code reads it. `upstream.delivery` and `upstream.library` apply `judge_meta` before they send a request: no malformed key is sent.
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
"""Rule id in the rejection of a request with malformed `_meta`."""

OWN_PREFIX = "dev.moongate/"
"""Prefix of Moongate's own `_meta` keys, which gateways send to each other."""

VIA_KEY = "dev.moongate/via"
"""Key in a request's `_meta`: ids of the gateways that forwarded the request, oldest first."""

IDEMPOTENCY_KEY = "dev.moongate/idempotencyKey"
"""Key in a request's `_meta`: a text that stays the same if a call is resent, so that the receiver can recognise the repetition."""

HOPS_KEY = "dev.moongate/hops"
"""Key in the `_meta` of a tool or other item that one gateway lists for another: ids of the gateways that forwarded it, nearest first."""

GATEWAY_KEY = "dev.moongate/gateway"
"""Key in the `_meta` of a listing that one gateway sends to another: id of the gateway that lists."""

ASK_KEY = "dev.moongate/askKey"
"""Key in the `_meta` of a request for input that one gateway relays to another: the key that the server gave to the request.

The gateway that receives it uses the same key for its own clients of protocol version 2026.
"""

HELD_KEY = "dev.moongate/held"
"""Key in the `_meta` of an `input_required` result that one gateway sends to another: `true` if the call stays in flight.

The call continues when the client retries it with answers to the requests for input.
"""

WITHDRAWN_KEY = "dev.moongate/withdrawn"
"""Key in the `_meta` of the last retry of a call that another gateway keeps in flight until its requests for input are answered.

`true` means that nobody will answer these requests for input. The other gateway then ends the call.
"""

TASK_META_KEY = "dev.moongate/task"
"""Key in the `_meta` of the result of a call that continues in the background: facts about the task that runs the call."""

AGENT_META_KEY = "dev.moongate/agent"
"""Key in the `_meta` of the result of an agent's run: model, token usage, citations, and how the run ended."""

SESSION_META_KEY = "dev.moongate/sessionId"
"""Key in the `_meta` of the result of an agent's run: id of the agent session (conversation) to which the run belongs."""

PART_META_KEY = "dev.moongate/part"
"""Key in the `_meta` of the result of the tool `read_result`, which returns parts of stored results: which part of which result it is."""

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
"""Keys of MCP in `_meta` that belong to one connection. A gateway does not forward them, unlike trace context and vendor keys."""

MAX_ID_CHARS = 64
"""Maximum number of characters of a gateway's id in the `_meta` keys `via` and `hops`. Ids of Moongate have 32 characters."""

MAX_PEER_ID_CHARS = 200
"""Maximum number of characters of an id in `_meta` that comes from a server which is itself a gateway."""

MAX_IDEMPOTENCY_CHARS = 1_000
"""Maximum number of characters of an idempotency key. A longer key is replaced by its SHA-256 digest, which identifies the same call."""

_LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*/)?(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?")
"""Matches a `_meta` key by MCP 2026-07-28, basic: an optional prefix of dotted labels and a slash, then a name that may be empty."""

MAX_KEY_LENGTH = 256
"""Maximum number of characters of a `_meta` key; the longest in use has about 50."""


def is_meta_key(key: object) -> bool:
    """Return whether `key` is a well-formed key of `_meta` by the MCP specification."""
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
    """Return the gateway ids in the value of the `_meta` key `via` or `hops`, in order. Items that cannot be an id are dropped."""
    return [item for item in items_of(value) if isinstance(item, str) and 0 < len(item) <= MAX_ID_CHARS]


def request_meta(meta: JsonMapping | None) -> JsonObject:
    """Return the part of a client's `_meta` that the gateway accepts, as a new dict.

    Keys that belong to the connection are dropped. Of the keys with the prefix `dev.moongate/`, only `via`, `idempotencyKey` and
    `withdrawn` are kept, so that a client cannot set facts by which the gateway decides. They are dropped too if their values are
    malformed.
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
    """Return the accepted value of a `dev.moongate/` key in a request's `_meta`; a false value if the key or the value is not accepted."""
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
    """Return whether a `_meta` key has the prefix `dev.moongate/`, also after hidden characters are removed."""
    return (key if key.isascii() and key.isprintable() else strip_text(key)).startswith(OWN_PREFIX)


def via_of(meta: JsonMapping) -> tuple[str, ...]:
    """Return the ids of the gateways that forwarded a request, from its `_meta`, oldest first."""
    return tuple(gateway_ids(meta.get(VIA_KEY))) if VIA_KEY in meta else ()


def peer_meta(meta: JsonMapping) -> JsonMapping:
    """Return the part of a server's `_meta` that the gateway accepts; `meta` itself if it has no key of the following two kinds.

    Keys that belong to the connection are dropped. Of the keys with the prefix `dev.moongate/`, only those in `_PEER_VALUES` are accepted,
    from any server, with checked values: another Moongate sends them to describe its response, and they grant no rights.
    """
    if not any(key in CONNECTION_KEYS or is_own_key(key) for key in meta):
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


def _task(value: JsonValue) -> JsonValue:
    facts = members_of(value)
    return facts if _id(facts.get("taskId")) and isinstance(facts.get("status"), str) else None


_PEER_VALUES: Mapping[str, Callable[[JsonValue], JsonValue]] = {
    HOPS_KEY: gateway_ids,
    GATEWAY_KEY: _id,
    ASK_KEY: _id,
    HELD_KEY: lambda value: value is True,
    TASK_META_KEY: _task,
    AGENT_META_KEY: as_object,
    SESSION_META_KEY: _id,
    PART_META_KEY: as_object,
}
"""`_meta` key that a server may send if it is itself a gateway → function that checks a value.

The function returns the accepted value, or a false value if the value is malformed.
"""


def listed_meta(meta: JsonValue) -> JsonObject:
    """Return the part of a listed tool's `_meta` that the gateway sends with every call of the tool.

    It contains the well-formed keys without the prefix `dev.moongate/`. They override the values that the caller sends under the same keys.
    """
    return {key: value for key, value in members_of(meta).items() if is_meta_key(key) and not key.startswith(OWN_PREFIX)}
