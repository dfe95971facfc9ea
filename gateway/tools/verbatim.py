"""A long text in an answer, with the JSON that it came as: set apart when the answer is read, and written again as it came.

Encoding it anew would cost more than all else. Nothing is taken on trust: its JSON is read alone, as a string and nothing but that, and
the rest of the answer is read with a mark in its place, which must come out as a text of the result. So what is written again is the
JSON of the very text that was judged, however it was spelled.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic_core import from_json, to_json

from gateway.json_types import JsonMapping, JsonObject, JsonValue

LONG_BYTES = 65_536
"""Of the JSON of a text; shorter ones are encoded sooner than they are found."""

ENDS_BYTES = 4096
"""The text begins among the first bytes of an answer and ends among the last, so many each, or it is not set apart."""

_MARK = secrets.token_hex(16)
"""Known to nobody, so that nobody's answer holds it."""

_MARKED = to_json(_MARK)


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A text and its JSON, quotes included."""

    text: str
    encoded: memoryview


def decode(data: bytes) -> tuple[JsonValue, tuple[bytes, ...], Verbatim | None]:
    """As `decode_parts`, of a message in one piece."""
    return (from_json(data), (data,), None) if len(data) < LONG_BYTES else decode_parts([data])


def decode_parts(parts: list[bytes]) -> tuple[JsonValue, tuple[bytes, ...], Verbatim | None]:
    """A message, the JSON that it was read from in parts that follow each other, and the long text of its result if it was set apart.

    Takes over `parts`, the JSON in pieces as it came: a long text is put together once, by itself.

    Raises:
        ValueError: It is no JSON.
    """
    if len(parts) == 1 and len(parts[0]) < LONG_BYTES:
        return decode(parts[0])
    size = sum(map(len, parts))
    place = _place(parts, size) if size >= LONG_BYTES else None
    if place is not None:
        start, stop = place
        before, after = _cut(parts, 0, start), _cut(parts, stop, size)
        with contextlib.suppress(ValueError):
            message: JsonValue = from_json(b"".join((before, _MARKED, after)))
            block = _marked_block(message)
            if block is not None:
                encoded = _cut(parts, start, stop)
                parts[:] = before, encoded, after  # it is there twice else, and a third time when it is read
                text = block["text"] = cast("str", from_json(encoded))
                return message, (before, encoded, after), Verbatim(text, memoryview(encoded))
    data = b"".join(parts)
    return from_json(data), (data,), None


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
    return data.replace(b"\\\\", b"__").replace(b'\\"', b"__")


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
    return b"".join(found)


def _marked_block(message: JsonValue) -> JsonObject | None:
    """The block of the result that has the mark for its text."""
    result: JsonValue = cast("JsonMapping", message).get("result") if isinstance(message, dict) else None
    content: JsonValue = cast("JsonMapping", result).get("content") if isinstance(result, dict) else None
    for block in cast("list[JsonValue]", content) if isinstance(content, list) else ():
        if isinstance(block, dict) and (found := cast("JsonObject", block)).get("text") == _MARK:
            return found
    return None


def encode_around(value: JsonObject, verbatim: Verbatim) -> Sequence[bytes | memoryview]:
    """JSON of an answer in parts that follow each other; where its result has the text of `verbatim`, that is written as it came.

    Raises:
        ValueError: Half a character is in it.
    """
    result = cast("JsonMapping", value["result"])
    content = cast("Sequence[JsonMapping]", result["content"])
    marked: list[Mapping[str, JsonValue]] = [{**block, "text": _MARK} if block.get("text") is verbatim.text else block for block in content]
    parts = to_json({**value, "result": {**result, "content": marked}}).split(_MARKED)
    return (parts[0], verbatim.encoded, parts[1]) if len(parts) == 2 else (to_json(value),)
