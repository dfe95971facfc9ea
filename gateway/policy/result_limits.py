"""Estimates the size of results and decides whether a result is returned whole, shortened or rejected.

Every result of a tool call or read is judged, so the size is estimated by walking over the decoded JSON, without encoding it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue, members_of, objects_in
from gateway.policy.decision import PASS, Pass, Reject

_SCALAR_BYTES = 5
"""Estimated bytes of a number, boolean or null as JSON."""

MOST_COUNTED = 3
"""Maximum number of bytes that `measure_bytes` counts per byte of JSON.

The two bytes `1,` count as a scalar (5 bytes) and a separator (1 byte).
"""

_MEDIA = frozenset({"image", "audio"})
"""Types of content blocks whose `data` is base64, not text."""


def measure_bytes(value: JsonValue, limit: int) -> int:
    """Return the estimated size, in bytes, of `value` as compact JSON. The count stops once it exceeds `limit`.

    Strings count their UTF-8 length without escapes, so the estimate is slightly low for text with many quotes or line breaks. Numbers,
    booleans and `null` count `_SCALAR_BYTES` each. The estimate is accurate enough for a limit and much cheaper than encoding.
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
    """Verdict that a result exceeds the limit for models: return only the beginning of its text and data.

    The whole result is stored, and the tool `read_result` reads it.
    """

    max_bytes: int
    """Number of bytes to which the text and data of the result are shortened."""


def judge_result(result: JsonObject, max_bytes: int, max_kept_bytes: int, encoded_bytes: int | None = None) -> Pass | Shorten | Reject:
    """Decide by its size whether a result is returned whole (`Pass`), stored whole but returned shortened (`Shorten`), or rejected.

    A result is rejected if its total size exceeds both `max_kept_bytes` and `max_bytes`. Otherwise it is shortened if the part that a model
    reads as text exceeds `max_bytes`. Images, audio and binary resources are not part of that text, because cutting would destroy them.
    `encoded_bytes` is the size of the JSON from which the result was decoded, if known. If it is at most `max_bytes / MOST_COUNTED`,
    the result is not walked through.
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
    """Return the number of characters of base64 data in a result's images, audio and binary resources.

    Only data at the places that MCP defines counts: `content`, `contents`, and the `content` of `messages`.
    """
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
    """Accept the requests for input of a call if their size is at most about `max_bytes`; otherwise reject them.

    They cannot be shortened, because a person must see them whole.
    """
    if measure_bytes(requests, max_bytes) <= max_bytes:
        return PASS
    return Reject("maxResultBytes", f"The questions are larger than the {max_bytes} bytes allowed here (`maxResultBytes`).")
