"""Decides by `tools.allow` and `tools.deny` of a policy which tools of a source are served. Other tools are unknown to clients."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase


def judge_tool(name: str, allow: Sequence[str] | None, deny: Sequence[str]) -> bool:
    """Return whether the tool with native `name` is served: `allow` matches the name (`None` matches all), and `deny` does not.

    Both lists contain shell globs (`*`, `?`, `[abc]`) over the whole name, case-sensitive. An empty `allow` matches no tool.
    """
    if any(fnmatchcase(name, pattern) for pattern in deny):
        return False
    return allow is None or any(fnmatchcase(name, pattern) for pattern in allow)
