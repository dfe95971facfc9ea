"""What one call through the gate leaves behind: the fields of its closing event, its refusal, and the notes in `_meta`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import cast

from gateway.errors import PolicyDenied
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.tools.base import Complete, InputRequired, ToolOutcome

DROPPED_META_KEY = "dev.moongate/droppedArguments"
"""Key in a result's `_meta` that lists the argument names taken out before the call."""

RULE_META_KEY = "dev.moongate/rule"
"""Key in a refusal's `_meta`: the id of the rule that refused, e.g. `arguments.read_text.path`."""

_MAX_NOTED_NAMES = 20
_MAX_NOTED_LENGTH = 64
"""Dropped names come from the caller: this many, cut to this length, are noted in events and results."""

_OUTCOMES = {"MiddlewareTermination": "complete", "UserInputRequired": "input_required"}
"""Exceptions by which a tool of a run ends the run on purpose."""


class CallRecord:
    """What the closing event of one leg will say."""

    __slots__ = ("_started", "dropped", "error", "has_passed", "kind", "outcome", "rule", "shortened")

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self.kind = "call.finished"
        self.outcome = "cancelled"
        self.rule = ""
        self.error = ""
        self.dropped: tuple[str, ...] = ()
        self.shortened = False
        self.has_passed = False
        """Whether the outcome passed the gate already, before it was recorded as a step of a durable task."""

    def refuse(self, verdict: Reject) -> Complete:
        """Note a refusal by policy, and give the result that says so."""
        self.kind, self.outcome, self.rule = "call.refused", "refused", verdict.rule
        self.dropped = self.dropped or verdict.dropped
        return refusal(verdict.rule, verdict.reason)

    def fail(self, error: Exception) -> None:
        """Note how a call ended that raised. A call that ends the run it belongs to has not failed."""
        if isinstance(error, PolicyDenied):
            self.refuse(Reject(error.rule, str(error)))
        self.error = type(error).__name__
        self.outcome = _OUTCOMES.get(self.error, self.outcome if self.rule else "failed")

    def timed_out(self, text: str) -> Complete:
        """Note that the time ran out, and give the result that says so."""
        self.outcome = "timeout"
        return Complete.text(text, is_error=True)

    def settle(self, outcome: ToolOutcome) -> None:
        """Note how a call ended that gave an outcome."""
        if isinstance(outcome, Complete):
            self.outcome = "error" if outcome.result.get("isError") else "complete"
        elif isinstance(outcome, InputRequired):
            self.kind, self.outcome = "call.input_required", "input_required"
        else:
            self.outcome = "task"

    def fields(self) -> JsonObject:
        """The fields of the closing event; `milliseconds` counts from the making of this record."""
        fields: JsonObject = {"outcome": self.outcome, "milliseconds": int((time.perf_counter() - self._started) * 1e6) / 1000}
        if self.rule:
            fields["rule"] = self.rule
        if self.error:
            fields["error"] = self.error
        if self.shortened:
            fields["shortened"] = True
        if self.dropped:
            fields["dropped"] = noted_names(self.dropped)
            fields["droppedCount"] = len(self.dropped)
        return fields


def noted_names(names: tuple[str, ...]) -> list[str]:
    """The first of these names, each cut to the length that is noted."""
    return [name[:_MAX_NOTED_LENGTH] for name in names[:_MAX_NOTED_NAMES]]


def refusal(rule: str, reason: str) -> Complete:
    """The result of a call that policy refused: readable by a model, with the rule's id in `_meta` for programs."""
    return _with_meta(Complete.text(f"Refused by {rule}: {reason}", is_error=True), RULE_META_KEY, rule)


def with_dropped(outcome: ToolOutcome, dropped: tuple[str, ...]) -> ToolOutcome:
    """The outcome with the dropped names in its `_meta`."""
    if not dropped or not isinstance(outcome, Complete):
        return outcome
    return _with_meta(outcome, DROPPED_META_KEY, noted_names(dropped))


def _with_meta(outcome: Complete, key: str, value: JsonValue) -> Complete:
    """The outcome with one more `_meta` key; a copy, because a relayed result may have other holders."""
    meta = outcome.result.get("_meta")
    noted: JsonObject = {**(cast("JsonObject", meta) if isinstance(meta, Mapping) else {}), key: value}
    return Complete({**outcome.result, "_meta": noted})
