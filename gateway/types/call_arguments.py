"""Parse and join the arguments of tool calls. Models send them as JSON text, as pieces of JSON text, or as an object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from gateway.errors import AdditionItemMismatch
from gateway.json_types import JsonMapping, JsonObject, JsonValue

Arguments = str | JsonMapping | None
"""JSON text as the model wrote it, or a decoded object."""


def read_arguments(arguments: Arguments) -> JsonObject:
    """Return the arguments as an object; empty text means no arguments.

    Raises:
        ValueError: The arguments are not a JSON object.
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
    """Return the value of a JSON text, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def to_text(arguments: Arguments) -> str:
    """Return the arguments as JSON text; text is returned unchanged."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def join_arguments(first: Arguments, second: Arguments) -> Arguments:
    """Join two pieces of the arguments of one call, which arrived one after the other.

    Raises:
        AdditionItemMismatch: One piece is text and the other an object.
    """
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return {**first, **second}
    raise AdditionItemMismatch("cannot join arguments in text form with arguments in object form")
