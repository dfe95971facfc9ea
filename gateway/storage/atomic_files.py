"""Replaces files atomically, reads JSON files, and locks files against other processes.

Other modules (except `contained_folder`) replace files with `write_atomic`. Every function blocks, so async code calls it in a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

from gateway.errors import StorageError, StorageUnusable
from gateway.json_types import JsonValue

MAX_JSON_BYTES = 16_777_216
"""Maximum size in bytes of a JSON file that `read_json` reads. Moongate never writes larger ones."""


def write_atomic(path: Path, *data: bytes, mode: int | None = 0o600) -> None:
    """Replace the content of the file `path` by the joined parts of `data`. Readers see the old or the new bytes, even after a crash.

    A symbolic link is followed, so that a linked configuration stays linked. The file gets the given mode; with `mode=None` an existing
    file keeps its mode, and a new file gets 0644. The folder must exist.

    Raises:
        StorageError: The file cannot be written.
    """
    target = Path(os.path.realpath(path))
    temporary: str | None = None
    try:
        if mode is None:
            mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        os.replace(temporary, target)
        temporary = None
        sync_folder(target.parent)
    except OSError as error:
        raise StorageUnusable(f"Cannot write {str(path)!r}: {error.strerror or error}. Check the folder's permissions and space.") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def make_private_folder(path: Path) -> None:
    """Create a folder, and its missing parents, with mode 0700. If the folder exists, remove the rights of group and others.

    Raises:
        OSError: The folder cannot be created, or a file has its name.
    """
    if not path.parent.exists():
        make_private_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        with contextlib.suppress(PermissionError):  # the folder belongs to another user
            path.chmod(mode & 0o700)


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk after a rename, so that the rename survives a power loss. Does nothing on platforms without support."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems do not support this; the rename itself has succeeded
    finally:
        os.close(descriptor)


def read_json(path: Path) -> JsonValue:
    """Return the decoded content of a JSON file.

    Raises:
        FileNotFoundError: The file does not exist.
        StorageError: The file cannot be read, is larger than `MAX_JSON_BYTES`, or is not JSON.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise StorageError(f"{str(path)!r} is larger than {MAX_JSON_BYTES} bytes, so Moongate did not write it; move it away.")
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageUnusable(f"Cannot read {str(path)!r}: {error.strerror or error}. Check its permissions.") from None
    except (ValueError, RecursionError):
        raise StorageError(f"{str(path)!r} is damaged: not JSON. Restore it from a backup, or move it away to start afresh.") from None


@contextlib.contextmanager
def locked(path: Path) -> Generator[None, None, None]:
    """Context manager: hold the lock of the file `path` against other processes and threads; wait until the lock is free. Not re-entrant.

    The lock is taken on a file next to `path` (`<name>.lock`), which is never deleted. The operating system releases the lock if the
    process dies.

    Raises:
        StorageError: The lock file cannot be created.
    """
    descriptor = lock_file_of(path)
    try:
        _take_lock(descriptor)
        yield
    finally:
        os.close(descriptor)  # also releases the lock


def lock_file_of(path: Path) -> int:
    """Open the lock file of `path` without taking the lock, and return its descriptor. Closing the descriptor releases the lock.

    Raises:
        StorageError: The lock file cannot be created.
    """
    lock_path = path.with_name(f"{path.name}.lock")
    try:
        return os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageUnusable(f"Cannot write {str(lock_path)!r}: {error.strerror or error}. Check the folder's permissions.") from None


if sys.platform == "win32":
    import msvcrt

    def _take_lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)

    def try_lock(descriptor: int) -> bool:
        """Take the lock of an open lock file if it is free, without waiting; return whether it was free."""
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    _SHARES = 4096

    def try_shared_lock(descriptor: int) -> bool:
        """Take a shared lock of an open lock file, without waiting; return `False` if a process holds the lock of `try_sole_lock`.

        Windows has only exclusive locks, so each process locks another byte of the file.
        """
        return any(_lock_bytes(descriptor, offset, 1) for offset in range(1, _SHARES))

    def try_sole_lock(descriptor: int) -> bool:
        """Take the lock that excludes all shared locks of an open lock file, without waiting; return whether it was free."""
        return _lock_bytes(descriptor, 1, _SHARES)

    def _lock_bytes(descriptor: int, offset: int, count: int) -> bool:
        os.lseek(descriptor, offset, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, count)  # pyright: ignore[reportAttributeAccessIssue]  # Windows only
        except OSError:
            return False
        return True

else:
    import fcntl

    def _take_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def try_lock(descriptor: int) -> bool:
        """Take the lock of an open lock file if it is free, without waiting; return whether it was free."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def try_shared_lock(descriptor: int) -> bool:
        """Take a shared lock of an open lock file, without waiting; return `False` if a process holds the lock of `try_sole_lock`."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def try_sole_lock(descriptor: int) -> bool:
        """Take the lock that excludes all shared locks of an open lock file, without waiting; return whether it was free."""
        return try_lock(descriptor)
