"""`Identity`: proves that a running gateway serves a given configuration with a given state folder.

Before a command of the same user sends an API key or a call, it sends a random challenge, because another program, or the gateway of
another configuration, may listen on the configured port. The secret of the proof is in the state folder. `app` serves the proof at
`/health`, and the command line checks it.
"""

from __future__ import annotations

import hmac
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.storage.state_folder import StateFolder, state_dir

if TYPE_CHECKING:
    from gateway.config.load import LoadedConfig

CHALLENGE_PATTERN = re.compile(r"[0-9a-f]{32}\Z")
"""128 random bits as hexadecimal digits; the gateway answers no other challenge."""

MAX_PATHS = 2
"""Maximum paths by which a configuration file is known: the path as written, and the path with its folder's symbolic links resolved."""


class Identity:
    """Proves that a gateway serves `configuration` with the state in `state`."""

    def __init__(self, state: StateFolder, configuration: Path) -> None:
        """Read the key that answers challenges from the state folder, or create it there.

        Raises:
            StorageError: The state folder is unusable.
        """
        # The path as written stays valid when a link of its folder changes; the resolved folder is the one that a shell shows after `cd`.
        # A link of the file itself is not followed: relative paths in the file start at the link's folder.
        folder, name = os.path.split(os.path.normpath(configuration))
        paths = dict.fromkeys((os.path.join(folder, name), os.path.join(os.path.realpath(folder), name)))
        self._keys = [hmac.digest(state.key("identity"), os.fsencode(path), "sha256") for path in paths]

    @classmethod
    def of(cls, loaded: LoadedConfig) -> Identity:
        """Return the `Identity` of a gateway that serves this configuration. Blocks. Raises `StorageError`."""
        return cls(StateFolder(state_dir(loaded.config.storage.dir)), loaded.path or loaded.base_dir)

    def prove(self, challenge: str, port: int) -> str:
        """Return the proofs for a challenge, separated by spaces.

        There is one proof for each path of the configuration file (as written, and with links resolved). The proofs are valid only for
        the gateway that listens on `port`.
        """
        return " ".join(hmac.digest(key, f"{challenge} {port}".encode(), "sha256").hex() for key in self._keys)

    def accepts(self, proof: str, challenge: str, port: int) -> bool:
        """Return whether the gateway that sent `proof` serves this configuration.

        A configuration file may be known by several paths; a valid proof for one of them is enough.
        """
        own = self.prove(challenge, port).split()
        return any(hmac.compare_digest(one.encode(), theirs.encode()) for one in own for theirs in proof.split()[:MAX_PATHS])
