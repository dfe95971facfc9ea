"""A long text (or image, or sound) in an answer, with its JSON: set apart when the answer is read, and written again as it came.

Encoding it anew would cost more than all else. Nothing is taken on trust: its JSON is read alone, as a string and nothing but that, and
the rest of the answer is read with a mark in its place, which must come out as a text of the result. So what is written again is the
JSON of the very text that was judged, however it was spelled. Many servers give a text twice, as a block and as structured content: it is
read once where both are spelled the same.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from pydantic_core import from_json, to_json

from gateway.json_types import JsonMapping, JsonObject, JsonValue

LONG_BYTES = 65_536
"""Of the JSON of a text; shorter ones are encoded sooner than they are found."""

ENDS_BYTES = 4096
"""The text begins among the first bytes of an answer and ends among the last, so many each, or it is not set apart."""

SLICE_BYTES = 262_144
"""Of a JSON string that are read at once."""

ESCAPES_BYTES = 12
"""Of two escapes that stand for one character."""

WINDOW_BYTES = 64
"""Looked at before a boundary."""

MAX_STEPS = 4096
"""How far a boundary is searched for."""

_ENDS_IN_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\u(?![dD][89abAB])[0-9a-fA-F]{4}\Z")
"""A whole escape, and not the first of two that stand for one character."""

_MARK = secrets.token_hex(16)
"""Known to nobody, so that nobody's answer holds it."""

_MARKED = to_json(_MARK)

_Part = TypeVar("_Part")

_BACKSLASH = ord("\\")  # a number is found at once


@dataclass(frozen=True, slots=True)
class LongText:
    """A text and its JSON, quotes included."""

    text: str
    encoded: memoryview
    holders: Sequence[tuple[JsonObject, str]]
    """The objects of the result that hold the text, each with the key."""


Decoded = tuple[JsonValue, tuple[bytes, ...], LongText | None]
"""A message, the JSON that it was read from in parts that follow each other, and the long text of its result if it was set apart."""


def decode(data: bytes) -> Decoded:
    """As `decode_parts`, of a message in one piece."""
    return (from_json(data), (data,), None) if len(data) < LONG_BYTES else decode_parts([data])


def decode_parts(parts: list[bytes]) -> Decoded:
    """Read a message.

    Takes over `parts`, the JSON in pieces as it came: a long text is put together once, by itself.

    Raises:
        ValueError: It is no JSON.
    """
    if len(parts) == 1 and len(parts[0]) < LONG_BYTES:
        return decode(parts[0])
    size = sum(map(len, parts))
    place = _place(parts, size) if size >= LONG_BYTES else None
    if place is not None:
        with contextlib.suppress(ValueError):
            found = _apart(parts, size, *place)
            if found is not None:
                return found
    data = b"".join(parts)
    return from_json(data), (data,), None


def decode_lean(parts: list[bytes]) -> JsonValue:
    """Read a message of which nothing is written again as it came: in less memory than `decode_parts`. Takes over `parts`.

    Raises:
        ValueError: It is not JSON.
    """
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    parts.clear()
    apart = _lean(data)
    if apart is None:
        return from_json(data)
    del data  # the decoded text may take four times its bytes
    message, node, name, text = apart
    node[name] = text.decode()
    return message


def _lean(data: bytes) -> tuple[JsonValue, JsonObject, str, bytearray] | None:
    """A message without its long text, the place of this text, and the text in UTF-8; `None` if it cannot be set apart."""
    place = _place([data], len(data)) if len(data) >= LONG_BYTES else None
    if place is None:
        return None
    start, stop = place
    try:
        message: JsonValue = from_json(data[:start] + _MARKED + data[stop:])
        marked = _marked(message)
        return (message, *marked[0], _utf8(memoryview(data)[start:stop])) if len(marked) == 1 else None
    except ValueError:
        return None


def _apart(parts: list[bytes], size: int, start: int, stop: int) -> Decoded | None:
    """What is read with the text between these set apart, or the two texts if it is twice the same; nothing where it cannot be."""
    gap = _gap(parts, start, stop)
    between = [] if gap is None else [_cut(parts, *gap)]
    around = [_cut(parts, 0, start), *between, _cut(parts, stop, size)]
    message: JsonValue = from_json(_MARKED.join(around))
    marked = _marked(message)
    if len(marked) != len(around) - 1:
        return None
    encoded = _cut(parts, start, stop if gap is None else gap[0])
    if gap is not None and encoded != _cut(parts, gap[1], stop):
        return None
    parts[:] = _joined(around, encoded)  # it is there twice else, and a third time when it is read
    text = _text(encoded)
    for node, name in marked:
        node[name] = text
    return message, tuple(parts), LongText(text, memoryview(encoded), marked)


def _text(encoded: bytes) -> str:
    """The text of a JSON string. A long one is read in slices, because other threads run only between two of them.

    Raises:
        ValueError: It is not a JSON string.
    """
    if len(encoded) <= SLICE_BYTES:
        return cast("str", from_json(encoded))
    return "".join(_slices(encoded))


def _utf8(encoded: memoryview) -> bytearray:
    """As `_text`, in UTF-8."""
    found = bytearray()
    for part in _slices(encoded):
        found += part.encode()
    return found


def _slices(encoded: bytes | memoryview) -> Iterator[str]:
    start, end = 1, len(encoded) - 1
    while start < end:
        stop = _boundary(encoded, start, start + SLICE_BYTES) if end - start > SLICE_BYTES else end
        yield cast("str", from_json(b'"%b"' % encoded[start:stop]))
        start = stop


def _boundary(encoded: bytes | memoryview, start: int, near: int) -> int:
    """A place shortly before `near` that is neither within an escape, or two that belong together, nor within a character.

    `start` is such a place.

    Raises:
        ValueError: There is none near enough.
    """
    for stop in range(near, near - MAX_STEPS, -1):
        before = bytes(encoded[max(start, stop - WINDOW_BYTES) : stop])
        backslashes = len(before) - len(before.rstrip(b"\\"))
        if encoded[stop] & 0xC0 == 0x80 or backslashes % 2 or backslashes == WINDOW_BYTES:
            continue
        if before.find(b"\\u", -ESCAPES_BYTES) < 0 or _ENDS_IN_ESCAPE.search(before):
            return stop
    raise ValueError("no boundary")


def _place(parts: Sequence[bytes], size: int) -> tuple[int, int] | None:
    """Where a long text may stand, quotes included: from the first string that goes beyond the beginning to where one ends near the end."""
    head = _unescaped(_cut(parts, 0, 2 * ENDS_BYTES))
    start = head.find(b'"', 0, ENDS_BYTES)
    while start >= 0 and (end := head.find(b'"', start + 1, start + ENDS_BYTES)) >= 0:
        start = head.find(b'"', end + 1, ENDS_BYTES)
    if start < 0:
        return None
    tail = _cut(parts, size - 2 * ENDS_BYTES, size)
    edge = len(tail[:ENDS_BYTES].rstrip(b"\\"))  # not in the middle of an escape
    end = _unescaped(tail[edge:]).find(b'"')
    stop = size - 2 * ENDS_BYTES + edge + end + 1
    return (start, stop) if end >= 0 and stop - start >= LONG_BYTES else None


def _unescaped(data: bytes) -> bytes:
    """As long as `data`, without the quotes that end no string. A search for the others takes a tenth of one that knows escapes."""
    return data.replace(b"\\\\", b"__").replace(b'\\"', b"__") if _BACKSLASH in data else data


def _cut(parts: Sequence[bytes], start: int, stop: int) -> bytes:
    """What stands there in what the parts are together."""
    found: list[bytes | memoryview] = []
    at = 0
    for part in parts:
        end = at + len(part)
        if start <= at and end <= stop:
            found.append(part)
        elif at < stop and start < end:
            found.append(memoryview(part)[max(start - at, 0) : stop - at])
        at = end
    if stop - start <= SLICE_BYTES:
        return b"".join(found)
    whole = bytearray(sum(map(len, found)))
    at = 0
    for part in found:  # a join copies all of it at once, while no other thread runs
        whole[at : at + len(part)] = part
        at += len(part)
    return cast("bytes", whole)  # only read from here on


def _gap(parts: Sequence[bytes], start: int, stop: int) -> tuple[int, int] | None:
    """Where the first of two long texts would end and the second begin, if both are as long as each other and nothing else is."""
    middle = (start + stop) // 2
    near = _cut(parts, middle - ENDS_BYTES, middle + ENDS_BYTES)
    end = near.rfind(b'"', 0, max(near.find(b'"structuredContent"'), 0)) + 1
    first_stop = middle - ENDS_BYTES + end
    last_start = stop - (first_stop - start)
    return (first_stop, last_start) if end and first_stop < last_start else None


def _marked(message: JsonValue) -> list[tuple[JsonObject, str]]:
    """The blocks of the result, and its structured content, that have the mark for a text, and by which name."""
    result: JsonValue = cast("JsonMapping", message).get("result") if isinstance(message, dict) else None
    if not isinstance(result, dict):
        return []
    content: JsonValue = cast("JsonMapping", result).get("content")
    nodes = [*(cast("list[JsonValue]", content) if isinstance(content, list) else ()), cast("JsonMapping", result).get("structuredContent")]
    return [(node, name) for node in nodes if isinstance(node, dict) for name, item in cast("JsonObject", node).items() if item == _MARK]


def encode_around(value: JsonObject, long_text: LongText) -> Sequence[bytes | memoryview]:
    """JSON of an answer in parts that follow each other; where its result has the text of `long_text`, that is written as it came.

    Raises:
        ValueError: Half a character is in it.
    """
    result = cast("JsonObject", value["result"])
    content, structured = cast("Sequence[JsonMapping]", result["content"]), result.get("structuredContent")
    marked: JsonObject = {**result, "content": [_with_mark(block, long_text.text) for block in content]}
    if isinstance(structured, dict):
        marked["structuredContent"] = _with_mark(cast("JsonMapping", structured), long_text.text)
    return _joined(to_json({**value, "result": marked}).split(_MARKED), long_text.encoded)


def _with_mark(node: JsonMapping, text: str) -> JsonMapping:
    for item in node.values():
        if item is text:
            return {name: _MARK if item is text else item for name, item in node.items()}
    return node


def _joined(around: Sequence[_Part], between: _Part) -> list[_Part]:
    """These, with the other one between each two."""
    found = [around[0]]
    for part in around[1:]:
        found += (between, part)
    return found
