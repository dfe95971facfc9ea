"""`_meta` of a request: which keys are well formed, and which of several values counts.

Plain data only; asked before a request leaves for a server (`upstream.delivery`), so that a malformed key stops the call
while nothing has been sent (requirements 3.A/13). Which keys belong to one hop is `upstream.hop`'s matter.
"""

from __future__ import annotations

import re
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import PASS, Pass, Reject

RULE = "_meta"
"""Rule id of a refusal for malformed metadata."""

OWN_PREFIX = "dev.moongate/"
"""Keys of this gateway and of those before and behind it."""

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


def listed_meta(meta: JsonValue) -> JsonObject:
    """What of a listed tool's `_meta` goes with every call of it: well-formed keys that are not a gateway's own.

    Such a value wins over the caller's of the same key (requirements 3.A/15).
    """
    if not isinstance(meta, dict):
        return {}
    return {key: value for key, value in cast("JsonMapping", meta).items() if is_meta_key(key) and not key.startswith(OWN_PREFIX)}
