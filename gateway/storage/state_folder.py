"""`StateFolder`: creates and locates the private folder in which the gateway stores its state.

By default there is one folder per user, shared by all gateway processes of the user (each IDE window starts one). The code that creates
files and folders is therefore safe against races between processes. `app` creates the `StateFolder`; each file in the folder belongs to the
package that writes it.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway.errors import StorageError
from gateway.storage.atomic_files import locked, write_atomic
from gateway.storage.interrupted_restore import finish_restore

FOLDER_NAME = "moongate"


def state_dir(configured: str | None) -> Path:
    """Return the path of the state folder: `configured` (the key `storage.dir`), or the user's default. Does not create the folder."""
    return Path(configured) if configured else default_state_dir()


def default_state_dir(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """Return the path of the user's default state folder, by the conventions of the platform. Does not create the folder.

    The path is `$XDG_STATE_HOME/moongate` or `~/.local/state/moongate`, `~/Library/Application Support/moongate` on macOS, and
    `%LOCALAPPDATA%\\moongate` on Windows. A relative `XDG_STATE_HOME` is ignored, as the XDG Base Directory Specification requires.
    """
    env = os.environ if environ is None else environ
    if platform == "win32":
        local = env.get("LOCALAPPDATA")
        return (Path(local) if local else _home(env) / "AppData" / "Local") / FOLDER_NAME
    if platform == "darwin":
        return _home(env) / "Library" / "Application Support" / FOLDER_NAME
    given = env.get("XDG_STATE_HOME", "")
    return (Path(given) if given.startswith("/") else _home(env) / ".local" / "state") / FOLDER_NAME


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME") or environ.get("USERPROFILE")
    if home:
        return Path(home)
    try:
        return Path.home()
    except RuntimeError:
        raise StorageError("The user has no home folder to store the gateway's state in; set `storage.dir` in the configuration.") from None


class StateFolder:
    """The private folder with the state of a gateway. The folder is created by the first method that writes to it."""

    def __init__(self, path: Path, root: bytes | None = None) -> None:
        """`path` is the path of the folder, which need not exist.

        `root` is the installation key, the secret from which all keys are derived, if the configuration has one.
        """
        self.path = path
        self._root = root

    def __repr__(self) -> str:
        """Return a representation without the installation key."""
        return f"StateFolder({str(self.path)!r})"

    def ensure(self) -> Path:
        """Create the state folder (mode 0700) and its missing parents, finish a restore that was killed, and return the path.

        Raises:
            StorageError: The folder cannot be created, a file has its name, or a killed restore must be repeated.
        """
        self.create()
        finish_restore(self.path)
        return self.path

    def create(self) -> Path:
        """Create the state folder (mode 0700) and its missing parents, and return its path.

        Raises:
            StorageError: The folder cannot be created, or a file has its name.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"Cannot create the state folder {str(self.path)!r}: {error.strerror or error}. "
                f"Set `storage.dir` to a folder that can be written."
            ) from None
        return self.path

    def key(self, purpose: str) -> bytes:
        """Return the 32-byte secret key of this installation for `purpose`, a fixed text that names what the key protects.

        Keys are derived from one random root key, so that no key reveals another. If the configuration has no root key, it is stored in the
        folder (mode 0600) on first use.

        Raises:
            StorageError: The root key cannot be read or written, or its file is damaged.
        """
        file = self.path / "installation-key"
        root = self._root or _read_key(file)
        if root is None:
            self.ensure()
            with locked(file):
                root = _read_key(file)
                if root is None:
                    root = secrets.token_bytes(32)
                    write_atomic(file, root)
        return hmac.digest(root, purpose.encode(), "sha256")

    def stored_key(self, purpose: str) -> bytes | None:
        """Return the same key as `key`, or `None` if there is no root key yet. Writes nothing.

        Raises:
            StorageError: The root key cannot be read, or its file is damaged.
        """
        root = self._root or _read_key(self.path / "installation-key")
        return None if root is None else hmac.digest(root, purpose.encode(), "sha256")


def _read_key(file: Path) -> bytes | None:
    try:
        found = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError:
        found = b""
    if len(found) != 32:
        raise StorageError(f"{str(file)!r} does not hold an installation key; delete it to get a new one (tokens and handles are lost).")
    return found
