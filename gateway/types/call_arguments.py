"""Functions that parse and join the arguments of tool calls, which models send as JSON text, as pieces of JSON text, or as an object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from gateway.errors import AdditionItemMismatch
from gateway.json_types import JsonMapping, JsonObject, JsonValue

Arguments = str | JsonMapping | None
"""Arguments of a tool call: JSON text as the model wrote it, or a decoded object. `None` and an empty text mean no arguments."""


def read_arguments(arguments: Arguments) -> JsonObject:
    """Return the arguments of a tool call as an object, parsed if they are text. Without arguments, return an empty object.

    Raises:
        ValueError: The text is not JSON, or not a JSON object.
    """
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if arguments is None or not arguments.strip():
        return {}
    decoded: JsonValue = json.loads(arguments)
    if not isinstance(decoded, dict):
        raise ValueError("the arguments are not a JSON object")
    return cast("JsonObject", decoded)


def decoded(text: str) -> JsonValue:
    """Return the value that a JSON text contains, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def to_text(arguments: Arguments) -> str:
    """Return the arguments of a tool call as JSON text. Text is returned unchanged, even if it is not valid JSON."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def join_arguments(first: Arguments, second: Arguments) -> Arguments:
    """Join two consecutive pieces of the arguments of one tool call, as they arrive in a stream.

    Texts are concatenated. Of two objects, the values of the second replace those of the first.

    Raises:
        AdditionItemMismatch: One piece is text and the other is an object.
    """
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return {**first, **second}
    raise AdditionItemMismatch("cannot join arguments in text form with arguments in object form")
