"""The file format of backups: a tar file without compression, whose first member `manifest.json` describes all others.

`database/<table>.jsonl` has the rows of a table (`table_rows`), and `state/…` a file of the state folder. `write_archive` writes the file,
and `Archive` reads it. A backup may come from anywhere, so `Archive` accepts only regular members with expected names, of the size and with
the digest that the manifest names, and never extracts by the names or modes of the tar file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, cast

from gateway.errors import StorageError, StorageUnusable
from gateway.storage.atomic_files import make_private_folder
from gateway.storage.tables import TABLES

FORMAT = 1
"""Version of the file format."""

MANIFEST = "manifest.json"

DATABASE_FOLDER = "database/"

STATE_FOLDER = "state/"

STATE_FILES = ("installation-key", "keys.json")
"""Files of the state folder that a backup contains."""

STATE_FOLDERS = ("tokens", "pins", "accepted", "results")
"""Folders of the state folder whose files a backup contains. Everything else is the database, a cache, or of running processes."""

MAX_MANIFEST_BYTES = 16_777_216
"""Maximum size in bytes of a manifest that is read."""

MAX_MEMBERS = 100_000
"""Maximum number of members of a backup."""

_CHUNK = 1 << 20

_PART = re.compile(r"[^./\\:\x00-\x1f\x7f][^/\\:\x00-\x1f\x7f]{0,250}")
"""Name of a file or folder in a backup. It has no leading dot, separator or control character."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a backup: its size in bytes, its SHA-256 digest, and its time of modification in seconds since the epoch."""

    size: int
    sha256: str
    modified: float = 0.0


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup contains."""

    moongate: str
    """Version of Moongate that made the backup."""
    created_at: float
    """Time of the backup in seconds since the epoch."""
    schema: int
    """Schema version of the database; 0 if there was no database."""
    numbers: Mapping[str, int]
    """Highest number of a row, by table (`table_rows.last_numbers`)."""
    members: Mapping[str, Member]
    """All members except the manifest, by name."""


def write_archive(target: Path, manifest: Manifest, files: Mapping[str, Path]) -> None:
    """Write the tar file `target` (mode 0600) and flush it to disk. `files` has the file of each member of the manifest.

    Raises:
        OSError: The file cannot be written.
    """
    described = {
        "format": FORMAT,
        "moongate": manifest.moongate,
        "createdAt": manifest.created_at,
        "schema": manifest.schema,
        "numbers": dict(manifest.numbers),
        "members": {
            name: {"size": member.size, "sha256": member.sha256, "modified": member.modified} for name, member in manifest.members.items()
        },
    }
    text = json.dumps(described, indent=1).encode()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as raw:
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
            _add(tar, MANIFEST, len(text), manifest.created_at, BytesIO(text))
            for name, member in manifest.members.items():
                with files[name].open("rb") as content:
                    _add(tar, name, member.size, member.modified, content)
        raw.flush()
        os.fsync(raw.fileno())


def digest_of(path: Path) -> Member:
    """Return the size, digest and time of modification of a file. Raises `OSError`."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        modified = os.fstat(file.fileno()).st_mtime
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return Member(size, digest.hexdigest(), modified)


class Archive:
    """An open backup, whose manifest has been read. `open_archive` creates it."""

    def __init__(self, tar: tarfile.TarFile, shown: str, size: int) -> None:
        """Read the manifest, and check the names and sizes that it contains. Raises `StorageError`."""
        self._tar = tar
        self._shown = shown
        self._size = size
        self.manifest = self._read_manifest()

    def extract(self, folder: Path) -> None:
        """Write every member below `folder`, which exists and is empty, and check sizes and digests. New files have mode 0600.

        Raises:
            StorageError: The backup is damaged, or has a member that no backup of Moongate has.
            OSError: A file cannot be written.
        """
        missing = dict(self.manifest.members)
        while (info := self._next()) is not None:
            member = missing.pop(info.name, None)
            if member is None or not _is_plain(info) or info.size != member.size:
                raise self.damaged(f"the member {info.name[:200]!r} is not as the manifest describes it")
            target = folder.joinpath(*info.name.split("/"))
            make_private_folder(target.parent)
            digest = hashlib.sha256()
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                for chunk in self._chunks(info):
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            if digest.hexdigest() != member.sha256:
                raise self.damaged(f"the content of {info.name!r} does not match its digest")
            os.utime(target, (member.modified, member.modified))
        if missing:
            raise self.damaged(f"the member {next(iter(missing))!r} is missing")

    def damaged(self, reason: str) -> StorageError:
        """Return the error for a damaged backup."""
        return StorageError(f"{self._shown} is not a complete backup of Moongate: {reason}. Nothing was changed; use another backup.")

    def _next(self) -> tarfile.TarInfo | None:
        try:
            return self._tar.next()
        except (tarfile.TarError, ValueError, LookupError, ArithmeticError, EOFError) as error:
            raise self.damaged(str(error)) from None

    def _chunks(self, info: tarfile.TarInfo) -> Generator[bytes]:
        source = self._tar.extractfile(info)
        assert source is not None  # a regular file
        try:
            while chunk := source.read(_CHUNK):
                yield chunk
        except tarfile.ReadError as error:
            raise self.damaged(str(error)) from None

    def _read_manifest(self) -> Manifest:
        first = self._next()
        if first is None or first.name != MANIFEST or not _is_plain(first) or first.size > MAX_MANIFEST_BYTES:
            raise self.damaged("it does not begin with a manifest")
        text = b"".join(self._chunks(first))
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise self.damaged("its manifest is not JSON")
        found = cast("dict[str, Any]", document)
        if found.get("format") != FORMAT:
            made = str(found.get("moongate", ""))[:50] or "unknown"
            raise StorageError(f"{self._shown} has a format of another Moongate (version {made}). Restore it with that version.")
        try:
            return self._checked(found)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise self.damaged("its manifest is malformed") from None

    def _checked(self, found: dict[str, Any]) -> Manifest:
        members = {str(name): _member(fields) for name, fields in found["members"].items()}
        if len(members) > MAX_MEMBERS or any(member.size < 0 for member in members.values()):
            raise self.damaged(f"it has more than {MAX_MEMBERS} files")
        if sum(member.size for member in members.values()) > self._size:
            raise self.damaged("its files are larger than the backup itself")
        for name in members:
            if not is_member_name(name):
                raise self.damaged(f"its manifest names {name[:200]!r}, which no backup contains")
        tables = {table.name for table in TABLES}
        numbers = {str(table): int(number) for table, number in found["numbers"].items()}
        schema = int(found["schema"])
        if not numbers.keys() <= tables or schema < 0 or any(number < 0 for number in numbers.values()):
            raise ValueError
        return Manifest(str(found["moongate"])[:50], float(found["createdAt"]), schema, numbers, members)


@contextmanager
def open_archive(path: Path) -> Generator[Archive]:
    """Context manager: open a backup and read its manifest.

    Raises:
        StorageError: The file cannot be read, or is not a backup that this program understands.
    """
    shown = repr(str(path))
    try:
        raw = path.open("rb")
    except OSError as error:
        raise StorageUnusable(f"Cannot read {shown}: {error.strerror or error}.", passes=False) from None
    with raw:
        size = os.fstat(raw.fileno()).st_size
        try:
            tar = tarfile.open(fileobj=raw, mode="r:")
        except (tarfile.TarError, ValueError, LookupError, ArithmeticError, EOFError) as error:
            raise StorageError(f"{shown} is not a backup of Moongate: {error}.") from None
        with tar:
            yield Archive(tar, shown, size)


def is_member_name(name: str) -> bool:
    """Return whether a backup may contain a member with this name: a table's rows, or a file of the state folder."""
    if name.startswith(DATABASE_FOLDER):
        return name.removeprefix(DATABASE_FOLDER).removesuffix(".jsonl") in {table.name for table in TABLES} and name.endswith(".jsonl")
    if not name.startswith(STATE_FOLDER):
        return False
    first, *further = name.removeprefix(STATE_FOLDER).split("/")
    if not further:
        return first in STATE_FILES
    return first in STATE_FOLDERS and len(further) <= 2 and all(map(_PART.fullmatch, further))


def _member(fields: Any) -> Member:
    return Member(int(fields["size"]), str(fields["sha256"]), float(fields["modified"]))


def _is_plain(info: tarfile.TarInfo) -> bool:
    """Return whether a member is an ordinary file. A sparse file could claim any size."""
    return info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not info.issparse()


def _add(tar: tarfile.TarFile, name: str, size: int, modified: float, content: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, int(modified), 0o600
    tar.addfile(info, content)
