"""Long texts in answers, with the JSON that they came as: written again as they are, where encoding them would cost more than all else.

Nothing is taken on trust: a text's own JSON is used only where it is certain to be read as the very text that was judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic_core import to_json

from gateway.json_types import JsonMapping, JsonObject, JsonValue

LONG_BYTES = 65_536
"""Of a text; shorter ones are encoded sooner than they are found."""

_QUOTE = ord('"')
_MARK = "\x02moongate\x03"
_MARKED = to_json(_MARK)


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A text and its JSON, quotes included."""

    text: str
    encoded: memoryview


def verbatim_of(message: JsonObject, encoded: bytes) -> Verbatim | None:
    """The long text of the result in `message` as it stands in `encoded`, which `message` was read from; `None` where it is not certain."""
    if len(encoded) < LONG_BYTES:
        return None
    result: JsonValue = message.get("result")
    index = _longest(cast("JsonMapping", result)) if isinstance(result, dict) else None
    if index is None:
        return None
    content = cast("list[JsonObject]", result["content"])
    block = content[index]
    text = cast("str", block["text"])
    if b"\\" not in encoded:  # then every text stands there as it is
        return Verbatim(text, memoryview(b'"%s"' % text.encode()))
    if not text.isascii():
        return None
    marked: JsonObject = {**message, "result": {**result, "content": [*content[:index], {**block, "text": _MARK}, *content[index + 1 :]]}}
    for around in (to_json(marked), json.dumps(marked).encode()):
        before, mark, after = around.partition(_MARKED)
        if mark and encoded.startswith(before) and encoded.endswith(after) and len(before) + len(after) < len(encoded):
            start, end = len(before), len(encoded) - len(after)
            return Verbatim(text, memoryview(encoded)[start:end]) if _is_json_of(text, encoded, start, end) else None
    return None


def _longest(result: JsonMapping) -> int | None:
    """Which block of the content has a long text, the longest of all."""
    content = result.get("content")
    best, length = None, LONG_BYTES - 1
    for index, block in enumerate(cast("list[JsonValue]", content) if isinstance(content, list) else ()):
        text = cast("JsonMapping", block).get("text") if isinstance(block, dict) else None
        if isinstance(text, str) and len(text) > length:
            best, length = index, len(text)
    return best


def _is_json_of(text: str, encoded: bytes, start: int, end: int) -> bool:
    """Whether what stands there in `encoded`, in the place of the value of `text`, and was read as one or more values, is its JSON alone.

    An escape of two characters is one longer than what it stands for, and has one backslash more; any other escape, and whatever stands
    beside the text (a second value under the same name, say), makes it longer than that. So lengths and backslashes that agree leave
    room for nothing else.
    """
    if end - start < 2 or encoded[start] != _QUOTE or encoded[end - 1] != _QUOTE:
        return False
    return end - start - 2 == len(text) + encoded.count(b"\\", start, end) - text.count("\\")


def encode_around(value: JsonObject, verbatim: Verbatim | None) -> Sequence[bytes | memoryview]:
    """JSON of an answer in parts that follow each other; where its result has the text of `verbatim`, that is written as it came.

    Raises:
        ValueError: Half a character is in it.
    """
    result = cast("JsonMapping", value["result"])
    content = cast("Sequence[JsonMapping]", result["content"])
    at = [index for index, block in enumerate(content) if verbatim is not None and block.get("text") is verbatim.text]
    if verbatim is None or len(at) != 1:
        return (to_json(value),)
    [index] = at
    marked: list[Mapping[str, JsonValue]] = [*content[:index], {**content[index], "text": _MARK}, *content[index + 1 :]]
    parts = to_json({**value, "result": {**result, "content": marked}}).split(_MARKED)
    return (parts[0], verbatim.encoded, parts[1]) if len(parts) == 2 else (to_json(value),)
