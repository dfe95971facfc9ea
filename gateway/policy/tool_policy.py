"""Decides by `tools.allow` and `tools.deny` of a policy which tools of a source are served. Other tools are unknown to clients."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase


def judge_tool(name: str, allow: Sequence[str] | None, deny: Sequence[str]) -> bool:
    """Return whether a tool is served: `allow` matches its name (`None` matches all names), and `deny` does not.

    `name` is the tool's name at its source. Both lists contain shell globs (`*`, `?`, `[abc]`) over the whole name, case-sensitive. An
    empty `allow` matches no tool.
    """
    if any(fnmatchcase(name, pattern) for pattern in deny):
        return False
    return allow is None or any(fnmatchcase(name, pattern) for pattern in allow)
