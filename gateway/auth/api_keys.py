"""`ApiKeys`: checks the API keys of a gateway, each of which identifies one principal. `KeyStore` stores them in a file.

A key's token is `gk_<id>_<secret>` with a random 256-bit secret. Only the SHA-256 digest of the token is stored: the token needs no slow
hash, because its secret, unlike a password, cannot be guessed. Processes share the file, so a running gateway applies
`moongate keys add|revoke` at the next request. Methods of `KeyStore` block for a `stat` call, or while they read a small file.

With `storage.url`, the keys are in the database instead (`key_rows`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from gateway.auth.principal import Principal
from gateway.errors import NotFound, StorageError
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.scopes import MAX_SCOPES, scope_problem
from gateway.storage.atomic_files import locked, read_json, write_atomic

KEY_PREFIX = "gk_"
"""The beginning of every API key. A credential with it is never checked as an access token."""

_VERSIONS = (1, 2)
"""Versions of the key file's format. A file with scopes has version 2, so that a Moongate without support for scopes rejects all keys."""
_MOVED_VERSION = "moved"
"""`version` of a key file whose keys were moved to a database. It has no keys, and every Moongate rejects all keys because of it."""
MOVED_SUFFIX = ".moved"
"""Suffix of the copy of a key file whose keys were moved to a database."""
_SECONDS_PER_DAY = 86_400
_MAX_NAME_LENGTH = 100
_MAX_TOKEN_LENGTH = 200
"""Maximum length, in characters, of a text that is compared with the tokens of API keys. A longer text is rejected as an invalid token.

A valid token has 59 characters. Only the first 200 characters of a longer text are hashed, which bounds the time of the check.
"""


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """The data of an API key without its secret."""

    id: str
    name: str
    created_at: float
    """Creation time, in seconds since the epoch."""
    expires_at: float | None = None
    """Time from which the key is invalid, in seconds since the epoch; `None`: the key never expires."""
    scopes: tuple[str, ...] | None = None
    """Scopes of the key, which limit what its caller may do (`policy.scopes`); `None` allows every tool, resource and prompt."""
    principal: Principal = field(init=False, repr=False, compare=False)
    """The caller that this key identifies, with the scopes of the key."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "principal", Principal(f"key:{self.id}", self.name, self.scopes))

    def is_expired(self, now: float) -> bool:
        """Return whether the key is expired at the time `now` (seconds since the epoch)."""
        return self.expires_at is not None and now >= self.expires_at


@dataclass(frozen=True, slots=True)
class NewKey:
    """A newly created API key with its token, which is not stored: show it to the user once."""

    id: str
    token: str

    def __repr__(self) -> str:
        """Return a representation without the token."""
        return f"NewKey(id={self.id!r})"


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An API key with the SHA-256 digest of its token in hex."""

    info: KeyInfo
    digest: str


class ListedKeys(Protocol):
    """Interface of objects that list API keys."""

    def list(self) -> Sequence[KeyInfo]:
        """Return all keys, oldest first, including expired ones. Raises `StorageError` if the keys cannot be read."""
        ...


def new_key(name: str, *, expires_days: float | None, scopes: Sequence[str] | None, now: float) -> tuple[StoredKey, NewKey]:
    """Create a key that is not stored yet. Return it in the form to store, and with its token. `now` is in seconds since the epoch.

    With `expires_days=None` the key never expires. With `scopes=None` it allows every tool, resource and prompt.

    Raises:
        ValueError: `name`, `expires_days` or a scope is invalid.
    """
    if not name.strip() or len(name) > _MAX_NAME_LENGTH or not name.isprintable():
        raise ValueError(f"A key needs a name of 1 to {_MAX_NAME_LENGTH} printable characters.")
    if expires_days is not None and not (math.isfinite(expires_days) and expires_days > 0):
        raise ValueError("A key must be valid for more than 0 days.")
    if scopes is not None and not 0 < len(scopes) <= MAX_SCOPES:
        raise ValueError(f"A key has 1 to {MAX_SCOPES} scopes; omit them for a key for everything.")
    if problem := next(filter(None, map(scope_problem, scopes or ())), None):
        raise ValueError(problem)
    key_id = secrets.token_hex(6)
    token = f"gk_{key_id}_{secrets.token_urlsafe(32)}"
    expires_at = None if expires_days is None else now + expires_days * _SECONDS_PER_DAY
    granted = None if scopes is None else tuple(dict.fromkeys(scopes))
    return StoredKey(KeyInfo(key_id, name.strip(), now, expires_at, granted), _digest(token)), NewKey(key_id, token)


class ApiKeys(ABC):
    """The API keys of a gateway. A subclass loads them into memory and keeps them current; this class checks tokens against them.

    The checks run on the event loop for each request, so they never wait.
    """

    def __init__(self) -> None:
        self._stored: Mapping[str, StoredKey] = {}
        self._infos: tuple[KeyInfo, ...] = ()
        self._clock_offset = 0.0
        """Seconds by which the clock that decides about expiry is ahead of this machine's clock."""

    @abstractmethod
    def _reload(self) -> None:
        """Make sure that the keys in memory are current. Raises `StorageError` if they cannot be read: then every token is rejected."""

    @abstractmethod
    async def take_over(self, file: Path) -> None:
        """Move the keys of the key file `file` to the place from which this object reads keys. Raises `StorageError`."""

    def _keep(self, stored: Mapping[str, StoredKey]) -> None:
        """Replace the keys in memory."""
        self._stored = stored
        self._infos = tuple(key.info for key in stored.values())

    def list(self) -> Sequence[KeyInfo]:
        """Return all keys, oldest first, including expired ones.

        Raises:
            StorageError: The keys cannot be read.
        """
        self._reload()
        return self._infos

    def find(self, token: str) -> KeyInfo | None:
        """Return the key with this token, or `None` if the token is wrong, revoked or expired.

        The time for the check does not show how much of the token is correct.

        Raises:
            StorageError: The keys cannot be read. Then every token must be rejected.
        """
        self._reload()
        parts = token.split("_", 2) if len(token) <= _MAX_TOKEN_LENGTH else []
        stored = self._stored.get(parts[1]) if len(parts) == 3 and parts[0] == "gk" else None
        expected = stored.digest if stored is not None else "0" * 64
        matches = hmac.compare_digest(_digest(token[:_MAX_TOKEN_LENGTH]), expected)
        if stored is None or not matches or stored.info.is_expired(time.time() + self._clock_offset):
            return None
        return stored.info

    def holds(self, key: KeyInfo) -> bool:
        """Return whether `key`, which `find` returned earlier, is known to be valid still. Computes no hash.

        False does not mean that the key is invalid: the keys may have been loaded again since. Then call `find` with the token. Raises
        `StorageError` as `find` does.
        """
        self._reload()
        stored = self._stored.get(key.id)
        return stored is not None and stored.info is key and not key.is_expired(time.time() + self._clock_offset)

    def current(self, principal: Principal) -> Principal | None:
        """Return `principal` with the current scopes of its key, or `None` if the key is revoked or expired.

        A principal without a key, such as the local user, is returned unchanged.

        Raises:
            StorageError: The keys cannot be read.
        """
        kind, _, key_id = principal.id.partition(":")
        if kind != "key":
            return principal
        self._reload()
        stored = self._stored.get(key_id)
        return None if stored is None or stored.info.is_expired(time.time() + self._clock_offset) else stored.info.principal

    def problem(self) -> str:
        """Return why the keys cannot be read, so that every token is rejected; empty if they can be read."""
        try:
            self._reload()
        except StorageError as error:
            return str(error)
        return ""

    def are_required(self) -> bool:
        """Return whether HTTP clients must have an API key: there is a key, even an expired one, or the keys cannot be read.

        Looks only at the keys. If this is false, the HTTP server may still require keys (`server.key_gate`).
        """
        try:
            return bool(self.list())
        except StorageError:
            return True


class KeyStore(ApiKeys):
    """The API keys in one file. The file is read again only when it has changed. If the file does not exist, there are no keys."""

    def __init__(self, path: Path) -> None:
        """`path` is the key file. If it does not exist, the store is empty, and `add` creates the file and its folder."""
        super().__init__()
        self._path = path
        self._file = str(path)
        self._stamp: tuple[int, int, int] | None = None

    def add(self, name: str, *, expires_days: float | None = None, scopes: Sequence[str] | None = None) -> NewKey:
        """Create a key, store its digest in the file, and return the key with its token.

        `name` is for people and need not be unique. With `expires_days=None` the key never expires. With `scopes=None` it allows every
        tool, resource and prompt, but is not an administrator's key. The scopes of an existing key cannot be changed.

        Raises:
            ValueError: `name`, `expires_days` or a scope is invalid.
            StorageError: The file cannot be read or written.
        """
        stored, made = new_key(name, expires_days=expires_days, scopes=scopes, now=time.time())
        self._make_folder()
        with locked(self._path):
            self._reload()
            self._write({**self._stored, made.id: stored})
        return made

    def revoke(self, key_id: str) -> KeyInfo:
        """Delete a key from the file, and return its data. All processes reject the key from now on.

        Raises:
            NotFound: The key does not exist.
            StorageError: The file cannot be read or written.
        """
        if not self._path.exists():
            raise NotFound("key", key_id)
        with locked(self._path):
            self._reload()
            stored = self._stored.get(key_id)
            if stored is None:
                raise NotFound("key", key_id)
            self._write({other: kept for other, kept in self._stored.items() if other != key_id})
        return stored.info

    def replace_by(self, stored: Mapping[str, StoredKey]) -> None:
        """Replace all keys in the file, or the marker of moved keys, by the keys `stored`. Raises `StorageError`."""
        self._write(dict(stored))

    async def take_over(self, file: Path) -> None:
        """Do nothing, because the keys stay in their file."""

    def stored(self) -> Mapping[str, StoredKey]:
        """Return all keys by id, with the digests of their tokens. Raises `StorageError`."""
        self._reload()
        return self._stored

    def has_moved(self) -> bool:
        """Return whether the file's keys were moved to a database (`mark_moved`). Raises `StorageError`."""
        document = read_json(self._path) if self._path.exists() else None
        return isinstance(document, dict) and cast("JsonObject", document).get("version") == _MOVED_VERSION

    def mark_moved(self, moved: Mapping[str, StoredKey]) -> bool:
        """Replace the file by a marker that its keys, which are `moved`, are in a database now. Keep a copy with the suffix `MOVED_SUFFIX`.

        With the marker, a gateway that does not use the database rejects every request, because it cannot know which keys were revoked
        since. Return false, and change nothing, if the file's keys are no longer `moved`.

        Raises:
            StorageError: The file cannot be read or written.
        """
        with locked(self._path):
            if self.has_moved():
                return True  # by another process of this state folder
            self._reload()
            if self._stored != moved:
                return False
            write_atomic(self._path.with_name(self._path.name + MOVED_SUFFIX), self._path.read_bytes())
            write_atomic(self._path, json.dumps({"version": _MOVED_VERSION, "keys": "moved to the database"}).encode() + b"\n")
        return True

    def _make_folder(self) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"Cannot create the folder of {str(self._path)!r}: {error.strerror or error}.") from None

    def _reload(self) -> None:
        try:
            status = os.stat(self._file)
        except FileNotFoundError:
            self._stamp = None
            if self._stored:
                self._keep({})
            return
        except OSError as error:
            raise StorageError(f"Cannot read {str(self._path)!r}: {error.strerror or error}. Check its permissions.") from None
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp == self._stamp:
            return
        self._stamp = None  # if reading fails, the next call must read the file again
        self._keep(_decode(read_json(self._path), self._path))
        self._stamp = stamp

    def _write(self, stored: dict[str, StoredKey]) -> None:
        keys: list[JsonValue] = [
            {
                "id": key.info.id,
                "name": key.info.name,
                "sha256": key.digest,
                "createdAt": key.info.created_at,
                "expiresAt": key.info.expires_at,
                **({} if key.info.scopes is None else {"scopes": list(key.info.scopes)}),
            }
            for key in stored.values()
        ]
        version = _VERSIONS[any(key.info.scopes is not None for key in stored.values())]
        write_atomic(self._path, json.dumps({"version": version, "keys": keys}, indent=2).encode() + b"\n")
        status = self._path.stat()
        self._keep(stored)
        self._stamp = (status.st_mtime_ns, status.st_size, status.st_ino)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _decode(document: JsonValue, path: Path) -> dict[str, StoredKey]:
    """Convert the JSON document of the key file to keys by id. An unexpected value makes the whole file invalid (`StorageError`).

    A damaged file is not read in part or repaired, because a guess could accept a revoked key.
    """
    try:
        if not isinstance(document, dict):
            raise TypeError("not an object")
        root = cast("JsonObject", document)
        if root["version"] == _MOVED_VERSION:
            raise StorageError(
                f"The API keys of {str(path)!r} were moved to the database of `storage.url`, so without it no API key is accepted. Set "
                f"`storage.url`, or set `storage.dir` to another folder. To have no keys, delete the file."
            )
        if root["version"] not in _VERSIONS:
            raise StorageError(
                f"{str(path)!r} has version {root['version']!r}; this Moongate reads up to {_VERSIONS[-1]}. Use the one that wrote it."
            )
        stored = [_decode_key(cast("JsonObject", key)) for key in root["keys"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StorageError(
            f"{str(path)!r} is damaged, so no API key is accepted. Restore it from a backup, or move it away and create new keys with "
            f"`moongate keys add NAME`."
        ) from None
    return {key.info.id: key for key in stored}


def _decode_key(key: JsonObject) -> StoredKey:
    expires = key["expiresAt"]
    digest = key["sha256"]
    if not isinstance(digest, str) or len(digest) != 64 or not isinstance(key["id"], str) or not isinstance(key["name"], str):
        raise TypeError("not a key")
    if "scopes" in key and key["scopes"] is None:
        raise TypeError("not scopes")
    scopes = decode_scopes(key.get("scopes"))
    return StoredKey(KeyInfo(key["id"], key["name"], float(key["createdAt"]), None if expires is None else float(expires), scopes), digest)


def decode_scopes(given: JsonValue) -> tuple[str, ...] | None:
    """Return the scopes of a key from their JSON value, a list of texts or `null`. Raises `TypeError` for every other value."""
    if given is None:
        return None
    scopes = cast("list[JsonValue]", given) if isinstance(given, list) else [given, None]
    if not all(isinstance(scope, str) for scope in scopes):
        raise TypeError("not scopes")
    return tuple(cast("list[str]", scopes))
