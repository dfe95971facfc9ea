"""Selects a part of a stored result: a page, a range of lines, the value at a JSON Pointer, or the matches of a search.

All functions take time linear in the size of the result: a search is for plain text, never for a caller's regular expression. Used by
`read_result`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import cast

from gateway.errors import ToolFailed
from gateway.gate.shapes import describe_json
from gateway.json_types import JsonMapping, JsonValue

MAX_MATCHES = 50
"""Maximum number of matches that one search in a stored result returns."""

PART_CHARACTERS = 262_144
"""Maximum number of characters that `encode_parts` encodes at once, because encoding blocks all other threads."""

_RANGE = re.compile(r"^\s*(\d{1,12})\s*(?:-\s*(\d{1,12})?\s*)?$")
_INDEX = re.compile(r"^(?:0|[1-9]\d{0,11})$")


def decode(data: bytes) -> str:
    """Decode the bytes of a stored result to text. Unlike strict UTF-8, this also decodes lone surrogates."""
    return data.decode("utf-8", "surrogatepass")


def encode(text: str) -> bytes:
    """Encode the text of a result to the bytes that are stored: UTF-8 that may also contain lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def encode_parts(text: str) -> list[bytes]:
    """Encode the text of a result to the bytes that are stored, piece by piece, because encoding a piece blocks all other threads."""
    return [encode(text[start : start + PART_CHARACTERS]) for start in range(0, max(1, len(text)), PART_CHARACTERS)]


def page_bounds(size: int, page: int, page_size: int) -> tuple[int, int]:
    """Return the byte offsets at which a page of a stored result starts and ends (exclusive). Pages count from 1.

    `size` is the size of the result in bytes. The offsets may be inside a character; `whole_characters` moves them.

    Raises:
        ToolFailed: The result has fewer pages.
    """
    pages = page_count(size, page_size)
    if not 1 <= page <= pages:
        raise ToolFailed(f"Page {page} does not exist: with `page_size` {page_size} this has {pages} page{'' if pages == 1 else 's'}.")
    return (page - 1) * page_size, min(size, page * page_size)


def page_count(size: int, page_size: int) -> int:
    """Return the number of pages of a stored result of `size` bytes. An empty result has one page."""
    return max(1, -(-size // page_size))


def whole_characters(data: bytes, start: int, end: int, offset: int = 0) -> bytes:
    """Return bytes `start` to `end` of a stored result, without splitting a UTF-8 character.

    A bound inside a character is moved to the end of the character, so that adjacent slices join without loss. `data` is the part of the
    result from byte `offset` to at least three bytes past `end`, or to the end of the result.
    """
    start, end = start - offset, end - offset
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    while end < len(data) and data[end] & 0xC0 == 0x80:
        end += 1
    return data[start:end]


def lines_of(body: bytes, spec: str) -> str:
    """Return a range of lines of a stored result, without the last line break. Lines count from 1.

    `spec` is `a-b` (both included), `a-` (to the end), or `a` (one line).

    Raises:
        ToolFailed: The range is malformed, or starts after the last line.
    """
    match = _RANGE.match(spec)
    if match is None or int(match[1]) < 1 or (match[2] and int(match[2]) < int(match[1])):
        raise ToolFailed(f"{spec[:40]!r} is not a range of lines; write it like '1-200', '40', or '1000-'.")
    first = int(match[1])
    last = int(match[2]) if match[2] else None if "-" in spec else first
    total = body.count(b"\n") + 1
    if first > total:
        raise ToolFailed(f"Line {first} does not exist: this has {total} line{'' if total == 1 else 's'}.")
    parts = body.split(b"\n") if last is None else body.split(b"\n", last)
    return decode(b"\n".join(parts[first - 1 : last]))


def at_pointer(body: bytes, pointer: str) -> str:
    """Return the value of a stored JSON result at a JSON Pointer (RFC 6901): a string unquoted, any other value as JSON.

    Raises:
        ToolFailed: The result is not JSON, or has no value at the pointer; the text describes the nearest value.
    """
    value = parse_json(body)
    if pointer and not pointer.startswith("/"):
        raise ToolFailed(f"{pointer[:80]!r} is not a JSON Pointer; write it like '/items/0/name' ('' is the whole).")
    walked = ""
    for raw in pointer.split("/")[1:]:
        key = raw.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = cast("JsonMapping", value)[key]
        elif isinstance(value, list) and _INDEX.match(key) and int(key) < len(cast("list[JsonValue]", value)):
            value = cast("list[JsonValue]", value)[int(key)]
        else:
            missing = f"{walked}/{raw}"[:200]
            raise ToolFailed(f"The result has no value at {missing!r}. At {walked[:200]!r} there is:\n{describe_json(value, 1_000)}")
        walked = f"{walked}/{raw}"
    return value if isinstance(value, str) else to_json(value)


def parse_json(body: bytes) -> JsonValue:
    """Parse a stored result as JSON.

    Raises:
        ToolFailed: The result is not JSON.
    """
    try:
        return json.loads(decode(body))
    except (ValueError, RecursionError):
        raise ToolFailed("This result is not JSON, so `pointer` does not apply; use `page`, `lines` or `search`.") from None


def to_json(value: JsonValue) -> str:
    """Encode a value as compact JSON text, the form in which structured content is stored."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Found:
    """One match of a search in a stored result."""

    line: int
    offset: int
    """Position of the match in the stored result, in bytes."""
    excerpt: str


def search(body: bytes, words: str, context: int) -> tuple[list[Found], int]:
    """Find `words` in a stored result, ignoring case. Return the first `MAX_MATCHES` matches, and the number of all matches.

    An excerpt has up to `context` characters on either side of its match.
    """
    text = decode(body)
    found: list[Found] = []
    total, position, line, offset = 0, 0, 1, 0
    for match in re.finditer(re.escape(words), text, re.IGNORECASE):
        total += 1
        if len(found) < MAX_MATCHES:
            before = text[position : match.start()]
            line += before.count("\n")
            offset += len(encode(before))
            position = match.start()
            found.append(Found(line, offset, text[max(0, match.start() - context) : match.end() + context]))
    return found, total
