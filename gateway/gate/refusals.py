"""Builds results of refused and failed calls. Adds the rule that refused a call, or removed arguments, to the `_meta` of results."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import cast

from gateway.errors import GatewayError, PolicyDenied, StorageUnusable, text_for_caller
from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import Complete, ToolOutcome

logger = logging.getLogger(__name__)

DROPPED_META_KEY = "dev.moongate/droppedArguments"
"""Key in the `_meta` of a call's result whose value lists the names of the arguments that policy removed before the call."""

RULE_META_KEY = "dev.moongate/rule"
"""Key in the `_meta` of a refused call's result whose value is the id of the rule that refused it, e.g. `arguments.read_text.path`."""

_MAX_NOTED_NAMES = 20
_MAX_NOTED_LENGTH = 64
"""Maximum characters of the name of a removed argument in events, logs and results; `_MAX_NOTED_NAMES` limits the number of names.

The limits exist because callers choose these names."""


def noted_names(names: tuple[str, ...]) -> list[str]:
    """Return the names of removed arguments for an event, log or result: at most 20 of them, each cut to 64 characters."""
    return [name[:_MAX_NOTED_LENGTH] for name in names[:_MAX_NOTED_NAMES]]


def refusal(rule: str, reason: str) -> Complete:
    """Build the result of a refused call, with `isError`. Its text tells the model the rule and reason; `_meta` has the rule's id."""
    return _with_meta(Complete.text(f"Refused by {rule}: {reason}", is_error=True), RULE_META_KEY, rule)


def failed_result(error: Exception, name: str, source: str) -> Complete:
    """Build the result of a call whose tool raised `error`; log an unexpected error. `source` is the id of the tool's source."""
    if isinstance(error, PolicyDenied):
        return _with_meta(Complete.text(str(error), is_error=True), RULE_META_KEY, error.rule)
    if isinstance(error, GatewayError):
        if isinstance(error, StorageUnusable):
            logger.warning("tool failed tool=%s source=%s error=%s", name, source, error)
        return Complete.text(text_for_caller(error), is_error=True)
    logger.error("tool failed tool=%s source=%s", name, source, exc_info=error)
    text = f"Tool {name!r} failed with an internal error; the operator finds the details in the gateway's log."
    return Complete.text(text, is_error=True)


def with_dropped(outcome: ToolOutcome, dropped: tuple[str, ...]) -> ToolOutcome:
    """Return the outcome of a call with the names of removed arguments (`dropped`) in the `_meta` of its result."""
    if not dropped or not isinstance(outcome, Complete):
        return outcome
    return _with_meta(outcome, DROPPED_META_KEY, noted_names(dropped))


def _with_meta(outcome: Complete, key: str, value: JsonValue) -> Complete:
    """Return a copy of the outcome whose `_meta` has `value` under `key`. Other code may use the original, so it is not changed."""
    meta = outcome.result.get("_meta")
    noted: JsonObject = {**(cast("JsonObject", meta) if isinstance(meta, Mapping) else {}), key: value}
    return Complete({**outcome.result, "_meta": noted})
