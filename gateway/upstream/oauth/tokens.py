"""Stored tokens: one encrypted file for each server, address and owner, shared by all processes that use the state folder.

Files are encrypted with AES-256-GCM and a key of the state folder. Server, address and owner are authenticated, so a file that is renamed
cannot be decrypted.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.errors import StorageError
from gateway.storage.atomic_files import make_private_folder, write_atomic
from gateway.storage.locks import locked_soon
from gateway.storage.state_folder import StateFolder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FOLDER = "tokens"
"""Name of the folder for token files inside the state folder."""

SHARED = "gateway"
"""Owner of tokens that every caller of the gateway uses."""

LOCK_SECONDS = 30.0
"""Longest wait for another process that renews the same token, which takes at most half of this time."""

MAX_FILE_BYTES = 262_144
"""Maximum size of a token file."""

_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Grant:
    """A client's registration at an authorization server, and the tokens of one MCP server. Renewing a token makes another object."""

    issuer: str
    """The authorization server. The tokens and the client are sent nowhere else."""
    client_id: str
    client_secret: str | None = None
    """The secret of a client that registered itself; a configured secret is not stored."""
    client_auth: str | None = None
    """Authentication method of a client that registered itself: `none`, `client_secret_basic` or `client_secret_post`."""
    redirect_uri: str | None = None
    """The redirect URI that a client registered itself with."""
    access_token: str | None = None
    refresh_token: str | None = None
    expires_at: float | None = None
    """Seconds since the epoch; `None` if unknown."""
    obtained_at: float = 0.0
    """Seconds since the epoch."""
    scope: str | None = None
    """Scopes of the token, separated by spaces."""
    wanted_scope: str | None = None
    """Further scopes that the server requires; the next sign-in requests them."""
    resource: str | None = None
    """The `resource` parameter (RFC 8707) that the token is for."""

    def __repr__(self) -> str:
        return f"Grant(issuer={self.issuer!r}, client_id={self.client_id!r})"

    def without_tokens(self) -> Grant:
        """Return a grant with the client's registration and without tokens."""
        return replace(self, access_token=None, refresh_token=None, expires_at=None)


class TokenFile:
    """The file with the grant (client registration and tokens) of one server."""

    def __init__(self, state: StateFolder, server: str, url: str, *, owner: str = SHARED) -> None:
        """`url` is the server's endpoint: a changed address never gets the tokens of the old one. No side effects."""
        self._state = state
        self._identity = json.dumps([1, server, url, owner]).encode()
        digest = hashlib.sha256(self._identity).hexdigest()[:24]
        self.path: Path = state.path / FOLDER / f"{server}-{digest}.bin"

    def stamp(self) -> tuple[int, int] | None:
        """Return a value that changes whenever the file does; `None` without a file."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def read(self) -> Grant | None:
        """Return the stored grant, or `None` if there is no file.

        Raises:
            StorageError: The file cannot be read, or is not of this installation; signing in again replaces it.
        """
        from cryptography.exceptions import InvalidTag

        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"Cannot read {str(self.path)!r}: {error.strerror or error}. Check its permissions.") from None
        try:
            plain = _aes(self._state).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], self._identity)
            return Grant(**json.loads(plain))
        except (InvalidTag, ValueError, TypeError):
            text = f"{str(self.path)!r} is not of this installation, or damaged; delete it and sign in again."
            raise StorageError(text) from None

    def write(self, grant: Grant) -> None:
        """Replace the stored grant.

        Raises:
            StorageError: The file cannot be written.
        """
        self._folder()
        nonce = secrets.token_bytes(_NONCE_BYTES)
        plain = json.dumps(asdict(grant)).encode()
        write_atomic(self.path, nonce + _aes(self._state).encrypt(nonce, plain, self._identity))

    def delete(self) -> bool:
        """Delete the file; return whether it existed."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"Cannot delete {str(self.path)!r}: {error.strerror or error}.") from None
        return True

    def locked(self) -> AbstractAsyncContextManager[None]:
        """Lock the file against other processes until the context is left. Raises `StorageError` after `LOCK_SECONDS`."""
        self._folder()
        return locked_soon(self.path, timeout_seconds=LOCK_SECONDS)

    def _folder(self) -> None:
        folder = self._state.ensure() / FOLDER
        try:
            make_private_folder(folder)
        except OSError as error:
            raise StorageError(f"Cannot create {str(folder)!r}: {error.strerror or error}.") from None


def _aes(state: StateFolder) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(state.key("tokens"))
