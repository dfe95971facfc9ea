"""Deep copies of what carries a provider's own object: all of it but that object, which may hold what cannot be copied."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

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
