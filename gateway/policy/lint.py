"""Rules that do nothing, or cannot be applied. For `doctor` and the start-up log; never part of judging a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from gateway.config.policies import SourcePolicy
from gateway.json_types import JsonValue
from gateway.policy.arguments import ANY_TOOL, extra_names, rule_problem
from gateway.policy.schemas import declared_names


def policy_remarks(policy: SourcePolicy, schemas: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """What an operator should know of a source's rules, a sentence each, starting with the JSON path below `policies.<source>`.

    `schemas` are the input schemas of all tools the source lists, by native name, hidden ones included: ask only once
    the source has listed them.
    """
    return (*_patterns(policy, schemas), *_extras(policy, schemas), *_rules(policy, schemas))


def _patterns(policy: SourcePolicy, schemas: Mapping[str, JsonValue]) -> Iterator[str]:
    for key, patterns in (("allow", policy.tools.allow or ()), ("deny", policy.tools.deny)):
        for number, pattern in enumerate(patterns):
            if not any(fnmatchcase(name, pattern) for name in schemas):
                yield f"tools.{key}[{number}]: {pattern!r} matches no tool of this source."


def _extras(policy: SourcePolicy, schemas: Mapping[str, JsonValue]) -> Iterator[str]:
    extras = policy.additional_arguments
    if isinstance(extras, dict):
        for tool in extras:
            if tool != ANY_TOOL and tool not in schemas:
                yield f"additionalArguments.{tool}: this source has no tool {tool!r}; use its native name."


def _rules(policy: SourcePolicy, schemas: Mapping[str, JsonValue]) -> Iterator[str]:
    for tool, rules in policy.arguments.items():
        if tool != ANY_TOOL and tool not in schemas:
            yield f"arguments.{tool}: this source has no tool {tool!r}; use its native name."
            continue
        for name, rule in rules.items():
            problem = rule_problem(rule)
            if problem is not None:
                yield f"arguments.{tool}.{name}: the rule {problem}, so every value is refused."
            concerned = schemas if tool == ANY_TOOL else [tool]
            if not any(name in declared_names(schemas[t]) or name in extra_names(t, policy.additional_arguments) for t in concerned):
                yield f"arguments.{tool}.{name}: no such argument is declared, so the rule does nothing (the argument is dropped)."
