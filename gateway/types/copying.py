"""Deep copying and joining of objects that carry a provider's own object (`raw_representation`), which is shared, never copied."""

from __future__ import annotations

import copy
from typing import Any, TypeVar, cast

T = TypeVar("T")

RAW = "raw_representation"


def sharing_raw(original: T, memo: dict[int, Any]) -> T:
    """Copy an object deeply, except that the copy shares its `raw_representation`.

    Used as the method `__deepcopy__` of contents, messages, responses and updates.
    """
    made = type(original).__new__(type(original))
    memo[id(original)] = made
    slots = [name for kind in type(original).__mro__ for name in getattr(kind, "__slots__", ())]
    names = list(getattr(original, "__dict__", ())) or [name for name in slots if hasattr(original, name)]
    for name in names:
        value = getattr(original, name)
        setattr(made, name, value if name == RAW else copy.deepcopy(value, memo))
    return made


def last_raw(raw: object) -> object:
    """Return the last of the provider objects of a response's parts. Used if the caller did not request a stream."""
    parts = cast("list[object]", raw) if isinstance(raw, list) else [raw]
    return parts[-1] if parts else None


def joined_raw(first: object, second: object) -> object:
    """Return the provider objects of two joined parts: one object unchanged, several as a list in order. `None` if neither part has one."""
    found = [raw for raw in (first, second) if raw is not None]
    if len(found) == 1 and not isinstance(found[0], list):
        return found[0]
    return [part for raw in found for part in (cast("list[object]", raw) if isinstance(raw, list) else [raw])] or None
