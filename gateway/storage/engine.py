"""`Database`: the gateway's own database, opened once and brought to the newest schema.

SQLite in the state folder (`gateway.db`), in WAL mode, so that several processes of one user share it; or a PostgreSQL server by
URL. Importing this module imports SQLAlchemy (Core, async; MIT, the most used SQL layer of Python; with aiosqlite as the driver,
and psycopg, LGPL, the reference driver, as the extra `postgres`), which takes a third of a second: only `records` and the SQL
providers of `sessions` import it, on first use and in a thread. Statements here and in the repositories are portable Core, so
that PostgreSQL is another URL and not another store.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from gateway.errors import StorageError, StorageUnusable
from gateway.storage.files import locked
from gateway.storage.migrations import migrate
from gateway.storage.names import DATABASE_FILE

logger = logging.getLogger(__name__)

BUSY_SECONDS = 5.0
"""How long a statement waits for another process's writing; writers here are done in milliseconds."""

MAX_KEPT_WAL_BYTES = 4 << 20
"""Size to which the write-ahead log shrinks after a checkpoint; SQLite checkpoints at about this size. A long reader makes it grow."""

SHORT_WAL_PAGES = 64
"""Pages of the write-ahead log (of 4 KiB) after which a connection checkpoints once the disk was full; 1,000 before."""

WORK_SECONDS = 15.0
"""Longest time for one transaction, waiting included; after it the caller gets an error instead of a hang."""

POOL_SIZE = 4
"""Connections of one process to a server."""

FILE_POOL_SIZE = 1
"""Connections of one process to a file: SQLite has one writer at a time, and those that wait for it poll. So a process's own
transactions queue in their order, and its newest never overtakes one that renews a lease."""

CONNECT_SECONDS = 5
"""How long a PostgreSQL server may take to accept a connection."""

LOG_SECONDS = 2.0
"""Between two lines of the log that say that the database does not work."""

MIGRATION_LOCK = 0x6D6F6F6E67617465
"""Advisory lock on a PostgreSQL server under which the schema is changed: eight letters of our name."""


class Database:
    """An open database. Made by `open_database` or `open_url`; whoever opened it calls `aclose`."""

    def __init__(self, engine: AsyncEngine, urgent: AsyncEngine, shown: str, hint: str) -> None:
        """`urgent` is for what must not queue; `shown` names it in errors, without a password; `hint` is what to check."""
        self._engine = engine
        self._urgent = urgent
        self._shown = shown
        self._hint = hint
        self._logged_at = float("-inf")

    @asynccontextmanager
    async def begin(self, *, urgent: bool = False) -> AsyncGenerator[AsyncConnection, None]:
        """A transaction that already holds the write lock: what it reads stays true until it commits.

        One that is `urgent` (it renews a lease) waits for other processes, but not behind this one's own.

        It is finished even when the caller is cancelled meanwhile, within `WORK_SECONDS`, because a half-cancelled driver
        call would leave its connection in doubt.

        Raises:
            StorageUnusable: Away, locked by somebody else for too long, full, read-only, or damaged.
        """
        try:
            with anyio.fail_after(WORK_SECONDS, shield=True):
                async with (self._urgent if urgent else self._engine).begin() as connection:
                    yield connection
        except TimeoutError:
            raise self._failed(StorageUnusable(f"{self._shown} did not answer within {WORK_SECONDS:g} s.")) from None
        except SQLAlchemyError as error:
            passes = not isinstance(error, (DataError, IntegrityError, ProgrammingError))
            raise self._failed(StorageUnusable(f"{self._shown} cannot be used: {_reason(error)}. {self._hint}", passes=passes)) from None

    def _failed(self, error: StorageUnusable) -> StorageUnusable:
        """Log it, at most once in `LOG_SECONDS`: callers do not hear the text, and while a server is away everything fails."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            logger.warning("%s", error)
        return error

    async def aclose(self) -> None:
        """Close every connection."""
        with anyio.move_on_after(WORK_SECONDS, shield=True):
            await self._engine.dispose()
            await self._urgent.dispose()


def open_database(folder: Path) -> Database:
    """Open the database of a state folder, creating it and bringing its schema up to date. Blocks: call it in a thread.

    Raises:
        StorageError: It cannot be used, or a newer Moongate made it.
    """
    return _open_file(folder / DATABASE_FILE, _pool(FILE_POOL_SIZE))


def open_url(url: str, *, pooled: bool = True) -> Database:
    """Open a database by URL: `postgresql://…`, or `sqlite:///path` for a file. Blocks: call it in a thread.

    Without `pooled` each transaction has a connection of its own, so that nothing is left to close, and several event loops may
    use it one after the other.

    Raises:
        StorageError: The URL means nothing, the database cannot be used, or a newer Moongate made it.
    """
    try:
        made = make_url(url)
    except ArgumentError:
        made = None
    kind = made.get_backend_name() if made is not None else ""
    if made is None or kind not in ("sqlite", "postgresql", "postgres"):
        raise StorageError("A database URL begins with `postgresql://` or `sqlite:///`; this one does not.")
    if kind == "sqlite":
        if made.database in (None, "", ":memory:"):
            raise StorageError("`sqlite://` needs a file: write `sqlite:///relative/path.db` or `sqlite:////absolute/path.db`.")
        return _open_file(Path(made.database), _pool(FILE_POOL_SIZE) if pooled else {"poolclass": NullPool})
    return _open_server(made.set(drivername="postgresql+psycopg"), _pool(POOL_SIZE) if pooled else {"poolclass": NullPool})


def _pool(size: int) -> dict[str, Any]:
    return {"pool_size": size, "max_overflow": 0, "pool_timeout": WORK_SECONDS}


def _urgent(pool: dict[str, Any]) -> dict[str, Any]:
    """One connection where there is a pool; it is made when it is first needed."""
    return _pool(1) if "pool_size" in pool else pool


def _open_file(path: Path, pool: dict[str, Any]) -> Database:
    shown, hint = f"The database {str(path)!r}", "Check the state folder's permissions and space."
    try:
        # One process at a time: changing the journal mode and the schema do not wait for each other by themselves.
        with locked(path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as raw:
                raw.execute("PRAGMA journal_mode=WAL")
            engine = sa.create_engine(URL.create("sqlite", database=str(path)))
            _own_transactions(engine)
            _migrate(engine)
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise StorageUnusable(f"{shown} cannot be used: {_reason(error)}. {hint}") from None
    made, urgent = (create_async_engine(URL.create("sqlite+aiosqlite", database=str(path)), **kind) for kind in (pool, _urgent(pool)))
    _own_transactions(made.sync_engine)
    _own_transactions(urgent.sync_engine)
    return Database(made, urgent, shown, hint)


def _open_server(url: URL, pool: dict[str, Any]) -> Database:
    """A PostgreSQL server. Connections that it closed meanwhile are noticed before they are used."""
    shown = f"The database {url.set(drivername='postgresql', query={}).render_as_string(hide_password=True)}"
    hint = "Check that the server runs and that the account may use the database and create tables in it."
    # Not what the server's administrator set as the default: statements here lock what they count, and lock rows in one order.
    options: dict[str, Any] = {"isolation_level": "READ COMMITTED"}
    options["connect_args"] = {"connect_timeout": CONNECT_SECONDS, "application_name": "moongate"}
    try:
        engine = sa.create_engine(url, poolclass=NullPool, **options)
        _migrate(engine)
    except ImportError:
        raise StorageUnusable(f"{shown} needs the PostgreSQL driver; install `moongate[postgres]`.", passes=False) from None
    except SQLAlchemyError as error:
        raise StorageUnusable(f"{shown} cannot be used: {_reason(error)}. {hint}") from None
    made, urgent = (create_async_engine(url, pool_pre_ping="pool_size" in pool, **kind, **options) for kind in (pool, _urgent(pool)))
    return Database(made, urgent, shown, hint)


def _migrate(engine: sa.Engine) -> None:
    try:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
            migrate(connection)
    finally:
        engine.dispose()


def _own_transactions(engine: sa.Engine) -> None:
    """Begin every transaction as a writer's: SQLite cannot make a reader a writer without the risk of refusing it.

    After a write that the disk did not take, the next transaction empties the write-ahead log first. A long reader can make that log
    fill the disk, and SQLite itself empties it only after a write that succeeds.
    """
    is_short = False

    def prepare(connection: Any, record: object) -> None:
        connection.isolation_level = None  # the driver would begin transactions on its own otherwise
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute(f"PRAGMA journal_size_limit={MAX_KEPT_WAL_BYTES}")
        cursor.close()

    def begin(connection: sa.Connection) -> None:
        nonlocal is_short
        if is_short:
            is_short = False
            _empty_log(connection)
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def note(context: sa.engine.ExceptionContext) -> None:
        nonlocal is_short
        code = getattr(context.original_exception, "sqlite_errorcode", 0)
        is_short = is_short or code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    event.listen(engine, "handle_error", note)


def _empty_log(connection: sa.Connection) -> None:
    """Move the write-ahead log into the database and truncate it, as far as readers and space permit; readers are not waited for.

    From then on this connection checkpoints more often, so that the log does not fill a small disk again.
    """
    connection.exec_driver_sql(f"PRAGMA wal_autocheckpoint={SHORT_WAL_PAGES}")
    connection.exec_driver_sql("PRAGMA busy_timeout=0")
    try:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    except SQLAlchemyError as error:
        logger.debug("the write-ahead log could not be emptied: %s", _reason(error))
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")


def _reason(error: Exception) -> str:
    """What the driver said, without the statement and its values."""
    cause = getattr(error, "orig", None) or error
    return (cause.strerror or str(cause)) if isinstance(cause, OSError) else str(cause).partition("\n")[0]
