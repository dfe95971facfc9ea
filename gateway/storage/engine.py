"""`Database`: the gateway's own database, opened once and brought to the newest schema.

SQLite in the state folder (`gateway.db`), in WAL mode, so that several processes of one user share it. Importing this module
imports SQLAlchemy (Core, async; MIT, the most used SQL layer of Python; with aiosqlite as the driver), which takes a third of a
second: only `records` imports it, on first use and in a thread. Statements here and in the repositories are portable Core, so
that PostgreSQL is another URL and not another store.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gateway.errors import StorageError
from gateway.storage.files import locked
from gateway.storage.migrations import migrate

FILE_NAME = "gateway.db"

BUSY_SECONDS = 5.0
"""How long a statement waits for another process's writing; writers here are done in milliseconds."""

WORK_SECONDS = 15.0
"""Longest time for one transaction, waiting included; after it the caller gets an error instead of a hang."""

POOL_SIZE = 4
"""Connections of one process: SQLite has one writer at a time, readers are short."""


class Database:
    """An open database. Made by `open_database`; whoever opened it calls `aclose`."""

    def __init__(self, engine: AsyncEngine, shown: str) -> None:
        self._engine = engine
        self._shown = shown

    @asynccontextmanager
    async def begin(self) -> AsyncGenerator[AsyncConnection, None]:
        """A transaction that already holds the write lock: what it reads stays true until it commits.

        It is finished even when the caller is cancelled meanwhile, within `WORK_SECONDS`, because a half-cancelled driver
        call would leave its connection in doubt.

        Raises:
            StorageError: Locked by somebody else for too long, full, read-only, or damaged.
        """
        try:
            with anyio.fail_after(WORK_SECONDS, shield=True):
                async with self._engine.begin() as connection:
                    yield connection
        except TimeoutError:
            raise StorageError(f"{self._shown} did not answer within {WORK_SECONDS:g} s.") from None
        except SQLAlchemyError as error:
            raise StorageError(f"{self._shown} cannot be used: {_reason(error)}. Check the state folder's permissions and space.") from None

    async def aclose(self) -> None:
        """Close every connection."""
        with anyio.move_on_after(WORK_SECONDS, shield=True):
            await self._engine.dispose()


def open_database(folder: Path) -> Database:
    """Open the database of a state folder, creating it and bringing its schema up to date. Blocks: call it in a thread.

    Raises:
        StorageError: It cannot be used, or a newer Moongate made it.
    """
    path = folder / FILE_NAME
    shown = f"The database {str(path)!r}"
    try:
        # One process at a time: changing the journal mode and the schema do not wait for each other by themselves.
        with locked(path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as raw:
                raw.execute("PRAGMA journal_mode=WAL")
            engine = sa.create_engine(f"sqlite:///{path}")
            _own_transactions(engine)
            try:
                with engine.begin() as connection:
                    migrate(connection)
            finally:
                engine.dispose()
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise StorageError(f"{shown} cannot be used: {_reason(error)}. Check the state folder's permissions and space.") from None
    made = create_async_engine(f"sqlite+aiosqlite:///{path}", pool_size=POOL_SIZE, max_overflow=0, pool_timeout=WORK_SECONDS)
    _own_transactions(made.sync_engine)
    return Database(made, shown)


def _own_transactions(engine: sa.Engine) -> None:
    """Begin every transaction as a writer's: SQLite cannot make a reader a writer without the risk of refusing it."""

    def prepare(connection: Any, record: object) -> None:
        connection.isolation_level = None  # the driver would begin transactions on its own otherwise
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.close()

    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)


def _reason(error: Exception) -> str:
    """What the driver said, without the statement and its values."""
    cause = getattr(error, "orig", None) or error
    return (cause.strerror or str(cause)) if isinstance(cause, OSError) else str(cause).partition("\n")[0]
