"""Access of commands to the state that gateways share in the database of `storage.url`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio.to_thread

from gateway.cli.common import run_async, state_folder_of
from gateway.storage.shared_database import SharedDatabase

if TYPE_CHECKING:
    from gateway.config.load import LoadedConfig
    from gateway.storage.engine import Database

T = TypeVar("T")


def shared_database(loaded: LoadedConfig) -> SharedDatabase | None:
    """Return the database that the gateways of a configuration share; `None` without `storage.url`.

    No connection stays open between two uses. Each use raises `StorageError` if the database cannot be used, or its gateways have another
    installation key.
    """
    url, state = loaded.config.storage.url, state_folder_of(loaded)
    if url is None:
        return None

    async def open_database() -> Database:
        from gateway.storage.engine import open_url
        from gateway.storage.installation import PURPOSE, verify_installation

        database = await anyio.to_thread.run_sync(partial(open_url, url, pooled=False))
        await verify_installation(database, await anyio.to_thread.run_sync(state.key, PURPOSE))
        return database

    return SharedDatabase(open_database)


def in_worker(work: Callable[[], T]) -> T:
    """Run `work`, which may use a `SharedDatabase`, in a worker thread of a new event loop, and return its result."""
    return run_async(lambda: anyio.to_thread.run_sync(work))
