"""`Identity`: proof that a running gateway serves one configuration with one state folder.

A command of the same user sends a random challenge before it sends an API key or a call, because another program, or the gateway of
another configuration, may listen on the configured port. The secret of the proof is the state folder's. Used by `app`, which serves the
proof at `/health`, and by the command line, which checks it.
"""

from __future__ import annotations

import hmac
import os
import re
from pathlib import Path

from gateway.storage.state import StateFolder

CHALLENGE_PATTERN = re.compile(r"[0-9a-f]{32}\Z")
"""128 random bits in hexadecimal digits; the gateway answers no other challenge."""


class Identity:
    """Proves that a gateway serves `configuration` with the state in `state`."""

    def __init__(self, state: StateFolder, configuration: Path) -> None:
        """Read the state folder's key, or make it.

        Raises:
            StorageError: The state folder cannot be used.
        """
        # Links are not followed, as in `app.hop_id`: a mounted ConfigMap resolves to another folder after each update.
        self._key = hmac.digest(state.key("identity"), os.fsencode(os.path.normpath(configuration)), "sha256")

    def prove(self, challenge: str, port: int) -> str:
        """Return the proof for one challenge, which holds for the gateway that listens on `port` and for no other."""
        return hmac.digest(self._key, f"{challenge} {port}".encode(), "sha256").hex()
