"""`ArgumentPolicy`: decides which arguments reach a tool, and which calls are rejected because of their arguments.

A policy is built for each tool from the tool's schema and the operator's rules, and stored in `gate.tool_rules.ToolRules`. It judges the
arguments of every call as decoded JSON. The arguments are copied only if they change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from gateway.config.policies import ToolOverride
from gateway.json_types import JsonObject, JsonValue, as_object
from gateway.policy.confinement import ConfinedRule, confine, find_fault
from gateway.policy.decision import PASS, Pass, Reject, Rewrite
from gateway.policy.rule_words import has_keywords
from gateway.policy.schema_check import MAX_REASON_LENGTH, SchemaCheck, ValueSize, measure, sentence
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
"""Key in `arguments` and `additionalArguments` of a policy whose entry applies to all tools of the source, in place of a tool's name."""

SCHEMA_RULE = "inputSchema"
"""Rule id in the rejection of arguments that do not match the tool's own schema, as opposed to a rule of the operator."""

_RULE_KEYWORDS_REFUSED = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "$id", "$anchor", "$dynamicAnchor", "$schema"})
"""JSON Schema keywords that an operator's rule for an argument must not use.

A rule is published inside the tool's schema. There, these keywords would refer to other subschemas than the operator meant.
"""

Extras = Sequence[str] | Mapping[str, Sequence[str]]
"""Type of `additionalArguments` in a policy: names of arguments to accept although the tool's schema does not declare them.

Either a list of these names for all tools of the source, or a mapping: a tool's name at its source (`*`: all tools) → list of names.
"""

Rules = Mapping[str, Mapping[str, JsonObject]]
"""Type of `arguments` in a policy, the operator's rules for values: a tool's name at its source, or `*` → argument → JSON Schema."""


class ArgumentPolicy:
    """All rules about the arguments of one tool, compiled: which arguments are accepted, added and dropped, and which values are valid.

    Create it with `build`. It is immutable except for JSON Schema validators, which are compiled on first use.
    """

    __slots__ = ("_check", "_filling", "_rules", "accepted", "published_schema", "withheld")

    def __init__(
        self, published_schema: JsonObject, plan: ArgumentPlan, rules: Sequence[tuple[str, str, SchemaCheck]], check: SchemaCheck
    ) -> None:
        """Store the compiled rules. `plan` says which arguments are accepted, dropped and added.

        `rules` are the operator's rules for values: the name of the argument, the id of the rule, and the check of the value. `check`
        judges all arguments by the tool's schema.
        """
        self.published_schema = published_schema
        """The tool's input schema as clients see it: narrowed by the rules. The original object if no rule changes the schema."""
        self.withheld = plan.withheld
        """Arguments that the tool declares or `extras` names, but a caller may not pass → id of the rule that forbids each."""
        self.accepted = plan.accepted
        """Names of the arguments that are accepted from a caller; all other arguments are dropped."""
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
        """Compile the rules for the arguments of a tool. Never raises: if a rule is unusable, every call with its argument is rejected.

        `tool_name` is the tool's name at its source. `override` contains the operator's fixed and default values. `extras` names arguments
        that are accepted although the tool does not declare them; they are published only if a rule names them. `rules` maps tools and
        their arguments to JSON Schemas of the values. If an argument is neither declared nor in `extras`, it is dropped, so a rule for it
        has no effect. Declared arguments in `denied` are dropped too, unless they are in `extras`.

        `only_with_rules` is for tools that check their arguments themselves: if the operator configured neither rules nor `extras` nor an
        `override` for the tool, every call passes unchanged.
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
                check, confined = _compile_rule(name, rule, schema)
                checks.append((name, f"arguments.{key}.{name}", check))
                if confined is not None and name in plan.accepted:
                    narrowed.setdefault(name, []).append(confined.published)
        open_schema = without_arguments(schema, plan.withheld, defaults)
        shown = with_defaults(narrow(open_schema, narrowed) if narrowed else open_schema, defaults)
        judged = shown if not fixed else without_arguments(schema, plan.withheld.keys() - fixed.keys(), defaults)
        unseen = (extra - plan.withheld.keys() | fixed.keys()) - declared_names(judged)
        judged = narrow(judged, {name: [{}] for name in sorted(unseen)}) if unseen else judged
        return cls(shown, plan, checks, SchemaCheck(judged))

    def judge(self, arguments: JsonObject) -> Pass | Rewrite | Reject:
        """Judge the arguments of one call: accept them unchanged, replace them, or reject the call.

        The steps are, in this order: drop arguments that are not accepted, add the operator's fixed and default values, apply the
        operator's rules for values, and apply the tool's schema. The first rejection ends the judgement.
        """
        kept = arguments
        dropped: tuple[str, ...] = ()
        if not arguments.keys() <= self.accepted:
            kept = {name: value for name, value in arguments.items() if name in self.accepted}
            dropped = tuple(name for name in arguments if name not in self.accepted)
        if self._filling is not None:
            kept = self._filling.fill(kept)
        size = measure(kept)
        if (broken := _broken_rule(self._rules, kept, size)) is not None:
            return Reject(broken[0], _reason(broken[1], dropped), dropped)
        problem = self._check.find(kept, size)
        if problem is not None:
            return Reject(SCHEMA_RULE, _reason(problem, dropped), dropped)
        return PASS if kept is arguments else Rewrite(kept, dropped)

    def fill(self, arguments: JsonObject) -> JsonObject:
        """Return `arguments` with the operator's fixed and default values (`overrides`) added; `arguments` itself if nothing is added."""
        return arguments if self._filling is None else self._filling.fill(arguments)

    @property
    def rules(self) -> tuple[tuple[str, str], ...]:
        """Argument and rule id of each of the operator's rules for values, in the order in which the rules are applied."""
        return tuple((name, rule_id) for name, rule_id, _ in self._rules)

    def problem_of(self, rule_id: str, value: JsonValue) -> str | None:
        """Return why the operator's rule with the id `rule_id` rejects a value, or `None` if the rule accepts the value.

        Also return `None` if there is no rule with this id. The text is the start of a sentence. Used to explain a verdict.
        """
        for name, known, check in self._rules:
            if known == rule_id:
                return check.find(value, measure(value), root=name)
        return None


class ValueRules:
    """Rules for the values of a tool's arguments that are not part of the source's policy, such as those of a role."""

    __slots__ = ("_rules",)

    def __init__(self, rules: Sequence[tuple[str, str, SchemaCheck]]) -> None:
        self._rules = tuple(rules)

    @classmethod
    def build(cls, rules: Iterable[tuple[str, str, JsonObject]], input_schema: JsonValue) -> ValueRules:
        """Compile rules: argument, id of the rule, and JSON Schema. Never raises: an unusable rule rejects every call with its argument."""
        schema = with_properties(as_object(input_schema) or {"type": "object"})
        return cls([(name, rule_id, _compile_rule(name, rule, schema)[0]) for name, rule_id, rule in rules])

    def judge(self, arguments: JsonObject) -> Reject | None:
        """Return the first rejection of an argument by a rule; `None` if all given arguments are accepted."""
        broken = _broken_rule(self._rules, arguments, measure(arguments))
        return None if broken is None else Reject(broken[0], _reason(broken[1], ()))


class _Unjudged(ArgumentPolicy):
    """Argument policy of a tool for which no rule is configured and which checks its arguments itself: every call passes unchanged."""

    __slots__ = ()

    def judge(self, arguments: JsonObject) -> Pass | Rewrite | Reject:
        """Return `PASS`: accept every call unchanged."""
        return PASS


def extra_names(tool_name: str, extras: Extras) -> frozenset[str]:
    """Return the names in `extras` (`additionalArguments`) that apply to a tool: those of the tool's own list and those for all tools.

    `_meta` is left out, because it is never an argument.
    """
    if isinstance(extras, Mapping):
        names = {*extras.get(ANY_TOOL, ()), *extras.get(tool_name, ())}
    else:
        names = set(extras)
    return frozenset(names - {"_meta"})


def rule_problem(rule: JsonObject) -> str | None:
    """Return why an operator's rule for an argument cannot be applied, or `None` if it can.

    The text is the end of a sentence whose subject is the rule, for example "is nested deeper than 64 levels".
    """
    if has_keywords(rule, _RULE_KEYWORDS_REFUSED):
        return "may not use `$ref`, `$id`, `$anchor` or `$schema`; write the schema out"
    return find_fault(rule) or SchemaCheck(rule, is_rule=True).problem


def _compile_rule(name: str, rule: JsonObject, schema: JsonObject) -> tuple[SchemaCheck, ConfinedRule | None]:
    """Return the check of an operator's rule for an argument, and the completed rule; `None` if the rule is unusable."""
    unusable = rule_problem(rule)
    if unusable is not None:
        return _refuse_all(name, rule, unusable), None
    confined = confine(name, rule, schema)
    return SchemaCheck(confined.judged, is_rule=True), confined


def _broken_rule(rules: Sequence[tuple[str, str, SchemaCheck]], arguments: JsonObject, size: ValueSize) -> tuple[str, str] | None:
    """Return the id of the first rule that rejects an argument, and the reason; `None` if none does."""
    for name, rule_id, check in rules:
        if name in arguments:
            problem = check.find(arguments[name], size, root=name)
            if problem is not None:
                return rule_id, problem
    return None


def _refuse_all(name: str, rule: JsonObject, unusable: str) -> SchemaCheck:
    """Return a check that rejects every value of argument `name`, because its rule is unusable: a typing error must not disable the rule.

    `unusable` is the end of a sentence that says why.
    """
    refusal = f"argument {name!r} is rejected because its rule in the configuration {unusable}; tell the operator"
    return SchemaCheck(rule, refusal=refusal)


def _reason(problem: str, dropped: tuple[str, ...]) -> str:
    if not dropped:
        return sentence([problem])
    shown = ", ".join(repr(name[:40]) for name in islice(dropped, 5))
    note = f"Not declared by this tool and dropped: {shown}{' …' if len(dropped) > 5 else ''}"
    room = MAX_REASON_LENGTH - len(note) - 4
    return sentence([problem if len(problem) <= room else problem[: room - 1] + "…", note])
