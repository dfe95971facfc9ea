"""Joins the streamed parts of contents. `responses` uses it to build whole responses from updates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol, cast

from gateway.json_types import JsonMapping
from gateway.types.content import Content
from gateway.types.copying import joined_raw
from gateway.types.messages import Message

_GROWING = "_growing"
"""Attribute that marks a text content as created by joining. Only the unfinished response refers to this object, so the next part is
appended in place."""


class _HasRaw(Protocol):
    raw_representation: object


def append_content(contents: list[Content], content: Content) -> None:
    """Append a content, or join it to the last content if both are parts of the same text or the same tool call."""
    before = contents[-1] if contents else None
    if content.type == "function_call" and content.user_input_request:
        # The loop sends such a call a second time when the caller must answer it; the second one replaces the first.
        contents[:] = [known for known in contents if known.type != "function_call" or known.call_id != content.call_id]
        contents.append(content)
    elif before is None or before.type != content.type or not _continues(before, content):
        contents.append(content)
    elif content.type == "text" and _GROWING in before.__dict__ and not content.annotations:
        before.text = (before.text or "") + (content.text or "")
        add_raw(before, content.raw_representation)
    else:
        contents[-1] = before + content
        contents[-1].__dict__[_GROWING] = True


def add_raw(target: _HasRaw, raw: object) -> None:
    """Add a part's provider object to `target`. A list made by `joined_raw` belongs to `target` alone, so it is extended in place."""
    if raw is None:
        return
    known = target.raw_representation
    if isinstance(known, list) and not isinstance(raw, list):
        cast("list[object]", known).append(raw)
    else:
        target.raw_representation = joined_raw(cast("object", known), cast("object", raw))


def stop_growing(messages: Sequence[Message]) -> None:
    """Mark the texts in complete messages as finished: nothing may be appended in place, because other responses may share them."""
    for message in messages:
        for content in message.contents:
            content.__dict__.pop(_GROWING, None)


def _continues(before: Content, content: Content) -> bool:
    match content.type:
        case "text":
            return not (content.annotations and content.text)  # annotation offsets count from the start of their own text
        case "text_reasoning":
            return not content.id or not before.id or content.id == before.id
        case "function_call":
            if not content.call_id or content.call_id == before.call_id:
                return isinstance(content.arguments, str) and not _are_complete(before.arguments)
            return False
        case _:
            return False


def _are_complete(arguments: str | JsonMapping | None) -> bool:
    """Whether the arguments of a call are complete. Then more arguments for the same call id are a repetition, not a further piece."""
    if not isinstance(arguments, str):
        return arguments is not None
    try:
        json.loads(arguments)
    except ValueError:
        return False
    return True
