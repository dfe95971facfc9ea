"""Functions that join streamed parts of texts and tool calls to complete contents.

`responses` uses them to build a complete response from the updates of a stream.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol, cast

from gateway.json_types import JsonMapping
from gateway.types.content import Content
from gateway.types.copying import joined_raw
from gateway.types.messages import Message

_GROWING = "_growing"
"""Name of the attribute that marks a content as created by joining parts of an unfinished response.

Only the unfinished response refers to a marked content. Therefore the next part of a text may be appended in place, without a new content.
"""


class _HasRaw(Protocol):
    raw_representation: object


def append_content(contents: list[Content], content: Content) -> None:
    """Add a streamed content to the list: join it to the last content if both are parts of one text or one tool call, otherwise append it.

    A tool call with `user_input_request` is a call of the caller's own tool, which the caller answers. It replaces earlier contents for the
    same call id.
    """
    before = contents[-1] if contents else None
    if content.type == "function_call" and content.user_input_request:
        # If the caller must answer a tool call, the function loop sends the call a second time; it replaces the first.
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
    """Add the provider object of a joined part to the `raw_representation` of `target`.

    If `target` already has a list of provider objects, the list is extended in place, because only `target` refers to it.
    """
    if raw is None:
        return
    known = target.raw_representation
    if isinstance(known, list) and not isinstance(raw, list):
        cast("list[object]", known).append(raw)
    else:
        target.raw_representation = joined_raw(cast("object", known), cast("object", raw))


def stop_growing(messages: Sequence[Message]) -> None:
    """Mark the contents of a complete response as finished. Later parts are then not appended to their texts in place.

    Call this before other responses may share the contents.
    """
    for message in messages:
        for content in message.contents:
            content.__dict__.pop(_GROWING, None)


def _continues(before: Content, content: Content) -> bool:
    match content.type:
        case "text":
            return not (content.annotations and content.text)  # offsets of annotations count from the start of this part's text
        case "text_reasoning":
            return not content.id or not before.id or content.id == before.id
        case "function_call":
            if not content.call_id or content.call_id == before.call_id:
                return isinstance(content.arguments, str) and not _are_complete(before.arguments)
            return False
        case _:
            return False


def _are_complete(arguments: str | JsonMapping | None) -> bool:
    """Return whether the arguments of a tool call are complete: an object, or valid JSON text.

    If so, further arguments with the same call id are a repetition of the call and not another piece of its arguments.
    """
    if not isinstance(arguments, str):
        return arguments is not None
    try:
        json.loads(arguments)
    except ValueError:
        return False
    return True
