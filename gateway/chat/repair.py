"""Tool-call arguments that are almost JSON: mended where only one reading is possible, and always said to be.

A mended call carries what the model wrote (`REPAIRED` in its additional properties) and is logged by name. Anything
with more than one reading (a text cut off in the middle, two objects in a row) stays as it is: the run loop then tells
the model that its arguments could not be read, which costs a round and never runs a guess.
"""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Mapping
from typing import cast

from gateway.json_types import JsonObject, JsonValue
from gateway.types.content import Content

logger = logging.getLogger(__name__)

REPAIRED = "repaired_arguments"
"""Key in the additional properties of a mended call: `{"original": …, "how": …}`."""

_FENCE = re.compile(r"\A```[a-zA-Z]*\s*\n?(.*?)\s*```\Z", re.DOTALL)
_TRAILING_COMMA = re.compile(r"(\"(?:[^\"\\]|\\.)*\")|,(\s*[}\]])", re.DOTALL)
"""Strings are matched first, so that a comma inside one is never taken for one between values."""


def to_call(call_id: str, name: str, arguments: str, raw: JsonObject, properties: JsonObject | None = None) -> Content:
    """The `function_call` content for what a provider sent, mended where that is possible."""
    call = Content.from_function_call(call_id, name, arguments, additional_properties=properties, raw_representation=raw)
    if arguments and not _is_object(arguments):
        mended = mend(arguments)
        if mended is not None:
            call.arguments, how = mended
            call.additional_properties = {**call.additional_properties, REPAIRED: {"original": arguments, "how": how}}
            logger.warning("the model's arguments for %r were no JSON object and have been mended (%s)", name, how)
    return call


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return not text.strip()


def mend(text: str) -> tuple[str, str] | None:
    """The arguments as JSON and how they were mended; `None` where there is no single reading."""
    fenced = _FENCE.match(text.strip())
    inner = fenced.group(1) if fenced else text.strip()
    without_commas = _TRAILING_COMMA.sub(lambda found: found.group(1) or found.group(2), inner)
    for candidate, how in ((inner, "code fence"), (without_commas, "trailing comma")):
        value = _decoded(candidate)
        if isinstance(value, str):
            value, how = _decoded(value), "encoded twice"
        if isinstance(value, dict):
            return json.dumps(value, ensure_ascii=False), how
    value = _python_literal(inner)
    return (json.dumps(value, ensure_ascii=False), "Python literal") if value is not None else None


def _decoded(text: str) -> JsonValue:
    try:
        return json.loads(text, strict=False)  # line breaks inside a string are read as such
    except ValueError:
        return None


def _python_literal(text: str) -> JsonObject | None:
    """`{'a': True}` as an object; only where every value has a JSON form."""
    try:
        value: object = ast.literal_eval(text)
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in cast("Mapping[object, object]", value)):
            found = cast("JsonObject", value)
            json.dumps(found, allow_nan=False)
            return found
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return None
