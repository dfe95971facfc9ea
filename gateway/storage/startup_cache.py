"""`StartupCache`: a file with the responses of a stdio gateway to `initialize` and list requests, for the gateway's next start.

The next start sends these responses before the gateway is loaded. There is one file per configuration file, in the user's default state
folder, because the configuration (which may name another folder) is not parsed yet when the file is needed. The file is used only if all of
these are unchanged: the version, the Python environment, the files that determine the lists, and the environment variables that the
configuration names. The file contains only data that was sent to a client. It is authenticated with the installation's key, because its
text is sent to clients unchanged. This module is imported before the gateway, so it imports little.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gateway.errors import StorageError
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.atomic_files import make_private_folder, write_atomic
from gateway.storage.state_folder import StateFolder, default_state_dir

FOLDER = "first-answers"

FORMAT = 1

MAX_BYTES = 4_194_304
"""Maximum size of the cache file in bytes. Larger responses are not cached."""

MAX_FILES = 2_000
"""Maximum number of files that are checked for changes at a start. A gateway that depends on more files is not cached."""

CLOCK_TICK_NS = 20_000_000
"""Coarsest assumed resolution of the timestamps of file systems, in nanoseconds (20 ms).

A file whose modification time is up to this much before the start of the process may have changed after the start."""

_VARIABLE = re.compile(rb"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)")

Signature = tuple[int, int, int, int] | None
"""Modification time, inode change time, size and inode of a file; `None` if the file is missing.

A file counts as unchanged if these values are the same as when the cache was written."""


@dataclass(frozen=True, slots=True)
class CachedAnswers:
    """Responses to `initialize` and to list requests (such as `tools/list`), which are the same for every client."""

    introduction: JsonObject
    """The result of `initialize`, without the protocol version."""
    lists: Mapping[str, str]
    """MCP method of a list request, such as `tools/list` → its result as JSON text. Only lists that fit on one page are cached."""


class StartupCache:
    """Reads and writes the file with the cached responses for one configuration. Every method blocks."""

    def __init__(self, configuration: Path, version: str) -> None:
        """Compute the path of the cache file from the path of the configuration file. `version` is the version of the gateway.

        Raises `StorageError` if the user has no home folder.
        """
        self._configuration = configuration
        self._origin = [str(FORMAT), version, sys.version, sys.prefix, str(configuration)]
        self._state = StateFolder(default_state_dir())
        name = hashlib.sha256(os.fsencode(configuration)).hexdigest()[:32]
        self.path = self._state.path / FOLDER / f"{name}.json"

    def read(self) -> CachedAnswers | None:
        """Return the cached responses, or `None` if the cache file is missing, not authentic, or outdated.

        The file is outdated if the gateway's version, or a file or environment variable on which the responses depend, has changed.
        """
        try:
            tag, _, body = _read_own(self.path).partition(b"\n")
            key = self._state.key("first-answers")
        except (OSError, StorageError):
            return None
        if not hmac.compare_digest(tag, _tag(key, body)):
            return None
        document = cast("dict[str, JsonValue]", json.loads(body))
        if document["origin"] != self._origin:
            return None
        files = cast("dict[str, list[int] | None]", document["files"])
        variables = cast("list[str]", document["variables"])
        if document["environment"] != _environment(key, variables):
            return None
        if any(_signature(path) != (tuple(seen) if seen is not None else None) for path, seen in files.items()):
            return None
        return CachedAnswers(cast("JsonObject", document["introduction"]), cast("dict[str, str]", document["lists"]))

    def keep(self, files: Iterable[Path], since_ns: int, known: CachedAnswers) -> bool:
        """Store responses in the cache file for the next start; return whether they were stored.

        `files` are the files on which the responses depend. Nothing is stored if one of them changed after `since_ns` (the start of this
        process), because the gateway may have read it before the change, or if `MAX_FILES` or `MAX_BYTES` is exceeded. Raises
        `StorageError` and `OSError`.
        """
        paths = sorted({str(self._configuration), *(str(file) for file in files)})
        if len(paths) > MAX_FILES:
            return False
        seen = {path: _signature(path) for path in paths}
        if any(found is not None and max(found[:2]) > since_ns - CLOCK_TICK_NS for found in seen.values()):
            return False
        variables = sorted({name.decode() for name in _VARIABLE.findall(self._configuration.read_bytes())} | {"HOME"})
        key = self._state.key("first-answers")
        document = {
            "origin": self._origin,
            "files": seen,
            "variables": variables,
            "environment": _environment(key, variables),
            "introduction": known.introduction,
            "lists": dict(known.lists),
        }
        body = json.dumps(document).encode()
        data = _tag(key, body) + b"\n" + body
        if len(data) > MAX_BYTES:
            return False
        if not self._holds(data):
            make_private_folder(self.path.parent)
            if self.path.is_symlink():
                self.path.unlink()
            write_atomic(self.path, data)
        return True

    def _holds(self, data: bytes) -> bool:
        try:
            return _read_own(self.path) == data
        except OSError:
            return False


def _read_own(path: Path) -> bytes:
    """Return the content of a file. Raises `OSError` unless it is a regular file that this user owns and only this user may write."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022 or found.st_size > MAX_BYTES:
            raise PermissionError(f"{str(path)!r} is not a regular file that only this user may write.")
        return file.read(MAX_BYTES)


def _tag(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256").hex().encode()


def _environment(key: bytes, variables: Iterable[str]) -> str:
    values = [[name, os.environ.get(name)] for name in variables]
    return _tag(key, b"environment" + json.dumps(values).encode()).decode()


def _signature(path: str) -> Signature:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
