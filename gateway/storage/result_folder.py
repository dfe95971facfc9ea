"""`FolderResults`: stores results of calls that were too large to return as a whole, in the state folder, until they expire.

There is one file per result, written atomically. All processes that use the state folder see the same results.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from gateway.errors import StorageError, StorageUnusable
from gateway.json_types import JsonObject
from gateway.storage.atomic_files import make_private_folder, write_atomic
from gateway.storage.result_store import (
    MAX_SWEEP_SECONDS,
    RESULT_ID,
    KeptResult,
    from_line,
    new_result,
    owner_folder,
    to_evict,
    to_line,
    unknown,
)

logger = logging.getLogger(__name__)

STALE_TEMPORARY_SECONDS = 600.0
"""Age in seconds at which a temporary file is deleted, because the process that wrote it must have died."""

MAX_LINE_BYTES = 4_096
"""Maximum size in bytes of the metadata line of a file. Names that a server or client chose are cut to fit."""

_WORKERS = 2
"""Maximum number of results that are written or read concurrently, because each may occupy tens of megabytes of memory."""

T = TypeVar("T")


class FolderResults:
    """Implementation of `ResultStore` with one file per result.

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

    async def check(self) -> None:
        """Do nothing: the gateway cannot start without its state folder."""

    async def work(self, job: Callable[[], T]) -> T:
        """Run a blocking method of this store in a worker thread; at most `_WORKERS` run at once."""
        return await anyio.to_thread.run_sync(job, limiter=self._limiter)

    # -- blocking: call these with `work` ----------------------------------------------------------------------

    def keep(self, owner: str, *body: bytes, mime_type: str, origin: str) -> KeptResult:
        """Store a result as a file. See `ResultStore.keep`."""
        kept = new_result(sum(map(len, body)), mime_type=mime_type, origin=origin, max_bytes=self._max_bytes)
        line = to_line(kept)
        folder = self._folder_of(owner)
        try:
            make_private_folder(self._folder)
            make_private_folder(folder)
        except OSError as error:
            raise StorageUnusable(f"Cannot create {str(folder)!r}: {error.strerror or error}.") from None
        try:
            write_atomic(folder / kept.id, line, *body)
        except StorageError:
            if folder.exists():
                raise
            # The sweep of another process has just deleted the empty folder.
            make_private_folder(folder)
            write_atomic(folder / kept.id, line, *body)
        self._make_room(folder, kept.id)
        return kept

    def find(self, owner: str, result_id: str) -> KeptResult:
        """Return the metadata of the stored result with this id. See `ResultStore.find`."""
        return self._open(owner, result_id)[0]

    def slice(self, owner: str, result_id: str, start: int, length: int) -> bytes:
        """Return `length` bytes of a stored result, beginning at `start`, or fewer at the end of the result. Raises `NotFound`."""
        kept, path, offset = self._open(owner, result_id)
        try:
            with path.open("rb") as file:
                file.seek(offset + start)
                return file.read(max(0, min(length, kept.size - start)))
        except OSError:
            raise unknown(result_id) from None

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
        return self._folder / owner_folder(owner)

    def _open(self, owner: str, result_id: str) -> tuple[KeptResult, Path, int]:
        if not RESULT_ID.match(result_id):
            raise unknown(result_id)
        path = self._folder_of(owner) / result_id
        try:
            with path.open("rb") as file:
                if self._is_expired(os.fstat(file.fileno()).st_mtime):
                    raise unknown(result_id)
                line = file.readline(MAX_LINE_BYTES)
                size = os.fstat(file.fileno()).st_size - len(line)
        except OSError:
            raise unknown(result_id) from None
        return from_line(result_id, line, size)[0], path, len(line)

    def _is_expired(self, modified: float) -> bool:
        return self._clock() - modified >= self.ttl_seconds

    def _make_room(self, folder: Path, newest: str) -> None:
        files = sorted(self._files(folder), key=lambda item: item[1].st_mtime_ns)
        for name in to_evict([(name, stat.st_size) for name, stat in files], newest, self._max_bytes):
            with contextlib.suppress(OSError):
                (folder / name).unlink()

    def _files(self, folder: Path) -> list[tuple[str, os.stat_result]]:
        """Return the names of all files with complete results in the folder of one owner, each with its file status."""
        found: list[tuple[str, os.stat_result]] = []
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if RESULT_ID.match(entry.name):
                    with contextlib.suppress(OSError):
                        found.append((entry.name, entry.stat(follow_symlinks=False)))
        return found

    def _sweep_owner(self, folder: Path) -> None:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    modified = entry.stat(follow_symlinks=False).st_mtime
                    stale = entry.name.endswith(".tmp") and self._clock() - modified >= STALE_TEMPORARY_SECONDS
                    if stale or (RESULT_ID.match(entry.name) and self._is_expired(modified)):
                        os.unlink(entry.path)
        with contextlib.suppress(OSError):
            folder.rmdir()  # succeeds only if the folder is empty
