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

MAX_PATHS = 2
"""Paths of a configuration: as written, and without the links of its folder."""


class Identity:
    """Proves that a gateway serves `configuration` with the state in `state`."""

    def __init__(self, state: StateFolder, configuration: Path) -> None:
        """Read the state folder's key, or make it.

        Raises:
            StorageError: The state folder cannot be used.
        """
        # The path as written holds while a folder's link leads elsewhere; without the links of its folder it is what a shell's `cd` leaves.
        # A link of the file itself is not followed: relative paths in the file start at the link's folder.
        folder, name = os.path.split(os.path.normpath(configuration))
        paths = dict.fromkeys((os.path.join(folder, name), os.path.join(os.path.realpath(folder), name)))
        self._keys = [hmac.digest(state.key("identity"), os.fsencode(path), "sha256") for path in paths]

    def prove(self, challenge: str, port: int) -> str:
        """Return the proofs for one challenge, one per path; they hold for the gateway that listens on `port` and for no other."""
        return " ".join(hmac.digest(key, f"{challenge} {port}".encode(), "sha256").hex() for key in self._keys)

    def accepts(self, proof: str, challenge: str, port: int) -> bool:
        """Whether a gateway that gave `proof` serves the configuration: the two share a path of it."""
        own = self.prove(challenge, port).split()
        return any(hmac.compare_digest(one.encode(), theirs.encode()) for one in own for theirs in proof.split()[:MAX_PATHS])
