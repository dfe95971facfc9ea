"""Decides what the audit log records of a call: which arguments, in which form, and whether a successful call is part of the sample."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from gateway.config.audit_settings import ArgumentForm
from gateway.json_types import JsonMapping, JsonObject, JsonValue

MAX_ARGUMENTS = 32
"""Maximum number of arguments of one call that an entry of the audit log has. Callers choose the names of arguments."""

MAX_KEPT_CHARS = 256
"""Maximum characters of the value of an argument, or of its name, in an entry of the audit log."""

ValueT = TypeVar("ValueT")


def rule_for(rules: Mapping[str, ValueT], source: str, tool: str) -> ValueT | None:
    """Return the value of the first pattern `<source>/<tool>` that matches the tool `tool` of `source`; `None` if no pattern matches."""
    place = f"{source}/{tool}"
    return next((value for pattern, value in rules.items() if fnmatchcase(place, pattern)), None)


def recorded_arguments(arguments: JsonMapping, forms: Mapping[str, ArgumentForm], digest: Callable[[bytes], str]) -> JsonObject:
    """Return what the audit log has of the arguments of a call: values that are cut if they are long, and digests.

    `forms` has the form of each argument, by name or pattern; the first that matches applies. Arguments without a form are left out.
    `digest` returns a keyed digest, from which the value cannot be guessed without the key.
    """
    recorded: JsonObject = {}
    for name, value in arguments.items():
        form = next((form for pattern, form in forms.items() if fnmatchcase(name, pattern)), "omit")
        if form == "omit":
            continue
        if len(recorded) == MAX_ARGUMENTS:
            recorded["…"] = f"{len(arguments)} arguments"
            break
        recorded[name[:MAX_KEPT_CHARS]] = _kept(value) if form == "keep" else f"hmac-sha256:{digest(_encoded(value))}"
    return recorded


def _kept(value: JsonValue) -> JsonValue:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else _encoded(value).decode()
    return text if len(text) <= MAX_KEPT_CHARS else f"{text[:MAX_KEPT_CHARS]}…"


def _encoded(value: JsonValue) -> bytes:
    return json.dumps(value, ensure_ascii=True, sort_keys=True).encode()
