"""`file_stem` and `folder_name`: safe file names for any id. The names are the same on every system and contain no path separator."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

DATABASE_FILE = "gateway.db"
"""Name of the database in the state folder."""

MAX_STEM_CHARS = 180
"""Longer names do not fit every file system; a longer id is replaced by its digest."""

_RESERVED = frozenset({"CON", "PRN", "AUX", "NUL", *(f"{port}{number}" for port in ("COM", "LPT") for number in range(1, 10))})
"""Names of devices on Windows."""


def file_stem(given: str, *, prefix: str) -> str:
    """Return the id if it is a safe file name on every system, otherwise `prefix` and the encoded id, as agent-framework does."""
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
    """Return the id that `file_stem` encoded.

    A stem that was not encoded, or that contains only a digest of a long id, is returned unchanged.
    """
    encoded = stem.removeprefix(prefix)
    if encoded == stem or encoded.startswith(_DIGEST):
        return stem
    try:
        return urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except ValueError:
        return stem


def folder_name(given: str) -> str:
    """Return the encoded id, also if it would be a safe name."""
    encoded = _encoded(given) or "_"
    return encoded if len(encoded) <= MAX_STEM_CHARS else _digest(given)


_DIGEST = "sha256-"


def _encoded(given: str) -> str:
    return urlsafe_b64encode(given.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def _digest(given: str) -> str:
    return f"{_DIGEST}{hashlib.sha256(given.encode('utf-8', 'surrogatepass')).hexdigest()}"
