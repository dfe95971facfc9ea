"""`file_stem`: a file name for any id, the same on every system and never leading out of its folder."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode

DATABASE_FILE = "gateway.db"
"""The database in the state folder."""

MAX_STEM_CHARS = 180
"""Longer file names do not fit every file system; the ids behind them are named by a digest."""

_RESERVED = frozenset({"CON", "PRN", "AUX", "NUL", *(f"{port}{number}" for port in ("COM", "LPT") for number in range(1, 10))})
"""File names that mean devices on Windows."""


def file_stem(given: str, *, prefix: str) -> str:
    """The id itself where that is safe on every system, else `prefix` and the id encoded; agent-framework's scheme."""
    safe = (
        bool(given)
        and all(character.isalnum() or character in "._-" for character in given)
        and not given.startswith(".")
        and not given.endswith(".")
        and given.partition(".")[0].upper() not in _RESERVED
    )
    raw = given.encode("utf-8", "surrogatepass")
    stem = given if safe else f"{prefix}{urlsafe_b64encode(raw).decode().rstrip('=')}"
    return stem if len(stem.encode()) <= MAX_STEM_CHARS else f"{prefix}sha256-{hashlib.sha256(raw).hexdigest()}"
