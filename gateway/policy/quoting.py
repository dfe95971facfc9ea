"""Quotes a server's text inside a text that the gateway writes for models, so that no quoted line looks like a line of the gateway.

Every quoted line starts with `| `, so a server's text cannot produce a heading, a code fence or a copy of the gateway's sentences without
this mark. `catalog.instructions` quotes in this way the instructions that servers send.
"""

from __future__ import annotations

import re

from gateway.policy.hidden_text import strip_text

MARK = "| "
"""Prefix of every line of a quoted text."""

_PADDING = re.compile(r"(?<=\S)[^\S\n]{4,}(?=\S)")
"""Matches a run of whitespace between two texts of a line. The run is so long that it could push the second text out of view."""

_BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
"""Matches a character, other than a line feed, that a reader may treat as a line break."""


def quote_text(text: str, *, max_chars: int, max_lines: int) -> str:
    """Return `text` as a quotation: with `| ` before every line, and without hidden characters and padding.

    The text is cut to `max_chars` characters and `max_lines` lines. If it was cut, a last line says that the rest is left out. Runs of
    empty lines become one empty line, and empty lines at the beginning and end are left out.
    """
    lines: list[str] = []
    for line in strip_text(_BREAKS.sub("\n", text[:max_chars])).split("\n"):
        clean = _PADDING.sub("   ", line.rstrip())
        if clean or (lines and lines[-1]):
            lines.append(clean)
    while lines and not lines[-1]:
        lines.pop()
    if len(text) > max_chars or len(lines) > max_lines:
        lines = [*lines[:max_lines], "… (the rest is left out)"]
    return "\n".join(f"{MARK}{line}".rstrip() for line in lines)
