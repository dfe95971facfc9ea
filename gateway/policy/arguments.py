"""`ArgumentPolicy`: which arguments reach a tool, and which calls are refused for theirs.

Built once per tool from its schema and the operator's rules; asked on every call, so the happy path makes no copy.
Judges plain decoded JSON and knows neither the call nor the tool behind it. Held by `tools.guard.ToolGate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from gateway.config.policies import ToolOverride
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.checking import MAX_REASON_LENGTH, SchemaCheck, measure, sentence
from gateway.policy.confinement import confine, find_fault
from gateway.policy.decision import PASS, Pass, Reject, Rewrite
from gateway.policy.schemas import as_object, declared_names, narrow
from gateway.policy.shaping import (
    FRAMEWORK_NAMES,
    ArgumentPlan,
    plan_arguments,
    with_defaults,
    with_properties,
    without_arguments,
)

ANY_TOOL = "*"
"""The key of rules and extras that hold for every tool of a source."""

SCHEMA_RULE = "inputSchema"
"""Rule id of a refusal by the tool's own schema; a value rule's is `arguments.<tool>.<argument>`."""

_RULE_KEYWORDS_REFUSED = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "$id", "$anchor", "$dynamicAnchor", "$schema"})
"""What a value rule may not use: it is published inside another document, where these would mean something else."""

Extras = Sequence[str] | Mapping[str, Sequence[str]]
"""`additionalArguments` of the configuration: names for every tool, or by native tool name with `*`."""

Rules = Mapping[str, Mapping[str, JsonObject]]
"""`arguments` of the configuration: native tool name or `*` → argument → JSON Schema."""


class ArgumentPolicy:
    """The compiled rules of one tool; immutable but for validators compiled on first use. Make it with `build`."""

    __slots__ = ("_check", "_filling", "_rules", "accepted", "published_schema", "withheld")

    def __init__(
        self, published_schema: JsonObject, plan: ArgumentPlan, rules: Sequence[tuple[str, str, SchemaCheck]], check: SchemaCheck
    ) -> None:
        """`rules`: argument, rule id, check. `check` judges what is left."""
        self.published_schema = published_schema
        """The tool's schema as clients see it: the very object it came in where no rule touches it."""
        self.withheld = plan.withheld
        """Arguments the tool has and a caller may not give → the rule that says so."""
        self.accepted = plan.accepted
        """Names of the arguments that pass from a caller; the others are dropped."""
        self._filling = plan.filling
        self._rules = tuple(rules)
        self._check = check

    @classmethod
    def build(
        cls,
        tool_name: str,
        input_schema: JsonValue,
        extras: Extras,
        rules: Rules,
        *,
        denied: frozenset[str] = FRAMEWORK_NAMES,
        override: ToolOverride | None = None,
        only_with_rules: bool = False,
    ) -> ArgumentPolicy:
        """Compile the rules for the tool with native `tool_name`. Never raises: what cannot be checked is refused on call.

        An extra is let through although undeclared; it stays unpublished unless a rule names it. A rule for an
        argument that is neither declared nor an extra does nothing, because that argument is dropped anyway.
        `denied` names are dropped although declared, unless they are extras too. With `only_with_rules` every call passes unchanged if
        no rule, extra or override is about the tool: the tool then judges its arguments itself.
        """
        if only_with_rules and not (rules.get(ANY_TOOL) or rules.get(tool_name) or extras or override is not None):
            published = as_object(input_schema) or {"type": "object"}
            return _Unjudged(published, ArgumentPlan(declared_names(published), {}), (), SchemaCheck({}))
        schema = with_properties(as_object(input_schema) or {"type": "object"})
        declared = declared_names(schema)
        extra = extra_names(tool_name, extras)
        plan = plan_arguments(tool_name, declared, extra, denied, override)
        fixed = plan.filling.fixed if plan.filling else {}
        defaults = plan.filling.defaults if plan.filling else {}
        checks: list[tuple[str, str, SchemaCheck]] = []
        narrowed: dict[str, list[JsonObject]] = {}
        for key in (ANY_TOOL, tool_name):
            for name, rule in rules.get(key, {}).items():
                if name not in plan.accepted and name not in fixed:
                    continue
                unusable = rule_problem(rule)
                rule_id = f"arguments.{key}.{name}"
                if unusable is not None:
                    checks.append((name, rule_id, _refuse_all(name, rule, unusable)))
                    continue
                confined = confine(name, rule, schema)
                checks.append((name, rule_id, SchemaCheck(confined.judged, is_rule=True)))
                if name in plan.accepted:
                    narrowed.setdefault(name, []).append(confined.published)
        open_schema = without_arguments(schema, plan.withheld, defaults)
        shown = with_defaults(narrow(open_schema, narrowed) if narrowed else open_schema, defaults)
        judged = shown if not fixed else without_arguments(schema, plan.withheld.keys() - fixed.keys(), defaults)
        unseen = (extra - plan.withheld.keys() | fixed.keys()) - declared_names(judged)
        judged = narrow(judged, {name: [{}] for name in sorted(unseen)}) if unseen else judged
        return cls(shown, plan, checks, SchemaCheck(judged))

    def judge(self, arguments: JsonObject) -> Pass | Rewrite | Reject:
        """Drop what is not let through, fill in, then apply the value rules, then the schema; the first refusal counts."""
        kept = arguments
        dropped: tuple[str, ...] = ()
        if not arguments.keys() <= self.accepted:
            kept = {name: value for name, value in arguments.items() if name in self.accepted}
            dropped = tuple(name for name in arguments if name not in self.accepted)
        if self._filling is not None:
            kept = self._filling.fill(kept)
        size = measure(kept)
        for name, rule_id, check in self._rules:
            if name in kept:
                problem = check.find(kept[name], size, root=name)
                if problem is not None:
                    return Reject(rule_id, _reason(problem, dropped), dropped)
        problem = self._check.find(kept, size)
        if problem is not None:
            return Reject(SCHEMA_RULE, _reason(problem, dropped), dropped)
        return PASS if kept is arguments else Rewrite(kept, dropped)

    def fill(self, arguments: JsonObject) -> JsonObject:
        """`arguments` with what overrides put in; itself where they put in nothing."""
        return arguments if self._filling is None else self._filling.fill(arguments)

    @property
    def rules(self) -> tuple[tuple[str, str], ...]:
        """Argument and id of every value rule, in the order in which they are applied."""
        return tuple((name, rule_id) for name, rule_id, _ in self._rules)

    def problem_of(self, rule_id: str, value: JsonValue) -> str | None:
        """What one value rule has against `value`, as the start of a sentence; for whoever explains a verdict."""
        for name, known, check in self._rules:
            if known == rule_id:
                return check.find(value, measure(value), root=name)
        return None


class _Unjudged(ArgumentPolicy):
    """The rules of a tool that no rule is about."""

    __slots__ = ()

    def judge(self, arguments: JsonObject) -> Pass | Rewrite | Reject:
        """Pass."""
        return PASS


def extra_names(tool_name: str, extras: Extras) -> frozenset[str]:
    """The configured extras of one tool: its own and those of `*`, without `_meta`, which is never an argument."""
    if isinstance(extras, Mapping):
        names = {*extras.get(ANY_TOOL, ()), *extras.get(tool_name, ())}
    else:
        names = set(extras)
    return frozenset(names - {"_meta"})


def rule_uses_references(rule: JsonMapping) -> bool:
    """Whether a value rule uses keywords that only mean something in a document of its own."""
    stack: list[JsonValue] = [rule]
    while stack:
        item = stack.pop()
        node = as_object(item)
        if node is not None:
            if not _RULE_KEYWORDS_REFUSED.isdisjoint(node):
                return True
            stack.extend(node.values())
        elif isinstance(item, list):
            stack.extend(item)  # pyright: ignore[reportUnknownArgumentType]  # JSON
    return False


def rule_problem(rule: JsonObject) -> str | None:
    """What is wrong with a value rule as the end of a sentence, or `None`; for whoever checks a configuration."""
    if rule_uses_references(rule):
        return "may not use `$ref`, `$id`, `$anchor` or `$schema`; write the schema out"
    return find_fault(rule) or SchemaCheck(rule, is_rule=True).problem


def _refuse_all(name: str, rule: JsonObject, unusable: str) -> SchemaCheck:
    """The check of a rule that cannot be applied: a typo must not open what the rule was meant to close."""
    refusal = f"argument {name!r} cannot be accepted because its rule in the configuration {unusable}; tell the operator"
    return SchemaCheck(rule, refusal=refusal)


def _reason(problem: str, dropped: tuple[str, ...]) -> str:
    if not dropped:
        return sentence([problem])
    shown = ", ".join(repr(name[:40]) for name in islice(dropped, 5))
    note = f"Not declared by this tool and dropped: {shown}{' …' if len(dropped) > 5 else ''}"
    room = MAX_REASON_LENGTH - len(note) - 4
    return sentence([problem if len(problem) <= room else problem[: room - 1] + "…", note])
