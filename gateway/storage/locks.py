"""`locked_soon`: a lock between processes that an async caller can wait for.

It uses the same lock file as `atomic_files.locked`, so both exclude each other. The operating system releases the lock if its
process dies.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from gateway.errors import StorageUnusable
from gateway.storage.atomic_files import lock_file_of, try_lock

POLL_SECONDS = 0.02
"""Seconds between two attempts to take a lock. Polling, because a thread that waits for a lock cannot be cancelled."""


@asynccontextmanager
async def locked_soon(path: Path, *, timeout_seconds: float) -> AsyncGenerator[None]:
    """Hold the lock of `path` against other processes. The folder must exist. Not re-entrant.

    Raises:
        StorageError: The lock file cannot be created, or another process holds the lock for longer than `timeout_seconds`.
    """
    descriptor = await anyio.to_thread.run_sync(lock_file_of, path)
    try:
        with anyio.move_on_after(timeout_seconds) as waiting:
            while not try_lock(descriptor):  # noqa: ASYNC110  # held by another process, which sends no event
                await anyio.sleep(POLL_SECONDS)
        if waiting.cancelled_caught:
            raise StorageUnusable(f"Another gateway has used {str(path)!r} for more than {timeout_seconds:g} s. Stop it, or try again.")
        yield
    finally:
        os.close(descriptor)  # also releases the lock
