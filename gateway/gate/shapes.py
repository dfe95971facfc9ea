"""Describes a large JSON value or text in a few lines, so that a model can choose which part of it to read. Used by `gate.results`."""

from __future__ import annotations

import json
from typing import cast

from gateway.json_types import JsonMapping, JsonValue

MAX_DEPTH = 3
"""Maximum levels of nesting that the description of a large JSON value shows to a model."""

MAX_KEYS = 15
"""Maximum number of keys of one JSON object that the description of a large JSON value shows to a model."""

_MAX_KEY_CHARS = 60
_SLICE = 262_144
"""Maximum number of characters that `describe_text` splits into lines at once, to save memory."""
_SAMPLE = 50
"""Number of items at the start of a JSON array from which its description is derived."""


def describe_json(value: JsonValue, max_chars: int) -> str:
    """Describe a decoded JSON value in about `max_chars` characters: types, lengths and keys, one per line, `MAX_DEPTH` levels deep."""
    lines: list[str] = []
    _describe("", value, 0, lines)
    return _fit(lines, max_chars)


def describe_text(text: str) -> str:
    """Describe a text by the number of its lines, and the length of its longest line."""
    count = longest = begun = 0
    """Number of line breaks, characters of the longest line, and characters so far of the line that continues in the next slice."""
    for start in range(0, len(text), _SLICE):  # a list of all lines may take more memory than the text
        lines = text[start : start + _SLICE].split("\n")
        count += len(lines) - 1
        lengths = [begun + len(lines[0]), *map(len, lines[1:])]
        longest, begun = max(longest, *lengths), lengths[-1]
    return f"text, {count + 1:,} line{'' if not count else 's'}, the longest has {longest:,} characters"


def _describe(label: str, value: JsonValue, depth: int, lines: list[str]) -> None:
    lines.append(f"{'  ' * depth}{label}{_name(value)}")
    if depth >= MAX_DEPTH:
        return
    if isinstance(value, list):
        items = cast("list[JsonValue]", value)
        nested: list[JsonValue] = [item for item in items[:_SAMPLE] if isinstance(item, dict | list) and item]
        if nested:
            _describe("each like: " if len(items) > 1 else "", nested[0], depth + 1, lines)
    elif isinstance(value, dict):
        mapping = cast("JsonMapping", value)
        for key in list(mapping)[:MAX_KEYS]:
            _describe(f"{json.dumps(key[:_MAX_KEY_CHARS])}: ", mapping[key], depth + 1, lines)
        if len(mapping) > MAX_KEYS:
            lines.append(f"{'  ' * (depth + 1)}… {len(mapping) - MAX_KEYS:,} more keys")


def _name(value: JsonValue) -> str:
    if isinstance(value, dict):
        count = len(cast("JsonMapping", value))
        return f"object, {count:,} key{'' if count == 1 else 's'}"
    if isinstance(value, list):
        items = cast("list[JsonValue]", value)
        kinds = sorted({_kind(item) for item in items[:_SAMPLE]})
        kinds_text = f" ({' or '.join(kinds)})" if kinds else ""
        return f"array, {len(items):,} item{'' if len(items) == 1 else 's'}{kinds_text}"
    return f"string, {len(value):,} characters" if isinstance(value, str) else _kind(value)


def _kind(value: JsonValue) -> str:
    match value:
        case dict():
            return "object"
        case list():
            return "array"
        case str():
            return "string"
        case bool():
            return "boolean"
        case None:
            return "null"
        case _:
            return "number"


def _fit(lines: list[str], max_chars: int) -> str:
    kept: list[str] = []
    for line in lines:
        if sum(map(len, kept)) + len(line) > max_chars:
            kept.append("…")
            break
        kept.append(line)
    return "\n".join(kept)
