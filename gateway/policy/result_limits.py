"""Limits on the size of results. Every result of a tool or read is judged, so the size is estimated in one cheap walk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue, members_of, objects_in
from gateway.policy.decision import PASS, Pass, Reject

_SCALAR_BYTES = 5
"""Estimated size of a number, boolean or null; accurate enough without encoding it."""

MOST_COUNTED = 3
"""Upper bound of `measure_bytes` per byte of JSON: `1,` has two bytes and counts as a scalar (5) and a separator (1)."""

_MEDIA = frozenset({"image", "audio"})
"""Content blocks whose `data` is not text."""


def measure_bytes(value: JsonValue, limit: int) -> int:
    """Estimate the size of `value` as compact JSON in bytes; stop counting above `limit`.

    Strings count their UTF-8 length without escapes, so the estimate is slightly low for text with many quotes or line breaks. It is
    accurate enough for a limit and much cheaper than encoding.
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
    """Verdict that text and data of a result exceed the limit: return the beginning of the result and store the whole."""

    max_bytes: int
    """Size to which the text and data of the result are shortened."""


def judge_result(result: JsonObject, max_bytes: int, max_kept_bytes: int, encoded_bytes: int | None = None) -> Pass | Shorten | Reject:
    """Decide whether a result is returned whole, shortened with the whole stored, or rejected.

    `max_bytes` limits what a model reads as text: images, audio and binary resources do not count, because cutting would destroy them.
    Everything counts towards `max_kept_bytes`. A result within `max_bytes` costs one walk. It costs none if `encoded_bytes`, the size
    of the JSON from which the result was decoded, is known and small enough.
    """
    if encoded_bytes is not None and encoded_bytes * MOST_COUNTED <= max_bytes:
        return PASS
    if measure_bytes(result, max_bytes) <= max_bytes:
        return PASS
    size = measure_bytes(result, max_kept_bytes)
    if size > max_kept_bytes:
        return Reject(
            "maxKeptBytes",
            f"The result exceeds the {max_kept_bytes} bytes that are stored here. Request less of it (a filter, a page, a range), "
            f"or have the operator raise `maxKeptBytes`.",
        )
    if size - media_bytes(result) <= max_bytes:
        return PASS
    return Shorten(max_bytes)


def media_bytes(result: JsonMapping) -> int:
    """Return the size of base64 data in a result's images, audio and binary resources, as far as the protocol defines them."""
    blocks = objects_in(result.get("content") or result.get("contents"))
    blocks += [members_of(message.get("content")) for message in objects_in(result.get("messages"))]
    return sum(len(_media_of(block)) for block in blocks)


def _media_of(block: JsonMapping) -> str:
    resource = block.get("resource")
    if block.get("type") in _MEDIA:
        data = block.get("data")
    elif isinstance(resource, dict):
        data = cast("JsonMapping", resource).get("blob")
    else:
        data = block.get("blob")
    return data if isinstance(data, str) else ""


def judge_input_request(requests: JsonObject, max_bytes: int) -> Pass | Reject:
    """Accept requests for input of up to about `max_bytes`: a person sees them, so they cannot be shortened."""
    if measure_bytes(requests, max_bytes) <= max_bytes:
        return PASS
    return Reject("maxResultBytes", f"The questions are larger than the {max_bytes} bytes allowed here (`maxResultBytes`).")
