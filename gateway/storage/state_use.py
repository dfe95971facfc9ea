"""Locks of the state folder between processes that use it and a process that replaces it (`moongate db restore`)."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.errors import StorageError, StorageUnusable
from gateway.storage.atomic_files import lock_file_of, try_shared_lock, try_sole_lock

_LOCK = "in-use"
"""Name of the locked file in the state folder, without `.lock`."""


@contextmanager
def in_use(folder: Path) -> Generator[None]:
    """Context manager: prevent that another process replaces the state folder. Any number of processes may do so at once.

    If the lock file cannot be created, for example because the folder is read-only, nothing is locked.

    Raises:
        StorageUnusable: A process is replacing the state folder.
    """
    descriptor = -1
    with suppress(StorageError):
        descriptor = lock_file_of(folder / _LOCK)
    try:
        if descriptor >= 0 and not try_shared_lock(descriptor):
            raise StorageUnusable(f"The state folder {str(folder)!r} is being restored. Try again when `moongate db restore` has ended.")
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)  # also releases the lock


@contextmanager
def sole_use(folder: Path) -> Generator[None]:
    """Context manager: exclude all processes that use the state folder.

    Raises:
        StorageError: A process uses the folder.
    """
    descriptor = lock_file_of(folder / _LOCK)
    try:
        if not try_sole_lock(descriptor):
            raise StorageError(
                f"A gateway, or another command, uses the state folder {str(folder)!r}. Stop every gateway of this folder, then try again."
            )
        yield
    finally:
        os.close(descriptor)  # also releases the lock
