"""Quotes a server's text inside a text of ours, so that no line of it can be taken for one of our lines.

Every quoted line starts with `MARK`. A heading, a fence or a copy of our own sentences stays behind the mark, because a text cannot
write a line without it. Pure; used wherever a server's words stand among the gateway's own.
"""

from __future__ import annotations

import re

from gateway.policy.hidden_text import strip_text

MARK = "| "
"""Starts every line of a quotation."""

_PADDING = re.compile(r"(?<=\S)[^\S\n]{4,}(?=\S)")
"""Whitespace within a line that could push what follows out of view."""

_BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
"""Everything besides a line feed that a reader may take for the end of a line."""


def quote_text(text: str, *, max_chars: int, max_lines: int) -> str:
    """Return `text` with `MARK` before every line: without hidden characters and padding, cut at either bound.

    Runs of empty lines become one empty line; a last line says that something was cut.
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
