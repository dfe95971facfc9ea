"""What becomes of a provider's own object (`raw_representation`) when its carrier is copied deeply or joined to another one."""

from __future__ import annotations

import copy
from typing import Any, TypeVar, cast

T = TypeVar("T")

RAW = "raw_representation"


def sharing_raw(original: T, memo: dict[int, Any]) -> T:
    """`__deepcopy__` of contents, messages, responses and their updates."""
    made = type(original).__new__(type(original))
    memo[id(original)] = made
    slots = [name for kind in type(original).__mro__ for name in getattr(kind, "__slots__", ())]
    names = list(getattr(original, "__dict__", ())) or [name for name in slots if hasattr(original, name)]
    for name in names:
        value = getattr(original, name)
        setattr(made, name, value if name == RAW else copy.deepcopy(value, memo))
    return made


def last_raw(raw: object) -> object:
    """Return the provider's object of the last part: that of a whole answer, which no stream was asked for."""
    parts = cast("list[object]", raw) if isinstance(raw, list) else [raw]
    return parts[-1] if parts else None


def joined_raw(first: object, second: object) -> object:
    """Return the provider's objects of two joined contents: the only one, or a list of all of them in order."""
    found = [raw for raw in (first, second) if raw is not None]
    if len(found) == 1 and not isinstance(found[0], list):
        return found[0]
    return [part for raw in found for part in (cast("list[object]", raw) if isinstance(raw, list) else [raw])] or None
