"""Interprets a skill's `allowed-tools`: it can remove tools from an agent that follows the skill, but never add any.

Pure; used by `agents` for agents with `narrow-to-skills`. Everywhere else the field is only data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import cast

from gateway.json_types import JsonValue

_WISH = re.compile(r"[^\s,()]+(?:\([^)]*\))?")


def requested_tools(value: JsonValue) -> list[str] | None:
    """Return the tool names and globs in an `allowed-tools` field (text or list), or `None` if the field is absent.

    Text in parentheses restricts tools of other hosts and is ignored; the name before it counts.
    """
    if value is None:
        return None
    texts = cast("list[JsonValue]", value) if isinstance(value, list) else [value]
    return [request.partition("(")[0] for text in texts if isinstance(text, str) for request in _WISH.findall(text)]


def narrow_tools(names: Iterable[str], requests: Sequence[JsonValue]) -> set[str]:
    """Return those of `names` (exposed names) that some skill requests in its `allowed-tools` field (`requests`).

    A skill without the field requests all tools. A skill may also write a tool as `mcp__<server>__<tool>` or `<server>/<tool>`.
    """
    found = set(names)
    patterns: list[str] = []
    for request in requests:
        listed = requested_tools(request)
        if listed is None:
            return found
        patterns += [name.removeprefix("mcp__").replace("/", "__") for name in listed]
    return {name for name in found if any(fnmatchcase(name, pattern) for pattern in patterns)}
