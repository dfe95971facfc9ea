"""Finds mistakes in policies: rules that have no effect, accept values that they should reject, or cannot be applied.

Used by `moongate policy lint`, by `moongate doctor`, and to log mistakes when the gateway starts. The module never judges a call. It
compares patterns, names and overrides with the tools that a source lists; a source is one server, or the gateway's agents, skills and so
on. `policy.open_rules` examines the rules for the values of arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, cast

from gateway.config.models import judge_policy_name
from gateway.config.policies import ApprovalLists, SourcePolicy, ToolOverride
from gateway.config.suggest import did_you_mean
from gateway.json_types import JsonObject, JsonValue, as_object, items_of, members_of
from gateway.policy.argument_kinds import ArgumentKind, is_closed, kinds_of_argument, reads, reads_files
from gateway.policy.argument_policy import ANY_TOOL, ArgumentPolicy, extra_names, rule_problem
from gateway.policy.confinement import confine
from gateway.policy.open_rules import holds_by_word, is_confining, left_open, worth_knowing
from gateway.policy.schema_check import SchemaCheck, measure
from gateway.policy.schema_types import declared_schema, types_of
from gateway.policy.shaping import FRAMEWORK_NAMES, NO_NAMES, plan_arguments, public_names
from gateway.policy.tool_policy import hidden_by
from gateway.policy.tool_schemas import declared_names

FindingKind = Literal["dead", "open", "unusable", "conflict", "note"]
"""Kind of a remark about a rule of a policy.

`dead`: the rule has no effect; `open`: it accepts values that it should reject; `unusable`: it rejects every value; `conflict`: it
contradicts another rule or the server; `note`: worth knowing, not a mistake.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A remark about one rule of a policy: its place, its kind, and a text for the operator."""

    path: str
    """Path of the rule below `policies.<source>`, such as `tools.deny[0]`; empty for the policy itself."""
    kind: FindingKind
    text: str

def lint_names(names: Iterable[str], servers: Iterable[str], own: Iterable[str] = ()) -> dict[str, tuple[Finding, ...]]:
    """Find policies whose name is not the name of a source. Return a dict: name of the policy → findings about the policy.

    `names` are the keys of `policies` in the configuration, and `servers` the keys of `mcpServers`. `own` are the names `agent/<name>` and
    `workflow/<name>` of all agents and workflows.
    """
    own = frozenset(own)
    problems = {name: judge_policy_name(name, servers) for name in names}
    for name in problems:
        kind, slash, _ = name.partition("/")
        if slash and name not in own:
            problems[name] = f"no {kind} has this name, so the policy does nothing. {did_you_mean(name, own)}".rstrip()
    return {name: (Finding("", "dead", problem),) for name, problem in problems.items() if problem is not None}


def lint_unlisted(policy: SourcePolicy, schemas: Mapping[str, JsonValue]) -> tuple[Finding, ...]:
    """Return findings about the argument rules of a source such as `agent/<name>`, whose tools are not all known before the agent runs.

    `schemas` maps the names of the tools that are already known, such as file tools, to the tools' input schemas.
    """
    found: list[Finding] = []
    for tool, rules in policy.arguments.items():
        schema: JsonObject = {"properties": dict.fromkeys(rules, True), "required": [*rules]}
        for name, rule in rules.items():
            found += _rule(f"arguments.{tool}.{name}", name, rule, policy, {tool: schema})
    return (*found, *_gaps(policy, schemas, NO_NAMES))


def lint_policy(policy: SourcePolicy, schemas: Mapping[str, JsonValue], *, is_local: bool = False) -> tuple[Finding, ...]:
    """Return all findings about the policy of one source.

    `schemas` maps the names of all tools at the source, also of tools that are not served, to the tools' input schemas. `is_local`: the
    source is not a remote server, so its tools may have arguments with names that agent frameworks use for their own parameters.
    """
    denied = NO_NAMES if is_local else FRAMEWORK_NAMES
    return (
        *_patterns(policy, schemas),
        *_extras(policy, schemas),
        *_rules(policy, schemas),
        *_gaps(policy, schemas, denied),
        *_overrides(policy, schemas),
        *_framework_names(policy, schemas, denied),
    )


def _patterns(policy: SourcePolicy, schemas: Mapping[str, JsonValue]) -> Iterator[Finding]:
    lists: dict[str, tuple[Sequence[str], FindingKind]] = {
        "tools.allow": (policy.tools.allow or (), "dead"),
        "tools.deny": (policy.tools.deny, "open"),
        "idempotent": (policy.idempotent, "dead"),
        "tasks.promote": (policy.tasks.promote, "dead"),
    }
    if isinstance(policy.approval, ApprovalLists):
        lists["approval.always"] = (policy.approval.always, "open")
        lists["approval.never"] = (policy.approval.never, "dead")
    for path, (patterns, kind) in lists.items():
        for number, pattern in enumerate(patterns):
            if not any(fnmatchcase(name, pattern) for name in schemas):
                text = f"{pattern!r} matches no tool of this source. {did_you_mean(pattern, schemas)}"
                yield Finding(f"{path}[{number}]", kind, text.rstrip())


def _extras(policy: SourcePolicy, schemas: Mapping[str, JsonValue]) -> Iterator[Finding]:
    extras = policy.additional_arguments
    if not isinstance(extras, dict):
        return
    for tool, names in extras.items():
        if tool == ANY_TOOL:
            continue
        if tool not in schemas:
            yield _no_tool(f"additionalArguments.{tool}", tool, schemas)
            continue
        for name in names:
            if name in declared_names(schemas[tool]) and name not in FRAMEWORK_NAMES:
                yield Finding(f"additionalArguments.{tool}", "dead", f"{name!r} is declared by the tool, so it is accepted anyway.")


def _no_tool(path: str, tool: str, schemas: Mapping[str, JsonValue]) -> Finding:
    hint = did_you_mean(tool.rpartition("__")[2], schemas) or "Use the server's own name of the tool."
    return Finding(path, "dead", f"this source has no tool {tool!r}. {hint}")


def _rules(policy: SourcePolicy, schemas: Mapping[str, JsonValue]) -> Iterator[Finding]:
    for tool, rules in policy.arguments.items():
        if tool != ANY_TOOL and tool not in schemas:
            yield _no_tool(f"arguments.{tool}", tool, schemas)
            continue
        if tool != ANY_TOOL and hidden_by(tool, policy) is not None:
            yield Finding(f"arguments.{tool}", "dead", "the tool is switched off by `tools` or its override.")
            continue
        concerned = {t: s for t, s in schemas.items() if hidden_by(t, policy) is None} if tool == ANY_TOOL else {tool: schemas[tool]}
        for name, rule in rules.items():
            yield from _rule(f"arguments.{tool}.{name}", name, rule, policy, concerned)


def _served(policy: SourcePolicy, schemas: Mapping[str, JsonValue]) -> Iterator[tuple[str, JsonObject]]:
    """Yield the name and schema of each served tool, in the order of names. Tools whose schema is not an object are left out."""
    for tool in sorted(schemas):
        schema = as_object(schemas[tool])
        if schema is not None and hidden_by(tool, policy) is None:
            yield tool, schema


def _rule(path: str, name: str, rule: JsonObject, policy: SourcePolicy, concerned: Mapping[str, JsonValue]) -> Iterator[Finding]:
    problem = rule_problem(rule)
    if problem is not None:
        yield Finding(path, "unusable", f"the rule {problem}, so every value is rejected.")
    having = [
        t
        for t in concerned if name in declared_names(concerned[t]) or name in extra_names(t, policy.additional_arguments)
    ]
    if not having:
        known = {argument for schema in concerned.values() for argument in declared_names(schema)}
        text = f"no tool declares the argument {name!r}, so it is dropped and the rule does nothing. {did_you_mean(name, known)}"
        yield Finding(path, "dead", text.rstrip())
    if problem is not None or not having:
        return
    said: set[str] = set()
    for tool in having:
        schema = members_of(concerned[tool])
        override = policy.overrides.get(tool)
        given = override is not None and (name in override.fixed or name in override.defaults)
        found = [("conflict", text) for text in _admits_nothing(name, rule, schema, tool)]
        others = [policy.arguments.get(key, {}).get(name) for key in (ANY_TOOL, tool)]
        is_confined = any(other is not None and is_confining(other) for other in others)
        found += [("open", text) for text in left_open(name, rule, schema, is_confined=is_confined)]
        found += [("note", text) for text in worth_knowing(name, schema, always_given=given)]
        for kind, text in found:
            if text not in said:
                yield Finding(path, cast("FindingKind", kind), text)
                said.add(text)


def _admits_nothing(name: str, rule: JsonObject, schema: JsonObject, tool: str) -> Iterator[str]:
    """Yield the text of a finding if no JSON type of the argument `name` is accepted by both the rule and the tool's schema.

    If there is no such type, every value of the argument is rejected.
    """
    confined = confine(name, rule, schema).judged
    ruled, taken = types_of(confined, confined), types_of(declared_schema(schema, name), schema)
    if not ruled & taken:
        text = f"the rule accepts {' or '.join(sorted(ruled))} and tool {tool!r} accepts {' or '.join(sorted(taken))}"
        yield f"{text}, so every value is rejected; for the elements of a list write the rule under `items`."


# -- gaps between tools --------------------------------------------------------------------------------------------


def _gaps(policy: SourcePolicy, schemas: Mapping[str, JsonValue], denied: frozenset[str]) -> Iterator[Finding]:
    """Yield a finding for each argument that no rule restricts if a rule restricts another argument of the same kind or the same name.

    Kinds are path, URL and mail address. For example, a rule restricts the paths that one tool reads, but another tool accepts any path.
    The name decides only for rules with a rule word such as `within`. A caller may pass arguments with names in `denied` only if
    `additionalArguments` lists them.
    """
    if not policy.arguments:
        return
    held: dict[str, str] = {}
    """Kind of argument, or `argument NAME` if the rule has a rule word such as `within` → path of a rule that restricts such arguments."""
    loose: list[tuple[str, str, frozenset[ArgumentKind]]] = []
    for tool, schema in _served(policy, schemas):
        for name in sorted(_callers_arguments(tool, schema, policy, denied)):
            kinds = kinds_of_argument(name, schema)
            rules = [(key, rule) for key in (ANY_TOOL, tool) if (rule := policy.arguments.get(key, {}).get(name)) is not None]
            confining = [(key, rule) for key, rule in rules if rule_problem(rule) is not None or is_confining(rule)]
            if not confining and not is_closed(name, schema):
                loose.append((tool, name, kinds))
            for key, rule in confining:
                place = f"arguments.{key}.{name}"
                for kind in kinds:
                    held.setdefault(kind, place)
                if holds_by_word(rule):
                    held.setdefault(f"argument {name}", place)
    for tool, name, kinds in loose:
        place = held.get(f"argument {name}") or next((held[kind] for kind in sorted(kinds) if kind in held), None)
        if place is not None:
            text = f"tool {tool!r} accepts {name!r} without a rule, while {place} confines such arguments."
            yield Finding(f"arguments.{tool}.{name}", "open", f"{text} Write the rule under {ANY_TOOL!r} for every tool, or deny this one.")
    if "path" in held:
        yield from _unjudged(policy, schemas, denied, held["path"])


def _unjudged(policy: SourcePolicy, schemas: Mapping[str, JsonValue], denied: frozenset[str], place: str) -> Iterator[Finding]:
    """Yield a finding for each tool that can read files in calls that no rule about paths restricts, because they have no path argument.

    Used if a rule restricts a path argument; `place` is the path of that rule in the policy. A caller may pass arguments with names in
    `denied` only if `additionalArguments` lists them.
    """
    for tool, schema in _served(policy, schemas):
        accepted = _callers_arguments(tool, schema, policy, denied)
        fixed = policy.overrides[tool].fixed if tool in policy.overrides else {}
        paths = sorted(name for name in {*accepted, *fixed} if "path" in kinds_of_argument(name, schema))
        if paths and reads(tool) and not any(name in fixed or _is_judged(tool, name, schema, policy) for name in paths):
            text = f"tool {tool!r} may run without {paths[0]!r} or with null; no rule confines that call, while {place} confines others."
            fix = f"Give it a value in `overrides.{tool}.defaults` and `\"type\": \"string\"` in its rule, or deny the tool."
            yield Finding(f"arguments.{tool}.{paths[0]}", "open", f"{text} {fix}")
        elif not paths and accepted and reads_files(tool) and not policy.arguments.get(tool):
            text = f"tool {tool!r} accepts no path, so no rule confines what it reads, while {place} confines others."
            yield Finding(f"arguments.{tool}", "open", f"{text} Deny the tool, or write a rule for one of its arguments.")


def _is_judged(tool: str, name: str, schema: JsonObject, policy: SourcePolicy) -> bool:
    """Return whether a rule judges the argument `name` in every call of the tool, so that no finding is needed.

    Also return true if there is another reason to report nothing: the argument's schema lists all values, no rule restricts the argument
    (`_gaps` reports this), or the rule allows any path.
    """
    override = policy.overrides.get(tool)
    rules = [rule for key in (ANY_TOOL, tool) if (rule := policy.arguments.get(key, {}).get(name)) is not None]
    if is_closed(name, schema) or not any(rule_problem(rule) is None and is_confining(rule) for rule in rules):
        return True
    if any("." in (folders if isinstance(folders := rule.get("within"), list) else [folders]) for rule in rules):
        return True  # the operator allows any path
    given = name in items_of(schema.get("required")) or (override is not None and name in override.defaults)
    judged = [types_of(confined, confined) for rule in rules if (confined := confine(name, rule, schema).judged)]
    return given and "null" not in types_of(declared_schema(schema, name), schema).intersection(*judged)


def _callers_arguments(tool: str, schema: JsonObject, policy: SourcePolicy, denied: frozenset[str]) -> frozenset[str]:
    """Return the names of a tool's arguments that a caller may pass: those in `denied` only if `additionalArguments` lists them."""
    extras = extra_names(tool, policy.additional_arguments)
    return plan_arguments(tool, declared_names(schema), extras, denied, policy.overrides.get(tool)).accepted


# -- overrides -----------------------------------------------------------------------------------------------------


def _overrides(policy: SourcePolicy, schemas: Mapping[str, JsonValue]) -> Iterator[Finding]:
    for tool, override in policy.overrides.items():
        path = f"overrides.{tool}"
        if tool not in schemas:
            yield _no_tool(path, tool, schemas)
        elif override.enabled:
            yield from _override(path, tool, override, policy, schemas[tool])
    _, lost = public_names((name for name in schemas if hidden_by(name, policy) is None), policy.overrides)
    for tool, (name, holder) in lost.items():
        text = f"{name!r} is the name of tool {holder!r}, so this tool is left out; choose another name."
        yield Finding(f"overrides.{tool}.name", "conflict", text)


def _override(path: str, tool: str, override: ToolOverride, policy: SourcePolicy, schema: JsonValue) -> Iterator[Finding]:
    known = declared_names(schema) | extra_names(tool, policy.additional_arguments)
    for key, names in (("hide", override.hide), ("fixed", [*override.fixed]), ("defaults", [*override.defaults])):
        for name in names:
            if name not in known:
                yield Finding(f"{path}.{key}", "dead", f"{name!r} is neither declared nor an extra argument, so it has no effect.")
    for name in sorted(override.defaults.keys() & (override.fixed.keys() | set(override.hide)) & known):
        if name in override.fixed:
            yield Finding(f"{path}.defaults", "dead", f"{name!r} has a fixed value, which is always sent.")
    rules = ArgumentPolicy.build(tool, schema, policy.additional_arguments, policy.arguments, override=override)
    for key, values in (("fixed", override.fixed), ("defaults", override.defaults)):
        for name, value in values.items():
            if name in known:
                yield from _value(f"{path}.{key}.{name}", name, value, rules, members_of(schema))
    required = items_of(members_of(schema).get("required"))
    for name in override.hide:
        if name in required and name not in override.fixed and name not in override.defaults:
            text = f"the server requires {name!r}, which is never sent now; give it a fixed value."
            yield Finding(f"{path}.hide", "conflict", text)


def _value(path: str, name: str, value: JsonValue, rules: ArgumentPolicy, schema: JsonObject) -> Iterator[Finding]:
    for argument, rule_id in rules.rules:
        if argument == name and (problem := rules.problem_of(rule_id, value)) is not None:
            yield Finding(path, "conflict", f"{rule_id} rejects this value, so every call with it is rejected: {problem}.")
    declared = members_of(schema.get("properties")).get(name)
    if declared is None:
        return
    around = {key: schema[key] for key in ("$schema", "$defs", "definitions") if key in schema}
    check = SchemaCheck({**around, "type": "object", "properties": {name: declared}})
    if check.problem is None and (problem := check.find({name: value}, measure({name: value}))) is not None:
        yield Finding(path, "conflict", f"the server's own schema rejects this value: {problem}.")


def _framework_names(policy: SourcePolicy, schemas: Mapping[str, JsonValue], denied: frozenset[str]) -> Iterator[Finding]:
    for tool, schema in schemas.items():
        if hidden_by(tool, policy) is not None:
            continue
        required = items_of(members_of(schema).get("required"))
        override = policy.overrides.get(tool)
        handled = extra_names(tool, policy.additional_arguments).union(override.fixed if override else ())
        for name in sorted((declared_names(schema) & denied) - handled):
            needs = name in required
            text = f"tool {tool!r} {'requires' if needs else 'declares'} {name!r}, a name that agent frameworks use, so it is not sent."
            yield Finding("additionalArguments", "conflict" if needs else "note", f"{text} List it here for this tool to accept it.")
