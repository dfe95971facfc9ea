"""Repairs arguments of tool calls that a model wrote as almost valid JSON, if there is exactly one way to read them.

A repaired call has the model's original text in its additional properties (key `REPAIRED`), and the repair is logged. Ambiguous text (cut
off in the middle, two objects in a row) is not changed: the loop of model and tool calls then tells the model that its arguments are
invalid, so that no tool runs with guessed arguments.
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
"""Key in a repaired call's additional properties. The value is `{"original": …, "how": …}`: the model's text and the kind of repair."""

_FENCE = re.compile(r"\A```[a-zA-Z]*\s*\n?(.*?)\s*```\Z", re.DOTALL)
_TRAILING_COMMA = re.compile(r"(\"(?:[^\"\\]|\\.)*\")|,(\s*[}\]])", re.DOTALL)
"""Matches a JSON string, or a comma before `}` or `]`. Strings are matched first, so that a comma inside a string does not count."""


def to_call(call_id: str, name: str, arguments: str, raw: JsonObject, properties: JsonObject | None = None) -> Content:
    """Return a `function_call` content for a tool call from a provider. Arguments that are not a JSON object are repaired if possible."""
    call = Content.from_function_call(call_id, name, arguments, additional_properties=properties, raw_representation=raw)
    if arguments and not _is_object(arguments) and (repaired := repair(arguments)) is not None:
        call.arguments, how = repaired
        call.additional_properties = {**call.additional_properties, REPAIRED: {"original": arguments, "how": how}}
        logger.warning("tool-call arguments repaired tool=%r how=%r", name, how)
    return call


def raw_arguments(value: object) -> str:
    """Return a tool call's arguments from a provider's response as text: strings unchanged, other values as JSON, `None` as empty text."""
    return value if isinstance(value, str) else json.dumps(value) if value is not None else ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return not text.strip()


def repair(text: str) -> tuple[str, str] | None:
    """Return the arguments as a JSON object and the name of the repair, or `None` if the text is ambiguous or cannot be repaired."""
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
        return json.loads(text, strict=False)  # `strict=False` allows line breaks inside strings
    except ValueError:
        return None


def _python_literal(text: str) -> JsonObject | None:
    """Parse the text of a Python dict, such as `{'a': True}`. Return `None` for other texts, and if a value has no JSON form."""
    try:
        value: object = ast.literal_eval(text)
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in cast("Mapping[object, object]", value)):
            found = cast("JsonObject", value)
            json.dumps(found, allow_nan=False)
            return found
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return None
