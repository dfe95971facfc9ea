"""How large a result may be. Used by the gates of tools and of reads on every result, so it is one cheap walk."""

from __future__ import annotations

from typing import cast

from gateway.json_types import JsonObject, JsonValue
from gateway.policy.decision import PASS, Pass, Reject

_SCALAR_BYTES = 5
"""What a number, boolean or null is counted as: near enough, and no text has to be made of it."""


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


def judge_result(result: JsonObject, max_bytes: int) -> Pass | Reject:
    """Let a result of up to about `max_bytes` through."""
    if measure_bytes(result, max_bytes) <= max_bytes:
        return PASS
    return Reject(
        "maxResultBytes",
        f"The result is larger than the {max_bytes} bytes allowed here. Ask for less of it (a filter, a page, a range), "
        f"or have the operator raise `maxResultBytes`.",
    )
