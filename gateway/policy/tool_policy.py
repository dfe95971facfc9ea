"""Decides which tools of a source exist. The catalog uses it to build its table; a tool that is left out is unknown to clients."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase


def judge_tool(name: str, allow: Sequence[str] | None, deny: Sequence[str]) -> bool:
    """Return whether the tool with native `name` exists: `allow` matches it (`None` matches all) and `deny` does not.

    Patterns are shell globs (`*`, `?`, `[abc]`) over the whole name, case-sensitive. An empty `allow` matches no tool.
    """
    if any(fnmatchcase(name, pattern) for pattern in deny):
        return False
    return allow is None or any(fnmatchcase(name, pattern) for pattern in allow)
