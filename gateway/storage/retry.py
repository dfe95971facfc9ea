"""`until_stored`: tries work on the database again while the database is away."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from gateway.errors import StorageUnusable

RETRY_SECONDS = 0.5
"""Pause before something is tried again that the database refused."""

Stored = TypeVar("Stored")


async def until_stored(store: Callable[[], Awaitable[Stored]], *, deadline: float = math.inf) -> Stored:
    """Return the result of `store`, which is called again while the database is away, until `deadline` (seconds since the epoch).

    A call of `store` is not cancelled, the pause between two calls is.

    Raises:
        StorageError: The database is still away at the deadline, or another try cannot help.
    """
    while True:
        try:
            with anyio.CancelScope(shield=True):
                return await store()
        except StorageUnusable as error:
            if not error.passes or time.time() >= deadline:
                raise
        await anyio.sleep(RETRY_SECONDS)
