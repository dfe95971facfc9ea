"""`restore`: replaces the database and the files of a state folder by those of a backup. Used by `moongate db restore`.

The backup is read and checked completely before anything is replaced. A new SQLite file is built beside the old one; tables on a PostgreSQL
server are replaced in one transaction. `interrupted_restore` puts the files in place, also after a kill.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from gateway.errors import StorageError, StorageUnusable
from gateway.storage.atomic_files import locked
from gateway.storage.backup_archive import DATABASE_FOLDER, STATE_FILES, STATE_FOLDER, STATE_FOLDERS, Manifest, open_archive
from gateway.storage.database_location import DatabaseLocation
from gateway.storage.engine import (
    SERVER_HINT,
    SERVER_OPTIONS,
    lock_migrations,
    own_transactions,
    shown_file,
    usable,
)
from gateway.storage.file_names import DATABASE_FILE
from gateway.storage.interrupted_restore import NEW, RESTORING, discard, finish_restore, journal_phase, moving, put_in_place, write_journal
from gateway.storage.migrations import STEPS, migrate, read_schema
from gateway.storage.state_folder import StateFolder
from gateway.storage.state_use import sole_use
from gateway.storage.table_rows import continue_numbers, read_rows, table_names
from gateway.storage.tables import TABLES

_CACHES = ("catalog", "skills", "first-answers")
"""Folders of the state folder that gateways fill again."""

_LOGS = (f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm")

_LEAVE_SECONDS = 3.0
"""Seconds for which a restore waits until stopped gateways have left the database server."""

_SCHEMA_TABLES = ("schema_version", "schema_support")

_BACKUP_HINT = "Nothing was changed; check the backup and the space of the disk."


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was restored. `steps` are the migration steps that ran on the restored database."""

    manifest: Manifest
    rows: int
    files: int
    steps: tuple[int, ...]


def restore(
    location: DatabaseLocation, state: Path, source: Path, *, replaces: bool, to_file: Callable[[Path, Path], None] | None = None
) -> RestoreReport:
    """Restore the backup `source` to the database and to the state folder `state`.

    `to_file` is called if the database is a file. It receives the folder with the rows of the backup and the folder with the files that
    will be in the state folder, and may change both. Rows that only gateways with a database server use become files in this way.

    Raises:
        StorageError: A gateway uses the state. Or there is a state, and `replaces` is false. Or the backup is damaged, or of a newer
        Moongate. Or files or rows cannot be written. In all these cases the old state stays, except if a database server did not say
        whether it committed; then the next command says what to do.
    """
    if isinstance(location.place, Path) and location.place != state / DATABASE_FILE:
        text = f"A restore writes {DATABASE_FILE!r} in the state folder, or to PostgreSQL, but `storage.url` names {str(location.place)!r}."
        raise StorageError(f"{text} Remove `storage.url`, restore, and move the file.")
    StateFolder(state).create()
    with sole_use(state):
        if journal_phase(state) == "files" or not replaces:
            finish_restore(state)  # with `--replace`, this restore replaces one that was interrupted in phase `server`
        with open_archive(source) as archive, _staging(state) as folder:
            manifest = archive.manifest
            if manifest.schema > len(STEPS):
                raise StorageError(
                    f"{str(source)!r} has schema version {manifest.schema}, made by Moongate {manifest.moongate}, and this Moongate knows "
                    f"{len(STEPS)}. Update Moongate, then restore."
                )
            if not replaces:
                _require_empty(location, state)
            with usable(repr(str(source)), _BACKUP_HINT):
                archive.extract(folder / "archive")
                _stage_files(folder)
            if to_file is not None and isinstance(location.place, Path):
                to_file(folder / "archive" / DATABASE_FOLDER, folder / NEW)
            places = sorted(path.name for path in (folder / NEW).iterdir())
            if isinstance(location.place, Path):
                rows, steps = _restore_file(location.place, state, manifest, places)
            else:
                rows, steps = _restore_server(location.place, location.shown, state, manifest, places)
    files = sum(name.startswith(STATE_FOLDER) for name in manifest.members)
    return RestoreReport(manifest, rows, files, tuple(steps))


def _require_empty(location: DatabaseLocation, state: Path) -> None:
    there = [name for name in (*STATE_FILES, *(name for name in STATE_FOLDERS if name != "accepted")) if (state / name).exists()]
    what = repr(str(state / there[0])) if there else ""
    if not what and location.exists():
        if isinstance(location.place, Path):
            what = location.shown
        else:
            with location.snapshot() as connection:
                what = location.shown if read_schema(connection).version else ""
    if what:
        what = what[0].lower() + what[1:]
        raise StorageError(f"There is a state already: {what}. Back it up, then add `--replace` to delete it and restore the backup.")


@contextmanager
def _staging(state: Path) -> Generator[Path]:
    """Context manager: create the empty folder for prepared files, and delete it if the restore fails before its journal was written."""
    folder = state / RESTORING
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
        for name in ("archive", NEW):
            (folder / name).mkdir(mode=0o700)
    except OSError as error:
        raise StorageUnusable(f"Cannot write {str(folder)!r}: {error.strerror or error}.", passes=False) from None
    try:
        yield folder
    finally:
        if journal_phase(state) is None:
            discard(state)


def _stage_files(folder: Path) -> None:
    extracted = folder / "archive" / STATE_FOLDER
    for path in sorted(extracted.iterdir()) if extracted.exists() else ():
        os.rename(path, folder / NEW / path.name)


def _removes(places: list[str], *further: str) -> list[str]:
    return [name for name in (*STATE_FILES, *STATE_FOLDERS, *_CACHES, *further) if name not in places]


def _restore_file(path: Path, state: Path, manifest: Manifest, places: list[str]) -> tuple[int, list[int]]:
    rows, steps = 0, list[int]()
    if manifest.schema:
        made = state / RESTORING / NEW / DATABASE_FILE
        with usable(shown_file(made), _BACKUP_HINT):
            os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            engine = sa.create_engine(URL.create("sqlite", database=str(made)), poolclass=NullPool)
            own_transactions(engine)
            with engine.begin() as connection:
                rows, steps = _fill(connection, manifest, state / RESTORING / "archive" / DATABASE_FOLDER)
            engine.dispose()
        places = [*places, DATABASE_FILE]
    with locked(path):  # a process that opens the database waits until the new file is in place
        _require_unopened(path)
        with moving(state):
            removes = _removes(places, DATABASE_FILE, *_LOGS)
            write_journal(state, "files", places, removes)
            put_in_place(state, places, removes)
    return rows, steps


def _require_unopened(path: Path) -> None:
    """Check that no process has the SQLite file open, and fold its write-ahead log into it. Accepts a missing or damaged file.

    Raises:
        StorageError: A process has the file open.
    """
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(path, timeout=1.0)) as raw:
            # SQLite leaves the WAL mode only if no other connection is open.
            raw.execute("PRAGMA journal_mode=DELETE").fetchone()
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StorageError(f"A process has {str(path)!r} open. Stop every gateway of this state folder, then try again.") from None


def _restore_server(url: URL, shown: str, state: Path, manifest: Manifest, places: list[str]) -> tuple[int, list[int]]:
    connect = {**SERVER_OPTIONS["connect_args"], "application_name": "moongate restore"}
    removes = _removes(places)
    with usable(shown, SERVER_HINT, url), moving(state):
        engine = sa.create_engine(url, poolclass=NullPool, **{**SERVER_OPTIONS, "connect_args": connect})
        try:
            with engine.begin() as connection:
                lock_migrations(connection)
                _require_alone(connection, shown)
                for table in (*(table.name for table in TABLES), *_SCHEMA_TABLES):
                    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")
                rows, steps = _fill(connection, manifest, state / RESTORING / "archive" / DATABASE_FOLDER)
                write_journal(state, "server", places, removes)
        finally:
            engine.dispose()
        write_journal(state, "files", places, removes)
        put_in_place(state, places, removes)
    return rows, steps


def _require_alone(connection: sa.Connection, shown: str) -> None:
    """Check that no gateway, on any machine, is connected to the database. Raises `StorageError`."""
    query = (
        "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'moongate' "
        "AND pid <> pg_backend_pid()"
    )
    deadline = time.monotonic() + _LEAVE_SECONDS
    while count := connection.exec_driver_sql(query).scalar_one():
        if time.monotonic() > deadline:
            raise StorageError(
                f"{count} connections of gateways or commands to {shown[0].lower()}{shown[1:]} are open. Stop every gateway that uses it, "
                "on all machines, then try again."
            )
        time.sleep(0.1)


def _fill(connection: sa.Connection, manifest: Manifest, folder: Path) -> tuple[int, list[int]]:
    """Create the tables with the schema of the backup, insert its rows, and migrate to the newest schema.

    Return the number of rows, and the numbers of the migration steps that ran after the rows were inserted.
    """
    migrate(connection, STEPS[: manifest.schema])
    tables = set(table_names(connection)) if manifest.schema else set[str]()
    given = {name.removeprefix(DATABASE_FOLDER).removesuffix(".jsonl") for name in manifest.members if name.startswith(DATABASE_FOLDER)}
    if given != tables:
        [name, *_] = sorted(given ^ tables)
        raise StorageError(f"The backup cannot be restored: schema version {manifest.schema} and the table `{name}` do not fit together.")
    rows = 0
    for table in sorted(tables):
        with (folder / f"{table}.jsonl").open("rb") as file:
            rows += read_rows(connection, table, file)
    continue_numbers(connection, dict(manifest.numbers))
    return rows, migrate(connection) if manifest.schema else []
