"""Quotes a server's text inside a text of the gateway, so that no quoted line can be mistaken for the gateway's.

Every quoted line starts with `MARK`: a text cannot produce a heading, a code fence or a copy of our sentences without it. Pure; used
wherever the gateway's texts include a server's.
"""

from __future__ import annotations

import re

from gateway.policy.hidden_text import strip_text

MARK = "| "
"""Prefix of every quoted line."""

_PADDING = re.compile(r"(?<=\S)[^\S\n]{4,}(?=\S)")
"""Whitespace within a line that could push the following text out of view."""

_BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
"""Characters other than a line feed that a reader may treat as a line break."""


def quote_text(text: str, *, max_chars: int, max_lines: int) -> str:
    """Return `text` with `MARK` before every line, without hidden characters and padding, cut at either limit.

    Runs of empty lines become one empty line; a last line reports that text was cut.
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
