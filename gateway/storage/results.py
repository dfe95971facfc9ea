"""`ResultStore`: bodies that were too large to hand out whole, kept in the state folder until they are read or expire.

One file per body: a line of JSON about it, then the body's own bytes, written once and whole. The folder is the
owner's, named by a digest, and the name is random, so an id of somebody else is as unknown as one that never was.
All processes of one state folder see the same bodies; nothing is remembered in memory. Who keeps what, and how it
is shown, is the business of `tools.results`.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar, cast

import anyio
import anyio.to_thread

from gateway.errors import NotFound, StorageError, StorageUnusable, TooLargeToKeep
from gateway.json_types import JsonObject
from gateway.storage.files import make_private_folder, write_atomic

logger = logging.getLogger(__name__)

RESULT_SCHEME = "moongate://results/"
"""Before an id, its URI."""

MIN_FILE_COST = 4_096
"""What a file counts at least against the cap: about what it takes on disk. It bounds the number of files as well."""

MAX_SWEEP_SECONDS = 60.0
"""Expired bodies are looked for at least this often."""

STALE_TEMPORARY_SECONDS = 600.0
"""A temporary file older than this was left by a process that died while it wrote."""

MAX_HEADER_BYTES = 4_096
"""The line about a body; what a peer named it by is cut to fit."""

_WORKERS = 2
"""Bodies written or read at once: each may take tens of megabytes of memory."""

_ID = re.compile(r"^[A-Za-z0-9_-]{22}$")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeptResult:
    """What is known of a kept body without reading it."""

    id: str
    mime_type: str
    size: int
    """Bytes of the body."""
    origin: str
    """The exposed tool name, resource URI or prompt it came from."""

    @property
    def uri(self) -> str:
        """Where it is read as a resource."""
        return RESULT_SCHEME + self.id


class ResultStore:
    """Kept bodies of every caller. Nothing is touched before the first body; run `sweep_forever` while it is used."""

    def __init__(self, folder: Path, *, ttl_seconds: float, max_bytes_per_owner: int, clock: Callable[[], float] = time.time) -> None:
        """`folder` is made on first use; its parent must exist then. `clock` is wall time, as files carry it."""
        self._folder = folder
        self._ttl = ttl_seconds
        self._max_bytes = max_bytes_per_owner
        self._clock = clock
        self._limiter = anyio.CapacityLimiter(_WORKERS)

    @property
    def settings(self) -> JsonObject:
        """What makes the same store in another process, but for the clock."""
        return {"folder": str(self._folder), "ttl_seconds": self._ttl, "max_bytes_per_owner": self._max_bytes}

    async def work(self, job: Callable[[], T]) -> T:
        """Run blocking work on bodies in a worker thread, few at a time."""
        return await anyio.to_thread.run_sync(job, limiter=self._limiter)

    # -- blocking: call these inside `work` --------------------------------------------------------------------

    def keep(self, owner: str, *body: bytes, mime_type: str, origin: str) -> KeptResult:
        """Store a body, given in parts, for the principal id `owner`; the oldest of the owner's bodies make room.

        Raises:
            TooLargeToKeep: It alone exceeds what one caller may keep.
            StorageError: It cannot be written.
        """
        size = sum(map(len, body))
        if size > self._max_bytes:
            raise TooLargeToKeep(f"It is larger than the {self._max_bytes} bytes that `storage.maxResultBytesPerCaller` allows.")
        kept = KeptResult(secrets.token_urlsafe(16), mime_type[:200], size, origin[:500])
        header = json.dumps({"version": 1, **{k: v for k, v in asdict(kept).items() if k != "id"}}).encode() + b"\n"
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
            # A sweep of another process took the empty folder away in between.
            make_private_folder(folder)
            write_atomic(folder / kept.id, header, *body)
        self._make_room(folder, kept.id)
        return kept

    def find(self, owner: str, result_id: str) -> KeptResult:
        """What is known of a body.

        Raises:
            NotFound: Unknown, expired, or not this owner's.
        """
        return self._open(owner, result_id)[0]

    def slice(self, owner: str, result_id: str, start: int, length: int) -> bytes:
        """Bytes of a body from `start`, at most `length`; fewer at its end. Raises `NotFound`."""
        kept, path, offset = self._open(owner, result_id)
        try:
            with path.open("rb") as file:
                file.seek(offset + start)
                return file.read(max(0, min(length, kept.size - start)))
        except OSError:
            raise _unknown(result_id) from None

    def body(self, owner: str, result_id: str) -> bytes:
        """A whole body. Raises `NotFound`."""
        return self.slice(owner, result_id, 0, self.find(owner, result_id).size)

    def sweep(self) -> None:
        """Remove what expired, and what a crash left. Safe beside other processes that do the same."""
        with contextlib.suppress(FileNotFoundError):
            for folder in list(self._folder.iterdir()):
                if folder.is_dir() and not folder.is_symlink():
                    self._sweep_owner(folder)

    async def sweep_forever(self) -> None:
        """Sweep now and then again and again, until cancelled."""
        while True:
            try:
                await self.work(self.sweep)
            except OSError as error:
                logger.warning("Kept results could not be swept: %s", error.strerror or error)
            await anyio.sleep(min(MAX_SWEEP_SECONDS, self._ttl / 2))

    # -- inside ------------------------------------------------------------------------------------------------

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
        return self._clock() - modified >= self._ttl

    def _make_room(self, folder: Path, newest: str) -> None:
        files = sorted(self._files(folder), key=lambda item: (item[0].name == newest, item[1].st_mtime_ns))
        total = sum(max(MIN_FILE_COST, stat.st_size) for _, stat in files)
        for path, stat in files:
            if total <= self._max_bytes or path.name == newest:
                return
            total -= max(MIN_FILE_COST, stat.st_size)
            _remove(path)

    def _files(self, folder: Path) -> list[tuple[Path, os.stat_result]]:
        """Finished bodies of one owner that are still there."""
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
            folder.rmdir()  # only succeeds when it is empty


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _unknown(result_id: str) -> NotFound:
    return NotFound("result", result_id[:100], f"Unknown result: {result_id[:100]!r}. It may have expired, or made room for newer ones.")
