"""`Identity`: lets a running gateway prove to a command on the same machine which configuration and state folder it serves.

Another program, or the gateway of another configuration, may listen on the configured port. Therefore a command first sends a random
challenge, before it sends an API key or a call to the gateway. The secret key of the proof is in the state folder. `app` serves the proof
at `/health`, and the command line checks it.
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
"""Pattern of the challenge that a command sends: 128 random bits as hexadecimal digits. The gateway answers no other challenge."""

MAX_PATHS = 2
"""Maximum number of paths under which one configuration file is known: as written, and with the symbolic links of its folder resolved."""


class Identity:
    """Creates and checks proofs that a running gateway serves the configuration file `configuration` with the state folder `state`.

    The gateway creates a proof with `prove`, and a command on the same machine checks it with `accepts`. The command requests the proof
    before it sends an API key or a call, because another program may listen on the port.
    """

    def __init__(self, state: StateFolder, configuration: Path) -> None:
        """Derive the secret keys of the proofs from a random key in the state folder, which is created there if it is missing.

        There is a secret key for each path by which `configuration` may be known: the path as written, and the path with the symbolic
        links of its folder resolved.

        Raises:
            StorageError: The state folder is unusable.
        """
        # Two paths are accepted: the path as written stays the same if a symbolic link in it changes, and the path with the resolved folder
        # is the one that a shell shows after `cd`. If the file itself is a link, it is not resolved, because relative paths in the file
        # start at the folder of the link.
        folder, name = os.path.split(os.path.normpath(configuration))
        paths = dict.fromkeys((os.path.join(folder, name), os.path.join(os.path.realpath(folder), name)))
        self._keys = [hmac.digest(state.key("identity"), os.fsencode(path), "sha256") for path in paths]

    @classmethod
    def of(cls, loaded: LoadedConfig) -> Identity:
        """Return the `Identity` of a gateway that serves the configuration `loaded`. Blocks. Raises `StorageError`."""
        storage = loaded.config.storage
        return cls(StateFolder(state_dir(storage.dir), storage.root_key), loaded.path or loaded.base_dir)

    def prove(self, challenge: str, port: int) -> str:
        """Return the gateway's answer to the random `challenge` of a command: HMACs of the challenge and `port`, separated by spaces.

        There is one HMAC for each path of the configuration file: the path as written, and, if it differs, the path with the symbolic
        links of its folder resolved. `port` is the port on which the gateway listens.
        """
        return " ".join(hmac.digest(key, f"{challenge} {port}".encode(), "sha256").hex() for key in self._keys)

    def accepts(self, proof: str, challenge: str, port: int) -> bool:
        """Return whether `proof` shows that the gateway which sent it for `challenge` serves this configuration and listens on `port`.

        A configuration file may have two paths (`MAX_PATHS`); a valid proof for one of them is enough.
        """
        own = self.prove(challenge, port).split()
        return any(hmac.compare_digest(one.encode(), theirs.encode()) for one in own for theirs in proof.split()[:MAX_PATHS])
