"""Interprets the field `allowed-tools` of skills, with which a skill reduces the tools of an agent that follows the skill.

The field never adds tools. It has an effect only for agents that set `narrow-to-skills`, and for `SkillsProvider` with `narrow_to_skills`.
The functions are pure. Used by `agents` and `skills`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import cast

from gateway.json_types import JsonValue

_WISH = re.compile(r"[^\s,()]+(?:\([^)]*\))?")


def requested_tools(value: JsonValue) -> list[str] | None:
    """Return the tool names and globs in a skill's field `allowed-tools` (text or list), or `None` if the field is absent.

    In other MCP hosts, text in parentheses after a name, as in `Bash(git:*)`, restricts the tool's arguments. The gateway ignores this
    text: the result contains `Bash`.
    """
    if value is None:
        return None
    texts = cast("list[JsonValue]", value) if isinstance(value, list) else [value]
    return [request.partition("(")[0] for text in texts if isinstance(text, str) for request in _WISH.findall(text)]


def narrow_tools(names: Iterable[str], requests: Sequence[JsonValue]) -> set[str]:
    """Return the tools among `names` that at least one skill requests.

    `names` are the names of an agent's tools as clients see them. `requests` are the values of the skills' fields `allowed-tools`: names or
    globs, also in the forms `mcp__<server>__<tool>` and `<server>/<tool>`. A skill without the field requests all tools.
    """
    found = set(names)
    patterns: list[str] = []
    for request in requests:
        listed = requested_tools(request)
        if listed is None:
            return found
        patterns += [name.removeprefix("mcp__").replace("/", "__") for name in listed]
    return {name for name in found if any(fnmatchcase(name, pattern) for pattern in patterns)}
