"""Explains what the gateway's policy would decide about a tool call, without making the call. Used by `moongate policy explain`.

It applies the compiled rules that also judge real calls, and reports the verdict about the arguments. Approvals, quotas and the server's
response come later in a real call, so they are not part of the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.config.policies import SourcePolicy
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.argument_policy import ArgumentPolicy
from gateway.policy.decision import Reject, Rewrite


@dataclass(frozen=True, slots=True)
class JudgedRule:
    """An operator's rule for the value of one argument, and its outcome for the explained call."""

    rule: str
    argument: str
    outcome: Literal["passes", "refuses", "not given"]

    def to_json(self) -> JsonObject:
        """Return the JSON object that `moongate policy explain --json` prints."""
        return {"rule": self.rule, "argument": self.argument, "outcome": self.outcome}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the gateway's policy would decide about one tool call, and why."""

    is_allowed: bool
    rule: str | None
    """Id of the rule that rejects the call; `None` if the call is accepted."""
    reason: str | None
    dropped: tuple[tuple[str, str], ...] = ()
    """Each dropped argument, and why: `undeclared`, `_meta` (never an argument), or the id of the rule that forbids the argument."""
    added: tuple[tuple[str, JsonValue, str], ...] = ()
    """Each argument that an override adds: name, value, and the override's path in the policy."""
    rules: tuple[JudgedRule, ...] = ()
    """The rules for values of arguments that the tool can receive, with their outcome."""
    arguments: JsonObject | None = None
    """Arguments that would be sent; `None` if the call is rejected."""

    def to_json(self) -> JsonObject:
        """Return the JSON object that `moongate policy explain --json` prints."""
        return {
            "verdict": "allowed" if self.is_allowed else "refused",
            "rule": self.rule,
            "reason": self.reason,
            "dropped": [{"argument": name, "rule": rule} for name, rule in self.dropped],
            "added": [{"argument": name, "value": value, "rule": rule} for name, value, rule in self.added],
            "rules": [rule.to_json() for rule in self.rules],
            "arguments": self.arguments,
        }


def explain_call(tool: str, compiled: ArgumentPolicy, arguments: JsonObject, policy: SourcePolicy) -> Explanation:
    """Judge a call of a tool, and explain the verdict.

    `tool` is the tool's name at its source, `compiled` the compiled rules of the tool, and `policy` the policy of the source.
    """
    verdict = compiled.judge(arguments)
    refused = verdict.dropped if isinstance(verdict, Rewrite | Reject) else ()
    override = policy.overrides.get(tool)
    dropped = tuple((name, compiled.withheld.get(name) or ("_meta" if name == "_meta" else "undeclared")) for name in refused)
    filled = compiled.fill({name: value for name, value in arguments.items() if name not in dict(dropped)})
    added = tuple(
        (name, filled[name], f"overrides.{tool}.{'fixed' if override is not None and name in override.fixed else 'defaults'}")
        for name in filled
        if name not in arguments or name in dict(dropped)
    )
    judged = tuple(JudgedRule(rule, name, _outcome(compiled, rule, name, filled)) for name, rule in compiled.rules)
    if isinstance(verdict, Reject):
        return Explanation(False, verdict.rule, verdict.reason, dropped, added, judged)
    return Explanation(True, None, None, dropped, added, judged, filled)


def _outcome(compiled: ArgumentPolicy, rule: str, name: str, filled: JsonObject) -> Literal["passes", "refuses", "not given"]:
    if name not in filled:
        return "not given"
    return "passes" if compiled.problem_of(rule, filled[name]) is None else "refuses"
