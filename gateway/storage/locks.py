"""A lock between processes that can be waited for without blocking the event loop.

The same lock file as `files.locked`, so the two exclude each other. The operating system frees it if the holder dies.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from gateway.errors import StorageUnusable
from gateway.storage.files import lock_file_of, try_lock

POLL_SECONDS = 0.02
"""How often a lock held elsewhere is tried again; a waiting thread could not be cancelled."""


@asynccontextmanager
async def locked_soon(path: Path, *, timeout_seconds: float) -> AsyncGenerator[None]:
    """Hold the lock of `path` against other processes; the folder must exist. Not re-entrant.

    Raises:
        StorageError: The lock file cannot be made, or somebody holds the lock for longer than `timeout_seconds`.
    """
    descriptor = await anyio.to_thread.run_sync(lock_file_of, path)
    try:
        with anyio.move_on_after(timeout_seconds) as waiting:
            while not try_lock(descriptor):  # noqa: ASYNC110  # another process holds it; there is no event for that
                await anyio.sleep(POLL_SECONDS)
        if waiting.cancelled_caught:
            raise StorageUnusable(f"{str(path)!r} is in use by another gateway for more than {timeout_seconds:g} s.")
        yield
    finally:
        os.close(descriptor)  # which also lets go of the lock
