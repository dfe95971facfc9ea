"""Arguments of calls as models give them: text in pieces, text, or an object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from gateway.errors import AdditionItemMismatch
from gateway.json_types import JsonMapping, JsonObject, JsonValue

Arguments = str | JsonMapping | None
"""As the model wrote them, or decoded."""


def read_arguments(arguments: Arguments) -> JsonObject:
    """The arguments as an object, to call something with them; no text means none.

    Raises:
        ValueError: They are no JSON object.
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
    """What a text says where it is JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def join_arguments(first: Arguments, second: Arguments) -> Arguments:
    """Two neighbouring pieces as one.

    Raises:
        AdditionItemMismatch: One is text and the other an object.
    """
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return {**first, **second}
    raise AdditionItemMismatch("the parts of the arguments are of two kinds")
