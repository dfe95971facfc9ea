"""`DatabaseLocation`: finds a configuration's database for the commands `moongate db …`, and reads it without changing it."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from gateway.storage.engine import (
    BUSY_SECONDS,
    SERVER_HINT,
    SERVER_OPTIONS,
    migrate_file,
    migrate_server,
    place_of,
    shown_file,
    shown_server,
    usable,
)
from gateway.storage.file_names import DATABASE_FILE

_READ_HINT = "Check the file's permissions."


@dataclass(frozen=True, slots=True)
class DatabaseLocation:
    """The place of a gateway's database: an SQLite file, or the URL of a database on a PostgreSQL server."""

    place: Path | URL

    @classmethod
    def of(cls, folder: Path, url: str | None) -> DatabaseLocation:
        """Return the place for a state folder and the configuration key `storage.url`. Raises `StorageError` if the URL is invalid."""
        return cls(place_of(url) if url is not None else folder / DATABASE_FILE)

    @property
    def shown(self) -> str:
        """The name of the database in texts for people, without a password."""
        return shown_file(self.place) if isinstance(self.place, Path) else shown_server(self.place)

    def exists(self) -> bool:
        """Return whether the SQLite file exists. A database on a server counts as existing; reading it shows whether it does."""
        return self.place.exists() if isinstance(self.place, Path) else True

    def migrate(self) -> list[int]:
        """Create the database or migrate it to the newest schema; return the numbers of the migration steps that ran.

        Raises:
            StorageError: The database cannot be used, or a newer Moongate wrote it.
        """
        return migrate_file(self.place) if isinstance(self.place, Path) else migrate_server(self.place)

    @contextmanager
    def snapshot(self) -> Generator[sa.Connection]:
        """Context manager: open one read-only transaction, which sees the state of the database at its first query, and yield it.

        Raises:
            StorageUnusable: The database cannot be opened or read.
        """
        if isinstance(self.place, Path):
            with snapshot_of_file(self.place) as connection:
                yield connection
            return
        with usable(self.shown, SERVER_HINT, self.place):
            options = {**SERVER_OPTIONS, "isolation_level": "REPEATABLE READ"}
            engine = sa.create_engine(self.place, poolclass=NullPool, execution_options={"postgresql_readonly": True}, **options)
            try:
                with engine.begin() as connection:
                    yield connection
            finally:
                engine.dispose()


@contextmanager
def snapshot_of_file(path: Path) -> Generator[sa.Connection]:
    """Context manager: open an SQLite file read-only, begin a transaction, and yield its connection. Raises `StorageUnusable`."""

    def connect() -> sqlite3.Connection:
        opened = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS, check_same_thread=False)
        opened.isolation_level = None  # otherwise the driver would begin transactions by itself
        return opened

    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    with usable(shown_file(path), _READ_HINT):
        engine = sa.create_engine("sqlite://", creator=connect, poolclass=NullPool)
        event.listen(engine, "begin", begin)
        try:
            with engine.connect() as connection:  # without a commit, which fails if the file is damaged
                yield connection
        finally:
            engine.dispose()
