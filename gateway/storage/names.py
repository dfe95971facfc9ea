"""`file_stem` and `folder_name`: names in the file system for any id, the same on every system and never leading out of a folder."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

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
    stem = given if safe else f"{prefix}{_encoded(given)}"
    return stem if len(stem.encode()) <= MAX_STEM_CHARS else f"{prefix}{_digest(given)}"


def id_of_stem(stem: str, *, prefix: str) -> str:
    """The inverse of `file_stem`; the stem itself where only the id's digest is in it, or it is none of ours."""
    encoded = stem.removeprefix(prefix)
    if encoded == stem or encoded.startswith(_DIGEST):
        return stem
    try:
        return urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except ValueError:
        return stem


def folder_name(given: str) -> str:
    """The id encoded, whether it is safe or not."""
    encoded = _encoded(given) or "_"
    return encoded if len(encoded) <= MAX_STEM_CHARS else _digest(given)


_DIGEST = "sha256-"


def _encoded(given: str) -> str:
    return urlsafe_b64encode(given.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def _digest(given: str) -> str:
    return f"{_DIGEST}{hashlib.sha256(given.encode('utf-8', 'surrogatepass')).hexdigest()}"
