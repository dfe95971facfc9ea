"""`LineFile`: a file of one JSON value per line that only grows; read and appended to by several processes.

A line counts when its line break is written. What a process leaves behind that dies in the middle of one (`kill -9`, a power cut)
is moved to `<name>.torn` before the next line is appended, so that nothing is lost and nothing runs into it. Whoever reads or
appends holds the file's lock, which the operating system frees if the holder dies. Everything but `reading` and `appending`
blocks.
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
from gateway.storage.files import try_lock
from gateway.storage.locks import POLL_SECONDS

logger = logging.getLogger(__name__)

LOCK_SECONDS = 10.0
"""How long a file that somebody else holds is waited for; an append takes milliseconds."""

MAX_FILE_BYTES = 268_435_456
"""A larger file is refused when read: it would not fit a model, and should not fill the memory."""

_LOCK_OFFSET = 2**40
"""Where the lock is, on systems that lock parts of a file: far behind what is read."""


class LineFile:
    """One file. Nothing is touched before it is read or appended to; its folder must exist by then."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def read(self) -> list[bytes]:
        """The whole lines, without their breaks; none where there is no file. What was torn at the end is left out, with a warning.

        Raises:
            StorageError: It cannot be read, is too large, or somebody else holds it for longer than `LOCK_SECONDS`.
        """
        async with self._held(os.O_RDONLY) as descriptor:
            return [] if descriptor is None else await anyio.to_thread.run_sync(self._read, descriptor)

    async def append(self, lines: Sequence[bytes]) -> None:
        """Add lines (without breaks), all or none of them; on disk when this returns.

        Raises:
            StorageError: It cannot be written, or somebody else holds it for longer than `LOCK_SECONDS`.
        """
        async with self._held(os.O_RDWR | os.O_APPEND | os.O_CREAT) as descriptor:
            assert descriptor is not None
            with anyio.CancelScope(shield=True):  # a half-written line would be torn
                await anyio.to_thread.run_sync(self._append, descriptor, b"".join(line + b"\n" for line in lines))

    @asynccontextmanager
    async def _held(self, flags: int) -> AsyncGenerator[int | None]:
        """A descriptor with the lock on it; `None` where there is no file and none is to be made."""
        descriptor = await anyio.to_thread.run_sync(self._open, flags)
        if descriptor is None:
            yield None
            return
        try:
            with anyio.move_on_after(LOCK_SECONDS) as waiting:
                os.lseek(descriptor, _LOCK_OFFSET, os.SEEK_SET)
                while not try_lock(descriptor):  # noqa: ASYNC110  # another process holds it; there is no event for that
                    await anyio.sleep(POLL_SECONDS)
            if waiting.cancelled_caught:
                raise StorageUnusable(f"{str(self.path)!r} is locked by another process for more than {LOCK_SECONDS:g} s; try again later.")
            yield descriptor
        finally:
            os.close(descriptor)  # which also lets go of the lock

    def _open(self, flags: int) -> int | None:
        try:
            descriptor = os.open(self.path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
            reason = "it is no file"
        except FileNotFoundError as error:
            if not flags & os.O_CREAT:
                return None
            reason = error.strerror or str(error)
        except OSError as error:
            reason = error.strerror or str(error)
        raise StorageUnusable(f"Cannot open {str(self.path)!r}: {reason}. Check that it is a plain file and its permissions.") from None

    def _read(self, descriptor: int) -> list[bytes]:
        size = os.fstat(descriptor).st_size
        if size > MAX_FILE_BYTES:
            raise StorageError(f"{str(self.path)!r} has {size} bytes, more than {MAX_FILE_BYTES}; move it away to start anew.")
        try:
            data = _read_from(descriptor, 0, size)
        except OSError as error:
            raise StorageUnusable(f"Cannot read {str(self.path)!r}: {error.strerror or error}.") from None
        whole, _, rest = data.rpartition(b"\n")
        lines = whole.split(b"\n") if whole else []
        if _is_whole(rest):
            lines.append(rest)
        elif rest:
            logger.warning("The last line of %r was not written to its end (%d bytes); it is left out.", str(self.path), len(rest))
        return lines

    def _append(self, descriptor: int, data: bytes) -> None:
        try:
            self._mend(descriptor)
            size = os.fstat(descriptor).st_size
            try:
                left = memoryview(data)
                while left:
                    left = left[os.write(descriptor, left) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)  # all of it or nothing
                raise
        except OSError as error:
            raise StorageUnusable(f"Cannot write {str(self.path)!r}: {error.strerror or error}. Check the folder's space.") from None

    def _mend(self, descriptor: int) -> None:
        """See that the file ends with a line break, or is empty."""
        size = os.fstat(descriptor).st_size
        if size == 0 or _read_from(descriptor, size - 1, 1) == b"\n":
            return
        start, tail = size, b""
        while start > 0 and b"\n" not in tail:
            step = min(65_536, start)
            start -= step
            tail = _read_from(descriptor, start, step) + tail
        rest = tail.rpartition(b"\n")[2]
        if _is_whole(rest):
            os.write(descriptor, b"\n")
            return
        torn = self.path.with_name(f"{self.path.name}.torn")
        with torn.open("ab") as kept:
            kept.write(rest + b"\n")
            kept.flush()
            os.fsync(kept.fileno())
        os.ftruncate(descriptor, size - len(rest))
        logger.warning("The last line of %r was not written to its end; its %d bytes are in %r now.", str(self.path), len(rest), str(torn))


def _read_from(descriptor: int, start: int, length: int) -> bytes:
    os.lseek(descriptor, start, os.SEEK_SET)
    parts: list[bytes] = []
    while length > 0 and (part := os.read(descriptor, min(length, 1_048_576))):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _is_whole(line: bytes) -> bool:
    """Whether a last line that only lacks its break says something: other programs and editors leave the break out."""
    try:
        return bool(line.strip()) and json.loads(line) is not None
    except (ValueError, RecursionError):
        return False
