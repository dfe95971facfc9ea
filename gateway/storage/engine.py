"""`Database`: opens the gateway's database, migrates it to the newest schema, and runs transactions.

The database is an SQLite file or a PostgreSQL server. The file, `gateway.db` (WAL mode), is in the state folder (the folder for the
gateway's data), and several processes of a user share it. The server is named by a URL. All statements are portable SQLAlchemy Core, so
that they run on both databases.

This module imports SQLAlchemy (Core, async; MIT; drivers aiosqlite, and psycopg with the extra `postgres`). The import takes a third of a
second. Therefore `records`, and the SQL providers of `sessions` and `workflows`, import this module and the stores only on first use.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from gateway.database_url import database_url_mistake
from gateway.errors import StorageError, StorageUnusable
from gateway.storage.atomic_files import locked
from gateway.storage.file_names import DATABASE_FILE
from gateway.storage.migrations import migrate

logger = logging.getLogger(__name__)

BUSY_SECONDS = 5.0
"""Seconds for which an SQLite statement waits for another process's write; Moongate's writes take milliseconds."""

MAX_KEPT_WAL_BYTES = 4 << 20
"""Size in bytes to which SQLite truncates its write-ahead log after copying the log into the database file (a checkpoint).

If no read takes long, the log stays at about this size.
"""

SHORT_WAL_PAGES = 64
"""Length of SQLite's write-ahead log, in pages of 4 KiB, at which SQLite copies it into the database file after the disk was once full.

Before that, SQLite copies the log at 1,000 pages.
"""

WORK_SECONDS = 15.0
"""Timeout of one transaction in seconds, including the waits for a connection and for locks. After that, the caller gets an error."""

POOL_SIZE = 4
"""Maximum number of connections of one process to a PostgreSQL server, besides one connection for urgent transactions."""

FILE_POOL_SIZE = 1
"""Maximum number of connections of one process to an SQLite file, besides one connection for urgent transactions.

SQLite allows one writer at a time, and waiting writers poll. With one connection, the transactions of a process wait in their order, and
only the first of them competes with the urgent transaction that renews the lease (the right of the process to run its tasks).
"""

CONNECT_SECONDS = 5
"""Timeout for connecting to a PostgreSQL server, in seconds."""

_CONNECT_ARGUMENTS = {"connect_timeout": CONNECT_SECONDS, "application_name": "moongate"}

_MIN_MASKED = 6

LOG_SECONDS = 2.0
"""Minimum seconds between two log lines about an unusable database."""

MIGRATION_LOCK = 0x6D6F6F6E67617465
"""Number of the PostgreSQL advisory lock that is held during a migration, so that only one process migrates the database.

Its bytes are the ASCII letters `moongate`."""


class Database:
    """An open database, which runs transactions. `open_database` or `open_url` creates it; its creator calls `aclose`."""

    def __init__(self, engine: AsyncEngine, urgent: AsyncEngine, shown: str, hint: str) -> None:
        """Store the arguments. `urgent` is the engine for transactions that do not queue behind other transactions of the process.

        Errors contain `shown`, the name of the database without a password, and `hint`, which says what to check.
        """
        self._engine = engine
        self._urgent = urgent
        self._shown = shown
        self._hint = hint
        self._logged_at = float("-inf")

    @property
    def file(self) -> Path | None:
        """Path of the SQLite file; `None` if the database is on a PostgreSQL server."""
        url = self._engine.url
        return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None

    @property
    def server_arguments(self) -> dict[str, Any]:
        """Arguments with which psycopg connects to the PostgreSQL server, including the password. Not for an SQLite file."""
        return {**self._engine.dialect.create_connect_args(self._engine.url)[1], **_CONNECT_ARGUMENTS}

    @asynccontextmanager
    async def begin(self, *, urgent: bool = False) -> AsyncGenerator[AsyncConnection, None]:
        """Context manager: run a transaction and yield its connection. The transaction commits at the end, or rolls back on an exception.

        With SQLite, the transaction holds the write lock from its start, so that the data that it reads stays valid until the commit. An
        `urgent` transaction has its own connection: it waits for locks, but does not queue behind other transactions of this process. The
        renewal of the lease (the right of the process to run its tasks) is urgent. If the caller is cancelled, the transaction is still
        completed, within `WORK_SECONDS`, because a cancelled driver call would leave the connection in an unknown state.

        Raises:
            StorageUnusable: The database is unavailable, locked for too long, full, read-only, or damaged.
        """
        try:
            with anyio.fail_after(WORK_SECONDS, shield=True):
                async with (self._urgent if urgent else self._engine).begin() as connection:
                    yield connection
        except TimeoutError:
            raise self._failed(StorageUnusable(f"{self._shown} did not answer within {WORK_SECONDS:g} s.")) from None
        except SQLAlchemyError as error:
            passes = not isinstance(error, (DataError, IntegrityError, ProgrammingError))
            reason = reason_of(error, self._engine.url)
            raise self._failed(StorageUnusable(f"{self._shown} cannot be used: {reason}. {self._hint}", passes=passes)) from None

    async def change(self, statement: sa.Executable) -> int:
        """Run one statement in a separate transaction; return the number of affected rows. Raises `StorageUnusable`."""
        async with self.begin() as connection:
            return (await connection.execute(statement)).rowcount

    async def rows(self, query: sa.Executable) -> Sequence[sa.RowMapping]:
        """Run a query in a separate transaction; return all rows. Raises `StorageUnusable`."""
        async with self.begin() as connection:
            return (await connection.execute(query)).mappings().all()

    def _failed(self, error: StorageUnusable) -> StorageUnusable:
        """Log a database error, at most once in `LOG_SECONDS`, and return it.

        The error is logged because clients do not receive its text. The limit prevents a log line per call while a database server is
        unavailable.
        """
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            logger.warning("database unusable reason=%r", str(error))
        return error

    async def aclose(self) -> None:
        """Close all connections to the database."""
        with anyio.move_on_after(WORK_SECONDS, shield=True):
            await self._engine.dispose()
            await self._urgent.dispose()


def open_database(folder: Path) -> Database:
    """Open the SQLite database in a state folder; create or migrate it if necessary. Blocks, so async code calls it in a thread.

    Raises:
        StorageError: The database cannot be used, or a newer Moongate wrote it.
    """
    return _open_file(folder / DATABASE_FILE, _pool(FILE_POOL_SIZE))


def open_url(url: str, *, pooled: bool = True) -> Database:
    """Open the database with a URL: `postgresql://…`, or `sqlite:///path` for a file. Blocks, so async code calls it in a thread.

    If `pooled` is false, each transaction opens a new connection: no connection stays open, so several event loops may use the database one
    after the other.

    Raises:
        StorageError: The URL is invalid, the database cannot be used, or a newer Moongate wrote it.
    """
    place = place_of(url)
    if isinstance(place, Path):
        return _open_file(place, _pool(FILE_POOL_SIZE) if pooled else {"poolclass": NullPool})
    return _open_server(place, _pool(POOL_SIZE) if pooled else {"poolclass": NullPool})


def place_of(url: str) -> Path | URL:
    """Return the file that an SQLite URL names, or the URL of a PostgreSQL server with the driver that this module uses.

    Raises:
        StorageError: The URL is invalid.
    """
    if (mistake := database_url_mistake(url)) is not None:
        raise StorageError(f"The database URL: {mistake}.")
    try:
        made = make_url(url)
    except (ArgumentError, ValueError):  # SQLAlchemy raises `ValueError` for a port that is not a number
        made = None
    kind = made.get_backend_name() if made is not None else ""
    if made is None or kind not in ("sqlite", "postgresql", "postgres"):
        raise StorageError("The database URL does not begin with `postgresql://` or `sqlite:///`.")
    if kind == "sqlite":
        if made.database in (None, "", ":memory:"):
            raise StorageError("`sqlite://` needs a file: write `sqlite:///relative/path.db` or `sqlite:////absolute/path.db`.")
        return Path(made.database)
    return made.set(drivername="postgresql+psycopg")


def _pool(size: int) -> dict[str, Any]:
    return {"pool_size": size, "max_overflow": 0, "pool_timeout": WORK_SECONDS}


def _urgent(pool: dict[str, Any]) -> dict[str, Any]:
    """Return the connection pool settings for urgent transactions, which do not queue behind other transactions of this process.

    Urgent transactions have one pooled connection, or no pool if `pool`, the settings for other transactions, has no pool.
    """
    return _pool(1) if "pool_size" in pool else pool


def _open_file(path: Path, pool: dict[str, Any]) -> Database:
    migrate_file(path)
    made, urgent = (create_async_engine(URL.create("sqlite+aiosqlite", database=str(path)), **kind) for kind in (pool, _urgent(pool)))
    own_transactions(made.sync_engine)
    own_transactions(urgent.sync_engine)
    return Database(made, urgent, shown_file(path), _FILE_HINT)


def migrate_file(path: Path) -> list[int]:
    """Create or migrate an SQLite database; return the numbers of the migration steps that ran. Raises `StorageError`."""
    with usable(shown_file(path), _FILE_HINT):
        # The lock admits one process at a time, because SQLite does not make changes of the journal mode and of the schema wait.
        with locked(path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as raw:
                raw.execute("PRAGMA journal_mode=WAL")
            engine = sa.create_engine(URL.create("sqlite", database=str(path)))
            own_transactions(engine)
            return _migrate(engine)


def migrate_server(url: URL) -> list[int]:
    """Create or migrate the tables on a PostgreSQL server; return the numbers of the migration steps that ran. Raises `StorageError`."""
    with usable(shown_server(url), SERVER_HINT, url):
        return _migrate(sa.create_engine(url, poolclass=NullPool, **SERVER_OPTIONS))


_FILE_HINT = "Check the state folder's permissions and space."

SERVER_HINT = "Check that the server runs and that the account may use the database and create tables in it."
"""What to check if a PostgreSQL server cannot be used."""

SERVER_OPTIONS: dict[str, Any] = {
    # The isolation level is explicit, because the administrator may have set another default. It suffices, because transactions lock the
    # rows that they count, always in the same order.
    "isolation_level": "READ COMMITTED",
    "connect_args": _CONNECT_ARGUMENTS,
}
"""Options of every SQLAlchemy engine for a PostgreSQL server."""


def shown_file(path: Path) -> str:
    """Return the name of an SQLite database in errors."""
    return f"The database {str(path)!r}"


def shown_server(url: URL) -> str:
    """Return the name of a database on a PostgreSQL server in errors, without a password."""
    return f"The database {url.set(drivername='postgresql', query={}).render_as_string(hide_password=True)}"


@contextmanager
def usable(shown: str, hint: str, place: Path | URL | None = None) -> Generator[None]:
    """Context manager: convert errors of the database driver and of the file system to `StorageUnusable`.

    The error contains `shown`, the name of the database, and `hint`, which says what to check. Secrets of the URL `place` are masked in it.
    """
    try:
        yield
    except ImportError:
        raise StorageUnusable(f"{shown} needs the PostgreSQL driver; install `moongate[postgres]`.", passes=False) from None
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise StorageUnusable(f"{shown} cannot be used: {reason_of(error, place)}. {hint}") from None


def _open_server(url: URL, pool: dict[str, Any]) -> Database:
    """Open a database on a PostgreSQL server. A pooled connection that the server has closed is detected before its use."""
    migrate_server(url)
    kinds = (pool, _urgent(pool))
    made, urgent = (create_async_engine(url, pool_pre_ping="pool_size" in pool, **kind, **SERVER_OPTIONS) for kind in kinds)
    return Database(made, urgent, shown_server(url), SERVER_HINT)


def _migrate(engine: sa.Engine) -> list[int]:
    try:
        with engine.begin() as connection:
            lock_migrations(connection)
            return migrate(connection)
    finally:
        engine.dispose()


def lock_migrations(connection: sa.Connection) -> None:
    """Hold PostgreSQL's lock for migrations until the end of the transaction. Does nothing for SQLite, which has a lock file for this."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))


def own_transactions(engine: sa.Engine) -> None:
    """Make every transaction of an SQLite engine take the write lock at its start, because SQLite may refuse to upgrade a read lock.

    If a write failed for lack of disk space, the next transaction first empties the write-ahead log. A long read can make the log
    fill the disk, and SQLite itself empties it only after a successful write.
    """
    is_short = False

    def prepare(connection: Any, record: object) -> None:
        connection.isolation_level = None  # otherwise the driver would begin transactions by itself
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
    """Copy SQLite's write-ahead log into the database file and truncate the log, if readers and disk space permit.

    The function does not wait for readers. From then on, this connection copies the log more often, so that the log does not fill a small
    disk again.
    """
    connection.exec_driver_sql(f"PRAGMA wal_autocheckpoint={SHORT_WAL_PAGES}")
    connection.exec_driver_sql("PRAGMA busy_timeout=0")
    try:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    except SQLAlchemyError as error:
        logger.debug("write-ahead log not emptied reason=%r", reason_of(error))
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")


def reason_of(error: Exception, place: Path | URL | None = None) -> str:
    """Return the message of the database driver for an error, without the SQL statement and its values.

    The passwords in `place`, the URL of the database, are masked.
    """
    cause = getattr(error, "orig", None) or error
    reason = (cause.strerror or str(cause)) if isinstance(cause, OSError) else str(cause).partition("\n")[0]
    for secret in _passwords(place) if isinstance(place, URL) else ():
        reason = reason.replace(secret, "[secret]")
    return reason


def _passwords(url: URL) -> list[str]:
    """Return the passwords in a URL, longest first. A shorter one than `_MIN_MASKED` is left out: masking it would hide ordinary text."""
    named = [value for name in ("password", "sslpassword") for value in url.normalized_query.get(name, ())]
    return sorted((text for text in (url.password or "", *named) if len(text) >= _MIN_MASKED), key=len, reverse=True)


def storable(text: str) -> str:
    """Return a text in which NUL characters and lone surrogates, which databases reject, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
