"""Type aliases for decoded JSON values, and functions that narrow such values or convert them to text.

Public signatures use `Any` only for JSON values. Values received over a connection stay decoded JSON instead of becoming models, so that no
field that the peer sent is lost. Packages narrow the values with `isinstance` or with the functions below.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

JsonValue = Any
"""A decoded JSON value: `None`, `bool`, `int`, `float`, `str`, a list of JSON values, or a dict with `str` keys and JSON values."""

JsonObject = dict[str, Any]
"""A decoded JSON object that the code which receives it may change."""

JsonMapping = Mapping[str, Any]
"""A decoded JSON object that the code which receives it only reads."""


def as_object(value: JsonValue) -> JsonObject | None:
    """Return `value` if it is a JSON object, otherwise `None`."""
    return cast("JsonObject", value) if isinstance(value, dict) else None


def members_of(value: JsonValue) -> JsonObject:
    """Return `value` if it is a JSON object, otherwise an empty object."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def items_of(value: JsonValue) -> list[JsonValue]:
    """Return `value` if it is a JSON list, otherwise an empty list."""
    return cast("list[JsonValue]", value) if isinstance(value, list) else []


def objects_in(value: JsonValue) -> list[JsonObject]:
    """Return the items of `value` that are JSON objects, if `value` is a list, otherwise an empty list."""
    return [cast("JsonObject", item) for item in items_of(value) if isinstance(item, dict)]


def children_of(value: JsonValue) -> Iterable[JsonValue]:
    """Return the values of a JSON object, or the items of a JSON list; an empty list for any other value."""
    return members_of(value).values() or items_of(value)


def mapped(items: list[JsonValue], change: Callable[[JsonValue], JsonValue]) -> list[JsonValue]:
    """Return a list with `change` applied to each item, or `items` itself, not a copy, if `change` returns every item unchanged."""
    after = [change(item) for item in items]
    return items if all(one is other for one, other in zip(items, after, strict=True)) else after


def map_texts(value: JsonValue, change: Callable[[str], JsonValue]) -> JsonValue:
    """Return a copy of a JSON value in which every string is replaced by the result of `change`. Keys of objects are not changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_texts(item, change) for key, item in cast("JsonMapping", value).items()}
    if isinstance(value, list):
        return [map_texts(item, change) for item in cast("list[JsonValue]", value)]
    return value


def as_text(value: JsonValue) -> str:
    """Return a JSON value as text: a string unchanged, an empty string for `None`, and JSON for any other value."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
