"""Type aliases of JSON values for public signatures, which use `Any` nowhere else, and `as_text`, which converts a value to text.

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
"""A decoded JSON object that the code holding it may change."""

JsonMapping = Mapping[str, Any]
"""A decoded JSON object that the code holding it only reads."""


def as_text(value: JsonValue) -> str:
    """Return a value as text: a string as it is, an empty string for `None`, else JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
