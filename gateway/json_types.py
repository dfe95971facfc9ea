"""The JSON aliases of public signatures, the one place where `Any` is spelled, and a value as text.

Values that crossed a wire are kept as decoded JSON instead of being remodelled, so nothing a peer
said is lost. Rooms narrow with `isinstance` before they use a value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

JsonValue = Any
"""A decoded JSON value: `None`, `bool`, `int`, `float`, `str`, a list or a `str`-keyed dict of the same."""

JsonObject = dict[str, Any]
"""A decoded JSON object that the holder owns and may change."""

JsonMapping = Mapping[str, Any]
"""A decoded JSON object that the holder only reads."""


def as_text(value: JsonValue) -> str:
    """A value where only text fits: text as it is, nothing for `None`, else its JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
