"""`LineFile`: reads and appends to a file with one JSON value per line, which several processes share.

A line is complete if it ends with a line break, or if it is the last line and is valid JSON. If a process dies while it writes a line
(`kill -9`, power loss), the next append moves the incomplete line to `<name>.torn`. Reading and appending hold a lock of the file, which
the operating system releases if the process dies.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from gateway.errors import StorageError, StorageUnusable
from gateway.storage.locks import take_lock

logger = logging.getLogger(__name__)

LOCK_SECONDS = 10.0
"""Maximum seconds to wait for the lock of the file; an append takes milliseconds."""

MAX_FILE_BYTES = 268_435_456
"""Maximum size in bytes of a file that is read. The content of a larger file would exceed every model's context and fill the memory."""

_LOCK_OFFSET = 2**40
"""Offset of the byte that processes lock, on systems that lock byte ranges of a file. The offset is far beyond the content of the file."""


class LineFile:
    """A file with one JSON value per line, to which several processes append.

    The file is open only during reads and appends; its folder must exist then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    async def read(self) -> list[bytes]:
        """Return all complete lines without their line breaks, or an empty list if the file does not exist. Skip an incomplete last line.

        Raises:
            StorageError: The file cannot be read, is too large, or another process holds its lock for longer than `LOCK_SECONDS`.
        """
        async with self._held(os.O_RDONLY) as descriptor:
            return [] if descriptor is None else await anyio.to_thread.run_sync(self._read, descriptor)

    async def append(self, lines: Sequence[bytes]) -> None:
        """Append `lines`, given without line breaks. If writing fails, no line is appended. On return, the lines are on disk.

        Raises:
            StorageError: The file cannot be written, or another process holds its lock for longer than `LOCK_SECONDS`.
        """
        async with self._held(os.O_RDWR | os.O_APPEND | os.O_CREAT) as descriptor:
            assert descriptor is not None
            with anyio.CancelScope(shield=True):  # a cancelled write would leave an incomplete line
                await anyio.to_thread.run_sync(self._append, descriptor, b"".join(line + b"\n" for line in lines))

    @asynccontextmanager
    async def _held(self, flags: int) -> AsyncGenerator[int | None]:
        """Context manager: open the file, wait for its lock, and yield the descriptor.

        Yields `None` if the file does not exist and `flags` (the flags of `os.open`) do not create it.
        """
        descriptor = await anyio.to_thread.run_sync(self._open, flags)
        if descriptor is None:
            yield None
            return
        try:
            os.lseek(descriptor, _LOCK_OFFSET, os.SEEK_SET)
            if not await take_lock(descriptor, LOCK_SECONDS):
                raise StorageUnusable(f"Another process has locked {str(self.path)!r} for more than {LOCK_SECONDS:g} s; try again later.")
            yield descriptor
        finally:
            os.close(descriptor)  # also releases the lock

    def _open(self, flags: int) -> int | None:
        try:
            descriptor = os.open(self.path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
            reason = "it is not a regular file"
        except FileNotFoundError as error:
            if not flags & os.O_CREAT:
                return None
            reason = error.strerror or str(error)
        except OSError as error:
            reason = error.strerror or str(error)
        raise StorageUnusable(f"Cannot open {str(self.path)!r}: {reason}. Check that it is a regular file, and its permissions.") from None

    def _read(self, descriptor: int) -> list[bytes]:
        size = os.fstat(descriptor).st_size
        if size > MAX_FILE_BYTES:
            raise StorageError(f"{str(self.path)!r} has {size} bytes, more than {MAX_FILE_BYTES}; move it away to start afresh.")
        try:
            data = _read_from(descriptor, 0, size)
        except OSError as error:
            raise StorageUnusable(f"Cannot read {str(self.path)!r}: {error.strerror or error}.") from None
        whole, _, rest = data.rpartition(b"\n")
        lines = whole.split(b"\n") if whole else []
        if _is_complete(rest):
            lines.append(rest)
        elif rest:
            logger.warning("incomplete last line skipped file=%r bytes=%d", str(self.path), len(rest))
        return lines

    def _append(self, descriptor: int, data: bytes) -> None:
        try:
            self._ensure_final_break(descriptor)
            size = os.fstat(descriptor).st_size
            try:
                left = memoryview(data)
                while left:
                    left = left[os.write(descriptor, left) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)  # so that all lines are written or none
                raise
        except OSError as error:
            raise StorageUnusable(f"Cannot write {str(self.path)!r}: {error.strerror or error}. Check the folder's space.") from None

    def _ensure_final_break(self, descriptor: int) -> None:
        """Make a file that is not empty end with a line break. An incomplete last line is moved to `<name>.torn`."""
        size = os.fstat(descriptor).st_size
        if size == 0 or _read_from(descriptor, size - 1, 1) == b"\n":
            return
        start, tail = size, b""
        while start > 0 and b"\n" not in tail:
            step = min(65_536, start)
            start -= step
            tail = _read_from(descriptor, start, step) + tail
        rest = tail.rpartition(b"\n")[2]
        if _is_complete(rest):
            os.write(descriptor, b"\n")
            return
        torn = self.path.with_name(f"{self.path.name}.torn")
        with torn.open("ab") as kept:
            kept.write(rest + b"\n")
            kept.flush()
            os.fsync(kept.fileno())
        os.ftruncate(descriptor, size - len(rest))
        logger.warning("incomplete last line moved file=%r bytes=%d to=%r", str(self.path), len(rest), str(torn))


def _read_from(descriptor: int, start: int, length: int) -> bytes:
    os.lseek(descriptor, start, os.SEEK_SET)
    parts: list[bytes] = []
    while length > 0 and (part := os.read(descriptor, min(length, 1_048_576))):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _is_complete(line: bytes) -> bool:
    """Return whether a last line without a line break is complete (valid JSON). Editors may omit the final line break."""
    try:
        return bool(line.strip()) and json.loads(line) is not None
    except (ValueError, RecursionError):
        return False
