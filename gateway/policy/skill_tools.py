"""What a skill's `allowed-tools` means here: it may take tools away from an agent that follows the skill, never add any.

Pure; `agents` asks it for agents with `narrow-to-skills`. Everywhere else the field is data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import cast

from gateway.json_types import JsonValue

_WISH = re.compile(r"[^\s,()]+(?:\([^)]*\))?")


def wished_tools(value: JsonValue) -> list[str] | None:
    """The tool names and globs in an `allowed-tools` field, text or list; `None` where it is not written.

    What stands in parentheses narrows a host's own tools and means nothing here, so the name before it counts.
    """
    if value is None:
        return None
    texts = cast("list[JsonValue]", value) if isinstance(value, list) else [value]
    return [wish.partition("(")[0] for text in texts if isinstance(text, str) for wish in _WISH.findall(text)]


def narrow_tools(names: Iterable[str], wishes: Sequence[JsonValue]) -> set[str]:
    """Those of `names` (exposed ones) that some skill wants, by their `allowed-tools` fields in `wishes`.

    A skill without the field wants everything. Other hosts' spelling `mcp__<server>__<tool>` and ours with a slash count too.
    """
    found = set(names)
    patterns: list[str] = []
    for wish in wishes:
        listed = wished_tools(wish)
        if listed is None:
            return found
        patterns += [name.removeprefix("mcp__").replace("/", "__") for name in listed]
    return {name for name in found if any(fnmatchcase(name, pattern) for pattern in patterns)}
