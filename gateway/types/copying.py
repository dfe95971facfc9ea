"""Functions that copy and join messages, contents and responses without copying the provider's object in `raw_representation`.

`raw_representation` is the object of the model provider's SDK from which a message or another part of a response was made.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar, cast

T = TypeVar("T")

RAW = "raw_representation"


def sharing_raw(original: T, memo: dict[int, Any]) -> T:
    """Return a deep copy of an object that shares `raw_representation`, the object of the provider's SDK, with the original.

    Contents, messages, responses and updates use this function as their method `__deepcopy__`.
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
    """Return the last provider object of a `raw_representation` that is a list; return any other `raw_representation` unchanged.

    Used if the caller did not request a stream, but the response was joined from the parts of a stream.
    """
    parts = cast("list[object]", raw) if isinstance(raw, list) else [raw]
    return parts[-1] if parts else None


def joined_raw(first: object, second: object) -> object:
    """Return the `raw_representation` of a content or response that was joined from two parts, whose values are `first` and `second`.

    If only one part has a provider object, the object is returned unchanged. Several objects are returned as a list in order. If both
    values are `None`, the result is `None`.
    """
    found = [raw for raw in (first, second) if raw is not None]
    if len(found) == 1 and not isinstance(found[0], list):
        return found[0]
    return [part for raw in found for part in (cast("list[object]", raw) if isinstance(raw, list) else [raw])] or None
