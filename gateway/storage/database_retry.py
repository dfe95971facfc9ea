"""`until_stored`: retries a database operation while the database is unavailable."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from gateway.errors import StorageUnusable

RETRY_SECONDS = 0.5
"""Seconds between two attempts of a database operation."""

Stored = TypeVar("Stored")


async def until_stored(store: Callable[[], Awaitable[Stored]], *, deadline: float = math.inf) -> Stored:
    """Call `store`, a database operation, and return its result. Retry while the database is unavailable, until `deadline`.

    `deadline` is in seconds since the epoch. Cancellation interrupts only the pause between two attempts, never a running `store`.

    Raises:
        StorageError: The database is still unavailable at the deadline, or the error is permanent.
    """
    while True:
        try:
            with anyio.CancelScope(shield=True):
                return await store()
        except StorageUnusable as error:
            if not error.passes or time.time() >= deadline:
                raise
        await anyio.sleep(RETRY_SECONDS)
