"""How large a result may be. Used by the gates of tools and of reads on every result, so it is one cheap walk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import PASS, Pass, Reject

_SCALAR_BYTES = 5
"""What a number, boolean or null is counted as: near enough, and no text has to be made of it."""


MOST_COUNTED = 3
"""A byte of JSON counts as this much at most: a digit and its comma count as a scalar and its place in a list."""


_MEDIA = frozenset({"image", "audio"})
"""Content blocks whose `data` is not text."""


def measure_bytes(value: JsonValue, limit: int) -> int:
    """About how many bytes `value` takes as compact JSON; stops counting once past `limit`.

    Strings count their UTF-8 length (escapes are not counted), so the answer is a little low for text with many quotes
    or newlines. Exact enough for a cap, and far cheaper than encoding.
    """
    total = 0
    stack: list[JsonValue] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            total += 2 + (len(item) if item.isascii() or len(item) > limit else len(item.encode("utf-8", "surrogatepass")))
        elif isinstance(item, dict):
            mapping = cast("JsonObject", item)
            total += 2 + sum([len(key) + 4 for key in mapping])
            stack.extend(mapping.values())
        elif isinstance(item, list | tuple):
            items = cast("list[JsonValue]", item)
            total += 2 + len(items)
            stack.extend(items)
        else:
            total += _SCALAR_BYTES
        if total > limit:
            return total
    return total


@dataclass(frozen=True, slots=True)
class Shorten:
    """Hand out a head of it and keep the whole: its text and data take more than the budget."""

    max_bytes: int
    """The budget of text and data."""


def judge_result(result: JsonObject, max_bytes: int, max_kept_bytes: int, encoded_bytes: int | None = None) -> Pass | Shorten | Reject:
    """How a result is handed out: as it is, shortened with the whole of it kept, or not at all.

    The budget `max_bytes` is for what a model reads as text: images, audio and binary resources do not count against it,
    because cutting them would destroy them. Everything counts against `max_kept_bytes`. A result within `max_bytes`
    altogether costs one walk, or none where it is known to have been read from `encoded_bytes` of JSON that are few enough.
    """
    if encoded_bytes is not None and encoded_bytes * MOST_COUNTED <= max_bytes:
        return PASS
    if measure_bytes(result, max_bytes) <= max_bytes:
        return PASS
    size = measure_bytes(result, max_kept_bytes)
    if size > max_kept_bytes:
        return Reject(
            "maxKeptBytes",
            f"The result is larger than the {max_kept_bytes} bytes kept here. Ask for less of it (a filter, a page, a range), "
            f"or have the operator raise `maxKeptBytes`.",
        )
    if size - media_bytes(result) <= max_bytes:
        return PASS
    return Shorten(max_bytes)


def media_bytes(result: JsonMapping) -> int:
    """Bytes of base64 in a result's images, audio and binary resources; only where the protocol has them."""
    content = result.get("content") or result.get("contents")
    blocks: list[JsonValue] = list(cast("list[JsonValue]", content)) if isinstance(content, list) else []
    messages = result.get("messages")
    if isinstance(messages, list):
        blocks += [cast("JsonMapping", m).get("content") for m in cast("list[JsonValue]", messages) if isinstance(m, dict)]
    return sum(len(text) for block in blocks if isinstance(block, dict) and (text := _media_of(cast("JsonMapping", block))))


def _media_of(block: JsonMapping) -> str:
    resource = block.get("resource")
    if block.get("type") in _MEDIA:
        data = block.get("data")
    elif isinstance(resource, dict):
        data = cast("JsonMapping", resource).get("blob")
    else:
        data = block.get("blob")
    return data if isinstance(data, str) else ""


def judge_asks(requests: JsonObject, max_bytes: int) -> Pass | Reject:
    """Let questions of up to about `max_bytes` through: they are shown to a person, so there is nothing to shorten."""
    if measure_bytes(requests, max_bytes) <= max_bytes:
        return PASS
    return Reject("maxResultBytes", f"The questions are larger than the {max_bytes} bytes allowed here (`maxResultBytes`).")
