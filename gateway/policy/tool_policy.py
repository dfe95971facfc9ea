"""Decides which tools of a source are served, by the keys `tools` and `overrides` of the source's policy. Clients never see other tools."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from gateway.config.policies import SourcePolicy


def judge_tool(name: str, allow: Sequence[str] | None, deny: Sequence[str]) -> bool:
    """Return whether a tool is served: `allow` matches its name (`None` matches all names), and `deny` does not.

    `name` is the tool's name at its source. Both lists contain shell globs (`*`, `?`, `[abc]`), which must match the whole name and are
    case-sensitive. An empty `allow` matches no tool.
    """
    if any(fnmatchcase(name, pattern) for pattern in deny):
        return False
    return allow is None or any(fnmatchcase(name, pattern) for pattern in allow)


def hidden_by(tool: str, policy: SourcePolicy) -> str | None:
    """Return the rule that prevents a tool from being served, as a path below `policies.<source>`; `None` if the tool is served.

    `tool` is the tool's name at its source.
    """
    for number, pattern in enumerate(policy.tools.deny):
        if fnmatchcase(tool, pattern):
            return f"tools.deny[{number}]"
    if not judge_tool(tool, policy.tools.allow, ()):
        return "tools.allow"
    override = policy.overrides.get(tool)
    return f"overrides.{tool}.enabled" if override is not None and not override.enabled else None
