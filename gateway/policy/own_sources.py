"""Policies for tools that only one agent or workflow can call. Such tools form the source `agent/<name>` or `workflow/<name>`.

Examples are the file tools of an agent's `files` key and the `python:` steps of a workflow. Their calls are judged like calls of a server's
tools. API key scopes and globs of `tools` lists never match these sources. Used by `gate`, `catalog` and `agents`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.config.policies import OWN_SOURCE_KINDS, SourcePolicy
from gateway.json_types import JsonMapping
from gateway.policy.decision import Reject
from gateway.policy.tool_policy import judge_tool

UNLIMITED_BYTES = 2**62
"""Default limit for results of tools that belong to one agent or workflow: no limit, because the results stay inside the gateway."""

_LIMITS = {"timeout_seconds": math.inf, "max_result_bytes": UNLIMITED_BYTES, "max_kept_bytes": UNLIMITED_BYTES}


def is_own_source(source: str) -> bool:
    """Return whether a source is `agent/<name>` or `workflow/<name>`, which contain the tools of one agent or workflow."""
    return source.partition("/")[0] in OWN_SOURCE_KINDS and "/" in source


def own_policy(written: SourcePolicy | None) -> SourcePolicy:
    """Return the policy that applies to a source `agent/<name>` or `workflow/<name>`.

    `written` is the policy in the configuration, or `None`. The result is a copy with other defaults: if the configuration does not set the
    limits on the time of calls and on the size of results, they are unlimited.
    """
    policy = written or SourcePolicy()
    return policy.model_copy(update={key: limit for key, limit in _LIMITS.items() if key not in policy.model_fields_set})


def may_change_something(annotations: JsonMapping | None) -> bool:
    """Return whether a call of a tool counts as a side effect. It does unless the tool's annotations have `readOnlyHint: true`."""
    return (annotations or {}).get("readOnlyHint") is not True


@dataclass(frozen=True, slots=True)
class FunctionNames:
    """All names of a Python function that the file of an agent or workflow uses, by which policies may deny the function."""

    name: str
    """The name that policies use: the name of the tool if the function is served as a tool, otherwise the name of the function."""
    aliases: Sequence[str] = ()
    """Other names of the function: the attribute's name in the agent or workflow file, and further names under which it is served."""


def judge_function(function: FunctionNames, policy: SourcePolicy, source: str, *, by_allow: bool = True) -> Reject | None:
    """Return why the policy of `source` does not allow the file of an agent or workflow to run `function`, or `None` if it may run.

    The function is denied if the policy denies any of its names. With `by_allow`, it is also denied if the policy has `tools.allow` and no
    glob there matches `function.name`. Set `by_allow` to false before the function is imported, because `name` is known only afterwards.
    """
    for known in (function.name, *function.aliases):
        rule = _denied_by(known, policy)
        if rule is not None:
            return Reject(rule, f"`policies[{source!r}].{rule}` denies the function {known!r}.")
    if by_allow and not judge_tool(function.name, policy.tools.allow, ()):
        return Reject("tools.allow", f"`policies[{source!r}].tools.allow` does not list the function {function.name!r}.")
    return None


def _denied_by(name: str, policy: SourcePolicy) -> str | None:
    if any(fnmatchcase(name, pattern) for pattern in policy.tools.deny):
        return "tools.deny"
    override = policy.overrides.get(name)
    return f"overrides.{name}.enabled" if override is not None and not override.enabled else None
