"""Finds mistakes in the section `access`: roles and Cedar policies that have no effect, or that leave open what they seem to close.

Used by `moongate policy lint`. The module compares patterns with the tools that sources list, and never judges a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from gateway.access.cedar_files import CedarPolicy
from gateway.access.cedar_schema import validate
from gateway.access.patterns import ItemPattern
from gateway.access.roles import Role, read_roles
from gateway.config.access_settings import AccessSettings
from gateway.config.suggest import did_you_mean
from gateway.json_types import JsonObject, JsonValue, as_object, items_of
from gateway.policy.argument_policy import rule_problem
from gateway.policy.lint import Finding, FindingKind
from gateway.policy.tool_schemas import declared_names

Tools = Mapping[str, Mapping[str, JsonValue]]
"""Id of a source → name of a tool at the source → its input schema. Sources whose tools are not known are missing."""


def lint_access(
    settings: AccessSettings, policies: Sequence[CedarPolicy], sources: Iterable[str], tools: Tools, keys: Iterable[str] | None
) -> list[Finding]:
    """Return the findings about the section `access`.

    `sources` are the ids of all sources, `tools` the tools of those that answered, and `keys` the names and ids of all API keys, or
    `None` if they are not known. Paths of findings start at the root of the configuration.
    """
    known = frozenset((*sources, "gateway"))
    roles = read_roles(settings)
    found = [*_lint_section(settings, roles, policies), *_lint_cedar(policies, known, tools)]
    for role in roles:
        found += _lint_role(role, roles, known, tools)
        found += _lint_members(role, settings, None if keys is None else frozenset(keys))
    return found


def _lint_section(settings: AccessSettings, roles: Sequence[Role], policies: Sequence[CedarPolicy]) -> Iterator[Finding]:
    if not roles and not policies:
        yield Finding("access", "unusable", "The section has no roles and no Cedar policies, so callers may use nothing.")
    default = next((role for role in roles if role.name == settings.default), None)
    if default is not None and len(roles) > 1 and not default.deny and any(p.written in ("*", "*/*") for p in default.allow):
        text = "Callers that no role names may use everything, so a user who loses a group gains rights. Name what everybody may use."
        yield Finding(f"access.roles.{default.name}.allow", "open", text)


def _lint_members(role: Role, settings: AccessSettings, keys: frozenset[str] | None) -> Iterator[Finding]:
    place = f"access.roles.{role.name}"
    if not role.members and role.name != settings.default:
        yield Finding(f"{place}.members", "dead", "No caller has this role: it has no members and is not the default.")
    for number, member in enumerate(role.members):
        if keys is not None and member.key is not None and member.key not in keys:
            text = f"No API key has the name or id {member.key!r}. {did_you_mean(member.key, keys)}"
            yield Finding(f"{place}.members[{number}].key", "dead", text.rstrip())


def _lint_role(role: Role, roles: Sequence[Role], known: frozenset[str], tools: Tools) -> Iterator[Finding]:
    place = f"access.roles.{role.name}"
    for number, pattern in enumerate(role.allow):
        yield from _lint_pattern(pattern, f"{place}.allow[{number}]", "dead", known, tools)
        if any(_contains(denied, pattern) for denied in role.deny):
            yield Finding(f"{place}.allow[{number}]", "conflict", "`deny` of this role denies everything that the pattern allows.")
    for number, pattern in enumerate(role.deny):
        yield from _lint_pattern(pattern, f"{place}.deny[{number}]", "open", known, tools)
    for number, pattern in enumerate(role.approval):
        yield from _lint_pattern(pattern, f"{place}.approval[{number}]", "open", known, tools)
    for pattern, rules in role.arguments:
        at = f"{place}.arguments.{pattern.written}"
        yield from _lint_pattern(pattern, at, "open", known, tools)
        matched = list(_matched(pattern, tools))
        if matched and not any(role.allowing("tools", source, name) for source, name in matched):
            yield Finding(at, "dead", "The role does not allow these tools, so the rules have no effect.")
        yield from _lint_rules(at, rules, [tools[source][name] for source, name in matched])
        yield from _lint_bypass(at, role, roles, matched)


def _lint_rules(place: str, rules: Mapping[str, JsonObject], schemas: Sequence[JsonValue]) -> Iterator[Finding]:
    for argument, rule in rules.items():
        if (problem := rule_problem(rule)) is not None:
            yield Finding(f"{place}.{argument}", "unusable", f"The rule {problem}, so every call with the argument is refused.")
        declared = [declared_names(as_object(schema) or {}) for schema in schemas]
        if declared and not any(argument in names for names in declared):
            hint = did_you_mean(argument, sorted(set[str]().union(*declared)))
            yield Finding(f"{place}.{argument}", "open", f"No matching tool has the argument {argument!r}. {hint}".rstrip())
        required = [argument in items_of((as_object(schema) or {}).get("required")) for schema in schemas]
        if declared and any(argument in names for names in declared) and not all(required):
            text = "The argument is optional, and the rule does not apply to a call without it. Require it by `overrides` of the policy."
            yield Finding(f"{place}.{argument}", "note", text)


def _lint_bypass(place: str, role: Role, roles: Sequence[Role], matched: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """Find another role with the same member that allows a call which the rules refuse."""
    for other in roles:
        if other is role or not any(member in other.members for member in role.members):
            continue
        open_to = [f"{s}/{n}" for s, n in matched if other.allowing("tools", s, n) is not None and not other.rules_for(s, n)]
        if open_to:
            text = f"Role {other.name!r} has the same members and allows {open_to[0]!r} without rules, so these rules have no effect."
            yield Finding(place, "open", text)


def _lint_pattern(pattern: ItemPattern, place: str, kind: FindingKind, known: frozenset[str], tools: Tools) -> Iterator[Finding]:
    """Find a pattern that matches nothing. In `deny`, this leaves something open that the operator meant to close."""
    matching = [source for source in known if fnmatchcase(source, pattern.source)]
    if not matching:
        yield Finding(place, kind, f"{pattern.written!r} matches no source. {did_you_mean(pattern.source, known)}".rstrip())
        return
    if pattern.kind not in (None, "tools") or pattern.name == "*" or not all(source in tools for source in matching):
        return
    if pattern.kind is None and "://" in pattern.name:
        return
    if not any(_matched(pattern, tools)):
        names = [name for source in matching for name in tools[source]]
        text = f"{pattern.written!r} matches no tool. {did_you_mean(pattern.name, names)}".rstrip()
        if pattern.kind is None:
            text += " If it is for resources or prompts, write `resources:` or `prompts:` before it."
        yield Finding(place, kind, text)


def _matched(pattern: ItemPattern, tools: Tools) -> Iterator[tuple[str, str]]:
    for source, listed in tools.items():
        for name in listed:
            if pattern.denies("tools", source, name):
                yield source, name


def _contains(outer: ItemPattern, inner: ItemPattern) -> bool:
    """Return whether a pattern matches everything that another matches, as far as their spelling shows."""
    return (
        outer.kind in (None, inner.kind)
        and not outer.is_skill
        and fnmatchcase(inner.source, outer.source)
        and (outer.name == "*" or outer.name == inner.name)
    )


def _lint_cedar(policies: Sequence[CedarPolicy], known: frozenset[str], tools: Tools) -> Iterator[Finding]:
    for fault in validate(policies, tools) if policies else ():
        yield Finding(f"access.cedar {fault.policy}".rstrip(), "unusable", f"{fault.text}.")
    for policy in policies:
        kind: FindingKind = "dead" if policy.effect == "permit" else "open"
        for source in _named_sources(policy):
            if source not in known:
                text = f"The policy names the source {source!r}, which does not exist. {did_you_mean(source, known)}".rstrip()
                yield Finding(f"access.cedar {policy.id}", kind, text)


def _named_sources(policy: CedarPolicy) -> list[str]:
    """Return the ids of the sources that the head of a policy names, in the action or the resource."""
    found: list[str] = []
    for condition in (policy.action, policy.resource, as_object(policy.resource.get("in")) or {}):
        for value in (condition.get("entity"), *items_of(condition.get("entities"))):
            entity = as_object(value) or {}
            name = str(entity.get("id") or "")
            if entity.get("type") == "Source":
                found.append(name)
            elif entity.get("type") in ("Action", "Tool", "Resource", "Prompt") and "/" in name:
                found.append(name.partition("/")[0])
    return list(dict.fromkeys(found))
