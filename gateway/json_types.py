"""Type aliases of JSON values for public signatures, which use `Any` nowhere else, and functions that narrow or show a value.

Values from a connection stay decoded JSON instead of becoming models, so that no field of a peer is lost. Packages narrow them with
`isinstance` or with the functions below.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

JsonValue = Any
"""A decoded JSON value: `None`, `bool`, `int`, `float`, `str`, a list or a `str`-keyed dict of the same."""

JsonObject = dict[str, Any]
"""A decoded JSON object that the code holding it may change."""

JsonMapping = Mapping[str, Any]
"""A decoded JSON object that the code holding it only reads."""


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
    """Return the JSON objects in `value` if it is a list, otherwise an empty list."""
    return [cast("JsonObject", item) for item in items_of(value) if isinstance(item, dict)]


def children_of(value: JsonValue) -> Iterable[JsonValue]:
    """Return the values in a JSON object or list; nothing for other values."""
    return members_of(value).values() or items_of(value)


def mapped(items: list[JsonValue], change: Callable[[JsonValue], JsonValue]) -> list[JsonValue]:
    """Return a list of the changed items; `items` itself if `change` returns every item unchanged."""
    after = [change(item) for item in items]
    return items if all(one is other for one, other in zip(items, after, strict=True)) else after


def as_text(value: JsonValue) -> str:
    """Return a value as text: a string as it is, an empty string for `None`, else JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
