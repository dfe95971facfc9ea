"""`ResultStore`: stores results of calls that were too large to return as a whole, in the state folder, until they expire.

There is one file per result: a line of JSON metadata, then the bytes, written atomically. The name of the folder is a digest of the owner's
id, and the name of the file is a random id, so that another principal cannot find the result. All processes that use the state folder see
the same results. `gate.results` decides which results are stored, and what the caller receives instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import anyio
import anyio.to_thread

from gateway.errors import NotFound, StorageError, StorageUnusable, TooLargeToKeep
from gateway.json_types import JsonObject
from gateway.storage.atomic_files import make_private_folder, write_atomic

logger = logging.getLogger(__name__)

RESULT_SCHEME = "moongate://results/"
"""Prefix of the resource URI of a stored result; the id of the result follows."""

MIN_FILE_COST = 4_096
"""Minimum size in bytes that each file counts towards its owner's storage limit, because even a small file occupies this space on disk.

The minimum also limits the number of files.
"""

MAX_SWEEP_SECONDS = 60.0
"""Maximum seconds between two deletions of expired results."""

STALE_TEMPORARY_SECONDS = 600.0
"""Age in seconds at which a temporary file is deleted, because the process that wrote it must have died."""

MAX_HEADER_BYTES = 4_096
"""Maximum size in bytes of the metadata line of a file. Names that a server or client chose are cut to fit."""

_WORKERS = 2
"""Maximum number of results that are written or read concurrently, because each may occupy tens of megabytes of memory."""

_ID = re.compile(r"^[A-Za-z0-9_-]{22}$")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeptResult:
    """Metadata of a stored result of a call, which was too large to return as a whole. The content is not included."""

    id: str
    mime_type: str
    size: int
    """Size of the stored result in bytes."""
    origin: str
    """Exposed name of the tool or prompt, or URI of the resource, that produced the result."""

    @property
    def uri(self) -> str:
        """The URI by which clients read the stored result as a resource."""
        return RESULT_SCHEME + self.id


class ResultStore:
    """Stores large results of calls as files, by owner (a principal's id), and deletes them when they expire.

    No file is created before the first result. Run `sweep_forever` while the store is used.
    """

    def __init__(self, folder: Path | str, *, ttl_seconds: float, max_bytes_per_owner: int, clock: Callable[[], float] = time.time) -> None:
        """Store the settings. The first result creates `folder` and its missing parents.

        Results expire after `ttl_seconds`. `clock` returns wall time, like the timestamps of files.
        """
        self._folder = Path(folder)
        self.ttl_seconds = ttl_seconds
        self._max_bytes = max_bytes_per_owner
        self._clock = clock
        self._limiter = anyio.CapacityLimiter(_WORKERS)

    @property
    def settings(self) -> JsonObject:
        """The arguments of the constructor (without `clock`), from which another process can create a store with the same results."""
        return {"folder": str(self._folder), "ttl_seconds": self.ttl_seconds, "max_bytes_per_owner": self._max_bytes}

    async def work(self, job: Callable[[], T]) -> T:
        """Run a blocking method of this store in a worker thread; at most `_WORKERS` run at once."""
        return await anyio.to_thread.run_sync(job, limiter=self._limiter)

    # -- blocking: call these with `work` ----------------------------------------------------------------------

    def keep(self, owner: str, *body: bytes, mime_type: str, origin: str) -> KeptResult:
        """Store a result, given in parts, for the principal with the id `owner`, and return its metadata.

        If the owner's results exceed the limit, the oldest are deleted.

        Raises:
            TooLargeToKeep: The result alone exceeds the limit per owner.
            StorageError: The result cannot be written.
        """
        size = sum(map(len, body))
        if size > self._max_bytes:
            raise TooLargeToKeep(f"The result exceeds the {self._max_bytes} bytes that `storage.maxResultBytesPerCaller` allows.")
        kept = KeptResult(secrets.token_urlsafe(16), mime_type[:200], size, origin[:400])
        facts = {"version": 1, "mime_type": kept.mime_type, "size": size, "origin": kept.origin}
        header = json.dumps(facts, ensure_ascii=False).encode(errors="replace") + b"\n"
        folder = self._folder_of(owner)
        try:
            make_private_folder(self._folder)
            make_private_folder(folder)
        except OSError as error:
            raise StorageUnusable(f"Cannot create {str(folder)!r}: {error.strerror or error}.") from None
        try:
            write_atomic(folder / kept.id, header, *body)
        except StorageError:
            if folder.exists():
                raise
            # The sweep of another process has just deleted the empty folder.
            make_private_folder(folder)
            write_atomic(folder / kept.id, header, *body)
        self._make_room(folder, kept.id)
        return kept

    def find(self, owner: str, result_id: str) -> KeptResult:
        """Return the metadata of the stored result with this id.

        Raises:
            NotFound: The result is unknown, expired, or belongs to another owner.
        """
        return self._open(owner, result_id)[0]

    def slice(self, owner: str, result_id: str, start: int, length: int) -> bytes:
        """Return `length` bytes of a stored result, beginning at `start`, or fewer at the end of the result. Raises `NotFound`."""
        kept, path, offset = self._open(owner, result_id)
        try:
            with path.open("rb") as file:
                file.seek(offset + start)
                return file.read(max(0, min(length, kept.size - start)))
        except OSError:
            raise _unknown(result_id) from None

    def body(self, owner: str, result_id: str) -> bytes:
        """Return all bytes of a stored result. Raises `NotFound`."""
        return self.slice(owner, result_id, 0, self.find(owner, result_id).size)

    def sweep(self) -> None:
        """Delete expired results, and temporary files of processes that died. Several processes may do this at once."""
        with contextlib.suppress(FileNotFoundError):
            for folder in list(self._folder.iterdir()):
                if folder.is_dir() and not folder.is_symlink():
                    self._sweep_owner(folder)

    async def sweep_forever(self) -> None:
        """Delete expired results periodically, until cancelled."""
        while True:
            try:
                await self.work(self.sweep)
            except OSError as error:
                logger.warning("sweep of stored results failed reason=%r", error.strerror or str(error))
            await anyio.sleep(min(MAX_SWEEP_SECONDS, self.ttl_seconds / 2))

    def _folder_of(self, owner: str) -> Path:
        return self._folder / hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _open(self, owner: str, result_id: str) -> tuple[KeptResult, Path, int]:
        if not _ID.match(result_id):
            raise _unknown(result_id)
        path = self._folder_of(owner) / result_id
        try:
            with path.open("rb") as file:
                if self._is_expired(os.fstat(file.fileno()).st_mtime):
                    raise _unknown(result_id)
                line = file.readline(MAX_HEADER_BYTES)
                size = os.fstat(file.fileno()).st_size - len(line)
            header = cast("JsonObject", json.loads(line))
            kept = KeptResult(result_id, str(header["mime_type"]), int(header["size"]), str(header["origin"]))
        except (OSError, ValueError, KeyError, TypeError):
            raise _unknown(result_id) from None
        if size != kept.size:
            raise _unknown(result_id)
        return kept, path, len(line)

    def _is_expired(self, modified: float) -> bool:
        return self._clock() - modified >= self.ttl_seconds

    def _make_room(self, folder: Path, newest: str) -> None:
        files = sorted(self._files(folder), key=lambda item: (item[0].name == newest, item[1].st_mtime_ns))
        total = sum(max(MIN_FILE_COST, stat.st_size) for _, stat in files)
        for path, stat in files:
            if total <= self._max_bytes or path.name == newest:
                return
            total -= max(MIN_FILE_COST, stat.st_size)
            with contextlib.suppress(OSError):
                path.unlink()

    def _files(self, folder: Path) -> list[tuple[Path, os.stat_result]]:
        """Return all files with complete results in the folder of one owner, each with its file status."""
        found: list[tuple[Path, os.stat_result]] = []
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if _ID.match(entry.name):
                    with contextlib.suppress(OSError):
                        found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
        return found

    def _sweep_owner(self, folder: Path) -> None:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    modified = entry.stat(follow_symlinks=False).st_mtime
                    stale = entry.name.endswith(".tmp") and self._clock() - modified >= STALE_TEMPORARY_SECONDS
                    if stale or (_ID.match(entry.name) and self._is_expired(modified)):
                        os.unlink(entry.path)
        with contextlib.suppress(OSError):
            folder.rmdir()  # succeeds only if the folder is empty


def _unknown(result_id: str) -> NotFound:
    return NotFound("result", result_id[:100], f"Unknown result: {result_id[:100]!r}. It may have expired or been deleted to make room.")
