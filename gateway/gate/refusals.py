"""What the gate writes into the `_meta` of results: the rule that refused a call, and the arguments that were removed from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import Complete, ToolOutcome

DROPPED_META_KEY = "dev.moongate/droppedArguments"
"""Key in a result's `_meta` that lists the names of the arguments that were removed before the call."""

RULE_META_KEY = "dev.moongate/rule"
"""Key in a refusal's `_meta`: the id of the rule that refused, e.g. `arguments.read_text.path`."""

_MAX_NOTED_NAMES = 20
_MAX_NOTED_LENGTH = 64
"""Maximum number and length of the names of removed arguments in events, logs and results, because callers choose the names."""


def noted_names(names: tuple[str, ...]) -> list[str]:
    """Return at most `_MAX_NOTED_NAMES` of these names, each cut to `_MAX_NOTED_LENGTH` characters."""
    return [name[:_MAX_NOTED_LENGTH] for name in names[:_MAX_NOTED_NAMES]]


def refusal(rule: str, reason: str) -> Complete:
    """Build the result of a refused call: its text is for the model, the rule's id in `_meta` for programs."""
    return _with_meta(Complete.text(f"Refused by {rule}: {reason}", is_error=True), RULE_META_KEY, rule)


def with_dropped(outcome: ToolOutcome, dropped: tuple[str, ...]) -> ToolOutcome:
    """Return the outcome with the names of removed arguments in its `_meta`."""
    if not dropped or not isinstance(outcome, Complete):
        return outcome
    return _with_meta(outcome, DROPPED_META_KEY, noted_names(dropped))


def _with_meta(outcome: Complete, key: str, value: JsonValue) -> Complete:
    """Return a copy of the outcome with `key` in its `_meta`. A relayed result must not change, because other code may use it too."""
    meta = outcome.result.get("_meta")
    noted: JsonObject = {**(cast("JsonObject", meta) if isinstance(meta, Mapping) else {}), key: value}
    return Complete({**outcome.result, "_meta": noted})
