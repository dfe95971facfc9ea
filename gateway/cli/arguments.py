"""Converts the `key=value` words of a command to JSON arguments of a tool, with the types of the tool's input schema. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import cast

import click

from gateway.config.suggest import did_you_mean
from gateway.json_types import JsonMapping, JsonObject, JsonValue


def build_arguments(schema: JsonMapping, pairs: Sequence[str], args_json: str | None) -> JsonObject:
    """Return the arguments of a call to a tool with the input schema `schema`.

    `args_json` is a JSON object with initial arguments. Each item of `pairs` sets one argument: the text of `key=value` is converted to the
    type in the schema, and the text of `key:=JSON` is parsed as JSON. A key that is given several times becomes a list if the schema allows
    a list.

    Raises:
        click.UsageError: A word cannot become an argument; the message names it.
    """
    arguments = _base(args_json)
    properties = _properties(schema)
    given: dict[str, list[str]] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.rstrip(":"):
            raise click.UsageError(f"{pair!r} is not key=value; for JSON there are key:=JSON and --args-json.")
        if key.endswith(":"):
            arguments[key[:-1]] = _json(text, key[:-1])
        else:
            given.setdefault(key, []).append(text)
    for key, texts in given.items():
        arguments[key] = _typed(key, texts, properties.get(key))
    return arguments


def build_answer(form: JsonMapping, pairs: Sequence[str], args_json: str | None) -> JsonObject:
    """Return the fields of an answer to a form with the schema `form`, from `key=value` texts (`pairs`) and a JSON object (`args_json`).

    Raises:
        click.UsageError: A word cannot become a field, or the form has no such field.
    """
    given, properties = build_arguments(form, pairs, args_json), _properties(form)
    for name in given:
        if name not in properties:
            hint = did_you_mean(name, properties)
            raise click.UsageError(f"The question has no field {name!r}. {hint or 'Its fields: ' + ', '.join(properties) + '.'}")
    return given


def undeclared(schema: JsonMapping, arguments: JsonMapping) -> list[str]:
    """Return a warning for each of `arguments` that the tool's input schema does not declare, because a policy may drop such arguments.

    Return no warnings if `additionalProperties` in the schema allows such arguments.
    """
    properties = _properties(schema)
    if schema.get("additionalProperties") not in (None, False):
        return []
    unknown = [key for key in arguments if key not in properties]
    return [f"argument {key!r} is not declared by the tool. {did_you_mean(key, properties)}".rstrip() for key in unknown]


def _properties(schema: JsonMapping) -> dict[str, JsonMapping]:
    """Return the schemas of the arguments that an input schema declares, by name; empty if its `properties` is not an object."""
    properties = schema.get("properties")
    return cast("dict[str, JsonMapping]", properties) if isinstance(properties, dict) else {}


def _base(args_json: str | None) -> JsonObject:
    if args_json is None:
        return {}
    value = _json(args_json, "--args-json")
    if not isinstance(value, dict):
        raise click.UsageError("--args-json must be a JSON object.")
    return cast("JsonObject", value)


def _json(text: str, name: str) -> JsonValue:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{name}: not JSON: {error}") from None


def _typed(key: str, texts: list[str], schema: JsonMapping | None) -> JsonValue:
    types = _types(schema)
    if "array" in types and (len(texts) > 1 or not texts[0].lstrip().startswith("[")):
        items = cast("JsonMapping", (schema or {}).get("items") or {})
        return [_value(key, text, _types(items)) for text in texts]
    if len(texts) > 1:
        raise click.UsageError(f"{key!r} is given {len(texts)} times, and the tool accepts no list there.")
    return _value(key, texts[0], types)


def _types(schema: JsonMapping | None) -> set[str]:
    """Return the JSON types that a schema allows; `{"string"}` if it names none."""
    if not isinstance(schema, Mapping):
        return {"string"}
    written = schema.get("type")
    if isinstance(written, str):
        return {written}
    if isinstance(written, list):
        return {str(item) for item in cast("list[JsonValue]", written)}
    branches = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(branches, list):
        return {kind for branch in cast("list[JsonMapping]", branches) for kind in _types(branch)}
    fixed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(fixed, list):
        return {_TYPE_NAMES[type(item)] for item in cast("list[JsonValue]", fixed)}
    return {"string"}


def _value(key: str, text: str, types: set[str]) -> JsonValue:
    """Convert `text` to the first of `types` for which it is valid JSON. The type string is tried last, because every text is a string."""
    for kind in ("null", "boolean", "integer", "number", "object", "array"):
        if kind in types:
            value = _as_type(text, kind)
            if value is not _NO:
                return value
    if "string" in types:
        return text
    wanted = " or ".join(sorted(types))
    raise click.UsageError(f"{key!r} must be {wanted}, not {text!r}.")


_NO = object()

_TYPE_NAMES: dict[type, str] = {
    NoneType: "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"
}
"""The JSON Schema type for each Python type that `json.loads` returns."""


def _as_type(text: str, kind: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return _NO
    found = _TYPE_NAMES[type(value)]
    return value if found == kind or (found, kind) == ("integer", "number") else _NO
