"""`ArgumentPolicy`: decides which arguments reach a tool, and which calls are rejected because of their arguments.

A policy is built for each tool from the tool's schema and the operator's rules; `gate.tool_rules.ToolRules` holds it. It judges every
call, so the arguments are copied only if they change. It works on decoded JSON only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from gateway.config.policies import ToolOverride
from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_object, children_of, members_of
from gateway.policy.confinement import confine, find_fault
from gateway.policy.decision import PASS, Pass, Reject, Rewrite
from gateway.policy.schema_check import MAX_REASON_LENGTH, SchemaCheck, measure, sentence
from gateway.policy.shaping import (
    FRAMEWORK_NAMES,
    ArgumentPlan,
    plan_arguments,
    with_defaults,
    with_properties,
    without_arguments,
)
from gateway.policy.tool_schemas import declared_names, narrow

ANY_TOOL = "*"
"""Key of rules and extra arguments for all tools of a source."""

SCHEMA_RULE = "inputSchema"
"""Rule id of a rejection by the tool's own schema; the id of a value rule is `arguments.<tool>.<argument>`."""

_RULE_KEYWORDS_REFUSED = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "$id", "$anchor", "$dynamicAnchor", "$schema"})
"""Keywords that a value rule must not use. Rules are published inside a tool's schema, where these keywords would mean something else."""

Extras = Sequence[str] | Mapping[str, Sequence[str]]
"""`additionalArguments` of the configuration: a list of names for all tools, or a list for each native tool name or `*`."""

Rules = Mapping[str, Mapping[str, JsonObject]]
"""`arguments` of the configuration: native tool name or `*` → argument → JSON Schema."""


class ArgumentPolicy:
    """The compiled rules of one tool; immutable except for validators compiled on first use. Create it with `build`."""

    __slots__ = ("_check", "_filling", "_rules", "accepted", "published_schema", "withheld")

    def __init__(
        self, published_schema: JsonObject, plan: ArgumentPlan, rules: Sequence[tuple[str, str, SchemaCheck]], check: SchemaCheck
    ) -> None:
        """`rules` are the value rules: argument, rule id, check of the value. `check` judges all arguments by the tool's schema."""
        self.published_schema = published_schema
        """The tool's schema as clients see it; the original object if no rule changes it."""
        self.withheld = plan.withheld
        """Declared argument that a caller may not pass → the rule that forbids the argument."""
        self.accepted = plan.accepted
        """Names of the arguments that are accepted from a caller; others are dropped."""
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
        """Compile the rules for the tool with native `tool_name`. Never raises: an argument whose rule is unusable is always rejected.

        An extra argument is accepted although undeclared; it is published only if a rule names it. A rule for an argument that is
        neither declared nor extra has no effect, because that argument is dropped. `denied` names are dropped although declared, unless
        they are extra. With `only_with_rules` every call passes unchanged if no rule, extra or override concerns the tool: the tool
        then checks its arguments itself.
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
        """Drop arguments that are not accepted, add values of the override, apply the value rules, then the schema; stop at a rejection."""
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
        """Return `arguments` with the fixed and default values of the tool's override added; `arguments` itself if there are none."""
        return arguments if self._filling is None else self._filling.fill(arguments)

    @property
    def rules(self) -> tuple[tuple[str, str], ...]:
        """Argument and id of every value rule, in the order of application."""
        return tuple((name, rule_id) for name, rule_id, _ in self._rules)

    def problem_of(self, rule_id: str, value: JsonValue) -> str | None:
        """Return why the value rule `rule_id` rejects `value`, as the start of a sentence, or `None`. Used to explain a verdict."""
        for name, known, check in self._rules:
            if known == rule_id:
                return check.find(value, measure(value), root=name)
        return None


class _Unjudged(ArgumentPolicy):
    """The policy of a tool that no rule concerns: every call passes unchanged."""

    __slots__ = ()

    def judge(self, arguments: JsonObject) -> Pass | Rewrite | Reject:
        """Accept every call without looking at its arguments."""
        return PASS


def extra_names(tool_name: str, extras: Extras) -> frozenset[str]:
    """Return the configured extra arguments of a tool: its own and those of `*`, without `_meta`, which is never an argument."""
    if isinstance(extras, Mapping):
        names = {*extras.get(ANY_TOOL, ()), *extras.get(tool_name, ())}
    else:
        names = set(extras)
    return frozenset(names - {"_meta"})


def rule_uses_references(rule: JsonMapping) -> bool:
    """Return whether a value rule uses keywords such as `$ref` or `$id`, which change their meaning inside another schema."""
    stack: list[JsonValue] = [rule]
    while stack:
        node = stack.pop()
        if not _RULE_KEYWORDS_REFUSED.isdisjoint(members_of(node)):
            return True
        stack += children_of(node)
    return False


def rule_problem(rule: JsonObject) -> str | None:
    """Return why a value rule is unusable, as the end of a sentence that starts with the rule, or `None`."""
    if rule_uses_references(rule):
        return "may not use `$ref`, `$id`, `$anchor` or `$schema`; write the schema out"
    return find_fault(rule) or SchemaCheck(rule, is_rule=True).problem


def _refuse_all(name: str, rule: JsonObject, unusable: str) -> SchemaCheck:
    """Return a check that rejects every value, for an unusable rule: a typing error must not disable the rule."""
    refusal = f"argument {name!r} is rejected because its rule in the configuration {unusable}; tell the operator"
    return SchemaCheck(rule, refusal=refusal)


def _reason(problem: str, dropped: tuple[str, ...]) -> str:
    if not dropped:
        return sentence([problem])
    shown = ", ".join(repr(name[:40]) for name in islice(dropped, 5))
    note = f"Not declared by this tool and dropped: {shown}{' …' if len(dropped) > 5 else ''}"
    room = MAX_REASON_LENGTH - len(note) - 4
    return sentence([problem if len(problem) <= room else problem[: room - 1] + "…", note])
