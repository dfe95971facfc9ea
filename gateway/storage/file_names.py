"""`file_stem` and `folder_name`: convert any id to a file or folder name that is valid on every system and contains no path separator."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

DATABASE_FILE = "gateway.db"
"""Name of the SQLite database in the state folder."""

MAX_STEM_BYTES = 180
"""Maximum length of a generated name of a file (without extension) or folder, in bytes of UTF-8. Every file system allows this length.

If a name would be longer, a digest of the id replaces it.
"""

_RESERVED = frozenset({"CON", "PRN", "AUX", "NUL", *(f"{port}{number}" for port in ("COM", "LPT") for number in range(1, 10))})
"""Names of Windows devices, which are not valid as file names."""


def file_stem(given: str, *, prefix: str) -> str:
    """Convert an id to a file name: the id itself if it is a valid name on every system, else `prefix` and the Base64 of the id.

    If this name would be too long, the file name is `prefix` and a digest of the id. Microsoft's agent-framework creates the same file
    names, so Moongate can read the files that agent-framework has stored.
    """
    safe = (
        bool(given)
        and all(character.isalnum() or character in "._-" for character in given)
        and not given.startswith(".")
        and not given.endswith(".")
        and given.partition(".")[0].upper() not in _RESERVED
    )
    stem = given if safe else f"{prefix}{_encoded(given)}"
    return stem if len(stem.encode()) <= MAX_STEM_BYTES else f"{prefix}{_digest(given)}"


def id_of_stem(stem: str, *, prefix: str) -> str:
    """Convert a file name that `file_stem` returned back to the id.

    A name that is not encoded, or that contains only the digest of a long id, is returned unchanged.
    """
    encoded = stem.removeprefix(prefix)
    if encoded == stem or encoded.startswith(_DIGEST):
        return stem
    try:
        return urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except ValueError:
        return stem


def folder_name(given: str) -> str:
    """Convert an id to a folder name: always the Base64 of the id, or a digest of the id if the Base64 is too long."""
    encoded = _encoded(given) or "_"
    return encoded if len(encoded) <= MAX_STEM_BYTES else _digest(given)


_DIGEST = "sha256-"


def _encoded(given: str) -> str:
    return urlsafe_b64encode(given.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def _digest(given: str) -> str:
    return f"{_DIGEST}{hashlib.sha256(given.encode('utf-8', 'surrogatepass')).hexdigest()}"
