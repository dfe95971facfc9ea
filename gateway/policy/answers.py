"""Whether what a client answered has the shape its question calls for. Asked wherever an answer comes in, before it goes on."""

from __future__ import annotations

from typing import cast

from gateway.json_types import JsonMapping, JsonValue

_ACTIONS = ("accept", "decline", "cancel")


def answer_problem(method: str, answer: JsonMapping) -> str | None:
    """What is wrong with the answer to `method`, or `None`. Keys beyond the known ones pass."""
    match method:
        case "sampling/createMessage":
            return _sampling_problem(answer)
        case "elicitation/create":
            if answer.get("action") not in _ACTIONS:
                return "`action` must be accept, decline or cancel"
            content = answer.get("content")
            return None if content is None or isinstance(content, dict) else "`content` must be an object"
        case "roots/list":
            roots: JsonValue = answer.get("roots")
            return None if _are_objects(roots, "uri") else "`roots` must be a list of objects with a `uri`"
        case _:
            return None


def _sampling_problem(answer: JsonMapping) -> str | None:
    if answer.get("role") not in ("user", "assistant"):
        return "`role` must be user or assistant"
    content: JsonValue = answer.get("content")
    if not _are_objects(content if isinstance(content, list) else [content], "type"):
        return "`content` must be a content block, or a list of them"
    return None if isinstance(answer.get("model", ""), str) else "`model` must be a text"  # some clients leave it out


def _are_objects(value: JsonValue, key: str) -> bool:
    items = cast("list[JsonValue]", value) if isinstance(value, list) else [None]
    return all(isinstance(item, dict) and isinstance(cast("JsonMapping", item).get(key), str) for item in items)
