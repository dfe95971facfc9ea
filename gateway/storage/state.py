"""`StateFolder`: the private folder that holds what the gateway remembers.

One per user by default and shared by every process of that user (each IDE window starts its own gateway), so
whatever is created here is created race-free. Made by `app`; the files in it belong to the rooms that write them.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway.errors import StorageError
from gateway.storage.files import locked, write_atomic

FOLDER_NAME = "moongate"


def state_dir(configured: str | None) -> Path:
    """The state folder that `storage.dir` names, or the user's where it names none; not created."""
    return Path(configured) if configured else default_state_dir()


def default_state_dir(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """The user's state folder for the gateway, by the platform's rules; not created.

    `$XDG_STATE_HOME/moongate` or `~/.local/state/moongate`; `~/Library/Application Support/moongate` on macOS;
    `%LOCALAPPDATA%\\moongate` on Windows. A relative `XDG_STATE_HOME` is ignored, as its specification says.
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
        raise StorageError("There is no home folder for the gateway's state; set `storage.dir` in the configuration.") from None


class StateFolder:
    """The folder itself. Nothing is touched until something is written."""

    def __init__(self, path: Path) -> None:
        """`path` need not exist."""
        self.path = path

    def ensure(self) -> Path:
        """Create the folder (mode 0700) and its parents where missing; returns it.

        Raises:
            StorageError: It cannot be created, or is a file.
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
        """32 bytes for one `purpose` (a fixed text), the same in every process of this installation; made on first use.

        Derived from one random key in the folder (mode 0600), so that keys of different purposes tell nothing of each other.

        Raises:
            StorageError: It cannot be read or written, or the file holds something else.
        """
        file = self.path / "installation-key"
        root = _read_key(file)
        if root is None:
            self.ensure()
            with locked(file):
                root = _read_key(file)
                if root is None:
                    root = secrets.token_bytes(32)
                    write_atomic(file, root)
        return hmac.digest(root, purpose.encode(), "sha256")


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
