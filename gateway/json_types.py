"""JSON aliases of public signatures, the only place with `Any`, and `as_text`.

Values from a connection stay decoded JSON instead of becoming models, so that no field of a peer is lost. Packages narrow them with
`isinstance`.
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
    """Return a value as text: a string as it is, an empty string for `None`, else JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
