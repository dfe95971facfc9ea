"""A long text in an answer, with the JSON that it came as: set apart when the answer is read, and written again as it came.

Encoding it anew would cost more than all else. Nothing is taken on trust: its JSON is read alone, as a string and nothing but that, and
the rest of the answer is read with a mark in its place, which must come out as a text of the result. So what is written again is the
JSON of the very text that was judged, however it was spelled.
"""

from __future__ import annotations

import contextlib
import re
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
_STRING_END = rb'[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRING = re.compile(b'"' + _STRING_END, re.DOTALL)
_REST_OF_STRING = re.compile(_STRING_END, re.DOTALL)


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A text and its JSON, quotes included."""

    text: str
    encoded: memoryview


def decode(data: bytes) -> tuple[JsonValue, tuple[bytes, ...], Verbatim | None]:
    """A message, the JSON that it was read from in parts that follow each other, and the long text of its result if it was set apart.

    Raises:
        ValueError: It is no JSON.
    """
    place = _place(data) if len(data) >= LONG_BYTES else None
    if place is None:
        return from_json(data), (data,), None
    before, encoded, after = parts = data[: place.start], data[place], data[place.stop :]
    del data  # it is there twice else, and a third time when it is read
    with contextlib.suppress(ValueError):
        message: JsonValue = from_json(b"".join((before, _MARKED, after)))
        block = _marked_block(message)
        if block is not None:
            text = block["text"] = cast("str", from_json(encoded))
            return message, parts, Verbatim(text, memoryview(encoded))
    data = b"".join(parts)
    return from_json(data), (data,), None


def _place(data: bytes) -> slice | None:
    """Where a long text may stand, quotes included: from the first string that goes beyond the beginning to where one ends near the end."""
    start = data.find(b'"', 0, ENDS_BYTES)
    while start >= 0 and (short := _STRING.match(data, start, start + ENDS_BYTES)) is not None:
        start = data.find(b'"', short.end(), ENDS_BYTES)
    edge = len(data) - ENDS_BYTES
    edge -= ENDS_BYTES - len(data[edge - ENDS_BYTES : edge].rstrip(b"\\"))  # not in the middle of an escape
    end = _REST_OF_STRING.match(data, edge)
    return slice(start, end.end()) if start >= 0 and end is not None and end.end() - start >= LONG_BYTES else None


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
