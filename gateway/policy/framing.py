"""Marks untrusted text in prompts for people, so that nobody mistakes untrusted text for text of the gateway.

Every line of text that a server, model or tool wrote begins with `│ `. The line above the marked lines is written by the gateway and names
the author. Line ends, long lines and padding cannot produce a line without the mark. Used by every prompt for a person: relayed
elicitations, approvals, questions of workflows and remote agents, sign-ins, and the terminal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import cast

from gateway.json_types import JsonObject, JsonValue, items_of, mapped
from gateway.policy.hidden_text import MAX_TEXT_DEPTH, strip_text

BAR = "│ "
"""Prefix of each line of untrusted text in a prompt."""

MAX_COLUMNS = 76
"""Maximum terminal columns of a line of untrusted text after its prefix.

A terminal of 80 columns does not wrap a line of this length. If the terminal wrapped a line, the rest would lack the prefix.
"""

MAX_INDENT = 4
"""Maximum number of spaces that are kept at the beginning of an untrusted line."""

MAX_MARKS = 4
"""Maximum number of combining marks that are kept on one letter, because more would cover the lines above."""

MIN_COLUMNS = 20
"""Minimum number of columns of text to which `fit` wraps the lines of a prompt, even in a narrower terminal."""

_MARKS = re.compile("(?:│ ?){0,20}")

_BLANKS = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000\u3164\u115f\u1160\uffa0]")
"""Matches a space of any width, and characters that are letters but have no visible glyph."""

_SHOWN_KEYS = frozenset({"title", "description", "enumNames"})
"""Keywords of a form's schema whose texts clients only display. They are not part of the answer, so they may be changed."""


def frame(ours: str, theirs: str) -> str:
    """Return a prompt: the gateway's line `ours`, followed by the untrusted text `theirs` with the mark `│ ` before each line."""
    return "\n".join([ours, *quote(theirs)])


def quote(text: str, *, indent: str = "") -> Iterator[str]:
    """Yield the lines of an untrusted text, each with the mark `│ ` before it and wrapped to `MAX_COLUMNS` terminal columns.

    The further parts of a wrapped line begin with `indent` after the mark. Several blank lines become a single blank line, and
    blank lines at the beginning are left out.
    """
    was_blank = True
    for line in text.splitlines():
        visible = _visible(line)
        if not visible.strip():
            if not was_blank:
                yield BAR.rstrip()
            was_blank = True
            continue
        was_blank = False
        bars = _bars(visible)
        for number, part in enumerate(wrap_line(visible[len(bars) :], MAX_COLUMNS - len(bars) - len(indent))):
            yield BAR + bars + (indent if number else "") + part


def shown(text: str, limit: int) -> str:
    """Return `text` on one line, without hidden characters.

    A text of more than `limit` characters is cut, and the length of the whole text is added.
    """
    line = " ".join(_visible(" ".join(text[: limit * 4].splitlines())).split())
    return line if len(line) <= limit and len(text) <= limit * 4 else f"{line[:limit]}… ({len(text)} characters)"


def fit(text: str, columns: int) -> Iterator[str]:
    """Yield the lines of a prompt made by `frame`, wrapped to `columns` terminal columns.

    If a line is wrapped, every part begins with all marks `│ ` of the line.
    """
    for line in text.split("\n"):
        bars = _bars(line)
        for part in wrap_line(line[len(bars) :], max(MIN_COLUMNS, columns - len(bars) - 1)):
            yield f"{bars}{part}"


def _bars(line: str) -> str:
    """Return all marks `│ ` at the beginning of a line. Other gateways, or the author of the text, may have written some of them."""
    found = _MARKS.match(line)
    return found.group() if found is not None else ""


def one_line_texts(schema: JsonValue, depth: int = 0) -> JsonValue:
    """Return a form's schema in which each title and description is on one line, also in `enumNames`; `schema` itself if nothing changes.

    The values that the form offers or accepts are not changed. `depth` is the nesting of `schema` in the whole schema. A part of the schema
    that is nested deeper than `MAX_TEXT_DEPTH` becomes `None`.
    """
    if depth > MAX_TEXT_DEPTH:
        return None
    if isinstance(schema, list):
        return mapped(items_of(schema), lambda item: one_line_texts(item, depth + 1))
    if not isinstance(schema, dict):
        return schema
    node = cast("JsonObject", schema)
    changed = {key: value for key, old in node.items() if (value := _one_line(key, old, depth)) is not old}
    return {**node, **changed} if changed else node


def _one_line(key: str, value: JsonValue, depth: int) -> JsonValue:
    if key in _SHOWN_KEYS and isinstance(value, str):
        line = " ".join(_visible(" ".join(value.splitlines())).split())
        return value if line == value else line
    if key in _SHOWN_KEYS and isinstance(value, list):
        return mapped(items_of(value), lambda item: _one_line("title", item, depth + 1))
    return one_line_texts(value, depth + 1)


def _visible(line: str) -> str:
    """Return a line without hidden characters, with single spaces between words and at most `MAX_INDENT` spaces at its beginning."""
    clean = _BLANKS.sub(" ", strip_text(line).expandtabs(4))
    indent = min(MAX_INDENT, len(clean) - len(clean.lstrip()))
    return " " * indent + " ".join(clean.split())


def wrap_line(line: str, columns: int) -> list[str]:
    """Split a line into parts of at most `columns` columns, between words if possible. Drops combining marks beyond `MAX_MARKS`."""
    parts: list[str] = []
    part, width, marks, cut = "", 0, 0, 0
    for character in line:
        wide = _character_columns(character)
        marks = marks + 1 if wide == 0 else 0
        if marks > MAX_MARKS:
            continue
        if width + wide > columns:
            head, part = (part[:cut], part[cut:]) if cut else (part, "")
            parts.append(head.rstrip())
            width, cut = columns_of(part), 0
        part, width = part + character, width + wide
        if character == " " and part.strip():
            cut = len(part)
    return [*parts, part.rstrip()] if part.strip() or not parts else parts


def columns_of(text: str) -> int:
    """Return the number of terminal columns of a text."""
    return len(text) if text.isascii() else sum(map(_character_columns, text))


def _character_columns(character: str) -> int:
    """Return the number of terminal columns of a character."""
    if character.isascii():
        return 1
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
