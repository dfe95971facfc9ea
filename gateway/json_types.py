"""The JSON aliases of public signatures; the one place where `Any` is spelled.

Values that crossed a wire are kept as decoded JSON instead of being remodelled, so nothing a peer
said is lost. Rooms narrow with `isinstance` before they use a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonValue = Any
"""A decoded JSON value: `None`, `bool`, `int`, `float`, `str`, a list or a `str`-keyed dict of the same."""

JsonObject = dict[str, Any]
"""A decoded JSON object that the holder owns and may change."""

JsonMapping = Mapping[str, Any]
"""A decoded JSON object that the holder only reads."""
