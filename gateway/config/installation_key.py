"""Decodes the secret `storage.installationKey`, from which all keys of a gateway are derived. Used by `load` and the model of `storage`."""

from __future__ import annotations

import base64
import binascii
import re

from gateway.errors import ConfigError

PATH = "storage.installationKey"

MIN_BYTES = 32
"""Minimum length of the key in bytes."""

_MIN_VALUES = 12
"""Minimum number of different bytes. Of 32 random bytes, fewer than 12 are different with a probability below 10^-20."""

_HOW_TO_MAKE = "Make one with `openssl rand -base64 32`, and write a reference to it, such as `${file:PATH}` or `${env:NAME}`."


def decode_installation_key(text: str) -> bytes:
    """Return the bytes of an installation key that is written as hex, or as base64 (also in the URL-safe alphabet, also without padding).

    White space is ignored. A text of hex digits is always read as hex.

    Raises:
        ConfigError: The text is not hex or base64, is shorter than `MIN_BYTES`, or is evidently not random. The error does not contain it.
    """
    compact = "".join(text.split())
    try:
        if re.fullmatch(r"(?:[0-9a-fA-F]{2})+", compact):
            key = bytes.fromhex(compact)
        else:
            plain = compact.rstrip("=").translate(str.maketrans("-_", "+/"))
            key = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{PATH} is not base64 or hex. {_HOW_TO_MAKE}", path=PATH) from None
    if len(key) < MIN_BYTES:
        raise ConfigError(f"{PATH} has {len(key)} bytes; it needs at least {MIN_BYTES} random bytes. {_HOW_TO_MAKE}", path=PATH)
    if len(set(key)) < _MIN_VALUES:
        raise ConfigError(f"{PATH} is not random: it repeats few values. {_HOW_TO_MAKE}", path=PATH)
    return key
