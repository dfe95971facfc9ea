"""Locks between processes, by lock files, for which async code can wait. The operating system releases a lock if its process dies."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from gateway.errors import StorageUnusable
from gateway.storage.atomic_files import lock_file_of, try_lock

POLL_SECONDS = 0.02
"""Seconds between two attempts to take a lock. Locks are polled, because a thread that waits for a lock cannot be cancelled."""


async def take_lock(descriptor: int, timeout_seconds: float) -> bool:
    """Wait for the lock of an open lock file, and take it. Return `False` if another process still holds it after `timeout_seconds`."""
    with anyio.move_on_after(timeout_seconds):
        while not try_lock(descriptor):  # noqa: ASYNC110  # held by another process, which sends no event
            await anyio.sleep(POLL_SECONDS)
        return True
    return False


@asynccontextmanager
async def locked_soon(path: Path, *, timeout_seconds: float) -> AsyncGenerator[None]:
    """Async context manager: hold the lock of the file `path` against other processes. Its folder must exist. Not re-entrant.

    `atomic_files.locked` uses the same lock file (`<name>.lock`), so the two functions exclude each other.

    Raises:
        StorageError: The lock file cannot be created, or another process holds the lock for longer than `timeout_seconds`.
    """
    descriptor = await anyio.to_thread.run_sync(lock_file_of, path)
    try:
        if not await take_lock(descriptor, timeout_seconds):
            raise StorageUnusable(f"Another gateway has used {str(path)!r} for more than {timeout_seconds:g} s. Stop it, or try again.")
        yield
    finally:
        os.close(descriptor)  # also releases the lock
