"""Stores the OAuth tokens for remote servers in encrypted files, one for each server, URL and owner of the tokens.

All processes that use the state folder share the files. They are encrypted with AES-256-GCM and a key in the state folder. Server, URL and
owner are authenticated data of the encryption, so that a renamed file cannot be decrypted. Gateways that share a database store the tokens
there (`grant_rows`).
"""

from __future__ import annotations

import hashlib
import json
import secrets
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gateway.errors import StorageError
from gateway.storage.atomic_files import make_private_folder, write_atomic
from gateway.storage.locks import locked_soon
from gateway.storage.state_folder import StateFolder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FOLDER = "tokens"
"""Name of the folder in the state folder that contains the token files."""

SHARED = "gateway"
"""The `owner` of tokens that all callers of the gateway use."""

LOCK_SECONDS = 30.0
"""Longest wait for the lock of a token file. Another process that renews the token holds it for at most half of this time."""

MAX_FILE_BYTES = 262_144
"""Maximum bytes of a token file that are read."""

_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Grant:
    """The gateway's client registration at an authorization server, and its tokens for one MCP server.

    The object is immutable: renewing a token creates a new one.
    """

    issuer: str
    """Issuer of the authorization server. Refresh token and client secret are sent only to this server."""
    client_id: str
    client_secret: str | None = None
    """Client secret, if the gateway registered itself (RFC 7591). A secret in the configuration is not stored here."""
    client_auth: str | None = None
    """Client authentication method, if the gateway registered itself: `none`, `client_secret_basic` or `client_secret_post`."""
    redirect_uri: str | None = None
    """Redirect URI of the registration, if the gateway registered itself."""
    access_token: str | None = None
    refresh_token: str | None = None
    expires_at: float | None = None
    """Time at which the access token expires, in seconds since the epoch; `None` if unknown."""
    obtained_at: float = 0.0
    """Time at which the tokens were requested, in seconds since the epoch."""
    scope: str | None = None
    """Scopes of the access token, separated by spaces."""
    wanted_scope: str | None = None
    """Further scopes that the MCP server required, separated by spaces. The next sign-in requests them."""
    resource: str | None = None
    """Value of the parameter `resource` (RFC 8707) with which the token was requested."""

    def __repr__(self) -> str:
        return f"Grant(issuer={self.issuer!r}, client_id={self.client_id!r})"

    def without_tokens(self) -> Grant:
        """Return a copy that has the client registration, but no tokens."""
        return replace(self, access_token=None, refresh_token=None, expires_at=None)


class GrantStore(Protocol):
    """Interface of the stored grant (client registration and tokens) for one server.

    Methods block, and raise `StorageError`, except `locked`.
    """

    def stamp(self) -> tuple[int, int] | None:
        """Return a value that changes whenever the grant changes; `None` without a grant."""
        ...

    def read(self) -> Grant | None:
        """Decrypt and return the stored grant, or `None` if nothing is stored."""
        ...

    def write(self, grant: Grant) -> None:
        """Encrypt `grant`, and replace the stored one."""
        ...

    def delete(self) -> bool:
        """Delete the grant, and return whether it existed."""
        ...

    def locked(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that keeps other processes from changing the grant. Entering raises `StorageError` after a timeout."""
        ...


class TokenFile:
    """The encrypted file with the grant (client registration and tokens) for one server."""

    def __init__(self, state: StateFolder, server: str, url: str, *, owner: str = SHARED) -> None:
        """Determine the file's path, without side effects.

        `url` is the server's endpoint, which is part of the file's name: a changed URL does not get the tokens of the old one.
        """
        self._state = state
        self.identity = json.dumps([1, server, url, owner]).encode()
        """The server, its URL and the owner of the tokens, to which the encryption binds the grant."""
        digest = hashlib.sha256(self.identity).hexdigest()[:24]
        self.path: Path = state.path / FOLDER / f"{server}-{digest}.bin"

    def stamp(self) -> tuple[int, int] | None:
        """Return a value that changes whenever the file changes (modification time and inode); `None` if the file does not exist."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def read(self) -> Grant | None:
        """Decrypt and return the stored grant (client registration and tokens), or `None` if the file does not exist.

        Raises:
            StorageError: The file cannot be read, is damaged, or belongs to another installation. Signing in again replaces it.
        """
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"Cannot read {str(self.path)!r}: {error.strerror or error}. Check its permissions.") from None
        try:
            return self.unseal(data)
        except ValueError:
            text = f"{str(self.path)!r} is not of this installation, or damaged; delete it and sign in again."
            raise StorageError(text) from None

    def write(self, grant: Grant) -> None:
        """Encrypt `grant` (client registration and tokens), and replace the stored one.

        Raises:
            StorageError: The file cannot be written.
        """
        self._folder()
        write_atomic(self.path, self.seal(grant))

    def seal(self, grant: Grant) -> bytes:
        """Return `grant`, encrypted for this server, URL and owner. Raises `StorageError` if the installation key cannot be read."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + _aes(self._state).encrypt(nonce, json.dumps(asdict(grant)).encode(), self.identity)

    def unseal(self, sealed: bytes) -> Grant:
        """Decrypt what `seal` returned.

        Raises:
            ValueError: It is damaged, or of another server, owner or installation.
            StorageError: The installation key cannot be read.
        """
        from cryptography.exceptions import InvalidTag

        try:
            return Grant(**json.loads(_aes(self._state).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], self.identity)))
        except (InvalidTag, TypeError):
            raise ValueError("not a grant of this installation") from None

    def delete(self) -> bool:
        """Delete the file, and return whether it existed. Raises `StorageError` if it cannot be deleted."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"Cannot delete {str(self.path)!r}: {error.strerror or error}.") from None
        return True

    def locked(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that locks the file against other processes. Entering raises `StorageError` after `LOCK_SECONDS`."""
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
