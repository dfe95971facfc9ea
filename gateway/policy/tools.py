"""Which tools of a source exist at all. Asked by the catalog while it builds its table; a tool left out is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase


def judge_tool(name: str, allow: Sequence[str] | None, deny: Sequence[str]) -> bool:
    """Whether the tool with native `name` exists: matched by `allow` (`None` means all) and by nothing in `deny`.

    Patterns are shell globs (`*`, `?`, `[abc]`) over the whole name, case-sensitive. An empty `allow` lets nothing through.
    """
    if any(fnmatchcase(name, pattern) for pattern in deny):
        return False
    return allow is None or any(fnmatchcase(name, pattern) for pattern in allow)
