"""`back_up`: writes the database and the files of a state folder into one file, while gateways run. Used by `moongate db backup`."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from gateway.errors import StorageError, StorageUnusable
from gateway.storage.atomic_files import lock_file_of, sync_folder, try_lock
from gateway.storage.backup_archive import (
    DATABASE_FOLDER,
    STATE_FILES,
    STATE_FOLDER,
    STATE_FOLDERS,
    Manifest,
    digest_of,
    is_member_name,
    write_archive,
)
from gateway.storage.database_check import require_sound
from gateway.storage.database_location import DatabaseLocation, snapshot_of_file
from gateway.storage.engine import BUSY_SECONDS, shown_file, usable
from gateway.storage.migrations import STEPS, read_schema
from gateway.storage.state_use import in_use
from gateway.storage.table_rows import last_numbers, table_names, write_rows

_COPY_HINT = "Check the permissions and space of the backup's folder."


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup contains. `size` is in bytes."""

    schema: int
    rows: int
    files: int
    size: int


def back_up(location: DatabaseLocation, state: Path, target: Path, version: str) -> BackupReport:
    """Write a backup of the database and of the state folder `state` to the new file `target` (mode 0600).

    The rows are those of one moment. Each file is complete, and is read after the rows. `version` is Moongate's version.

    Raises:
        StorageError: The file exists or cannot be written, the database is damaged or of a newer Moongate, or there is nothing to back up.
    """
    if target.exists() or target.is_symlink():
        raise StorageError(f"{str(target)!r} exists already. Choose another name, or delete it.")
    if not location.exists() and not any((state / name).exists() for name in STATE_FILES):
        raise StorageError(f"There is nothing to back up: {str(state)!r} has no state, and there is no database.")
    with _partial_folder(target) as partial, in_use(state):
        try:
            staged = partial / "staged"
            staged.mkdir(mode=0o700)
            schema, rows, numbers = _database(location, partial, staged) if location.exists() else (0, 0, {})
            files = _copy_files(state, staged)
            paths = {path.relative_to(staged).as_posix(): path for path in sorted(staged.rglob("*")) if path.is_file()}
            members = {name: digest_of(path) for name, path in paths.items()}
            archive = partial / "archive"
            write_archive(archive, Manifest(version, time.time(), schema, numbers, members), paths)
            size = archive.stat().st_size
            os.replace(archive, target)
            sync_folder(target.parent)
        except OSError as error:
            raise StorageUnusable(f"Cannot write {str(target)!r}: {error.strerror or error}. {_COPY_HINT}", passes=False) from None
    return BackupReport(schema, rows, files, size)


def _database(location: DatabaseLocation, partial: Path, staged: Path) -> tuple[int, int, dict[str, int]]:
    """Write the rows of all tables below `staged`. Return the schema version, the number of rows, and the last numbers of rows."""
    if isinstance(location.place, Path):
        copy = partial / "copy.db"
        # SQLite's backup API copies a consistent state, and writers continue meanwhile.
        with usable(shown_file(location.place), _COPY_HINT), closing(_read_only(location.place)) as source:
            os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            with closing(sqlite3.connect(copy)) as destination:
                source.backup(destination)
        with snapshot_of_file(copy) as connection:
            require_sound(connection, location.shown)
            written = _write_tables(connection, staged)
        copy.unlink()
        return written
    with location.snapshot() as connection:
        return _write_tables(connection, staged)


def _read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)


def _write_tables(connection: sa.Connection, staged: Path) -> tuple[int, int, dict[str, int]]:
    schema = read_schema(connection).version
    if schema > len(STEPS):
        raise StorageError(
            f"The database has schema version {schema} of a newer Moongate, and this Moongate knows {len(STEPS)}, so its backup would be "
            "incomplete. Make the backup with the newer Moongate."
        )
    if not schema:
        return 0, 0, {}
    folder = staged / DATABASE_FOLDER
    folder.mkdir(mode=0o700)
    rows = 0
    for table in table_names(connection):
        with (folder / f"{table}.jsonl").open("xb") as file:
            rows += write_rows(connection, table, file)
    return schema, rows, last_numbers(connection)


def _copy_files(state: Path, staged: Path) -> int:
    """Copy the files of the state folder that belong to a backup; return their number. A file that disappears meanwhile is left out."""
    count = 0
    for path in _state_files(state):
        name = STATE_FOLDER + path.relative_to(state).as_posix()
        if not is_member_name(name):
            raise StorageError(f"{str(path)!r} is not a file of Moongate, so it cannot be backed up. Move it out of the state folder.")
        target = staged / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            shutil.copyfile(path, target)
            shutil.copystat(path, target)
        except FileNotFoundError:
            target.unlink(missing_ok=True)  # a result that expired
            continue
        count += 1
    return count


def _state_files(state: Path) -> Iterator[Path]:
    for name in STATE_FILES:
        if (state / name).is_file():
            yield state / name
    for name in STATE_FOLDERS:
        for path in sorted((state / name).rglob("*")):
            # Lock files and unfinished files are of running processes.
            if path.is_file() and not path.is_symlink() and not path.name.startswith(".") and path.suffix != ".lock":
                yield path


@contextmanager
def _partial_folder(target: Path) -> Generator[Path]:
    """Context manager: create the private folder in which the backup is prepared, beside the target, and delete it at the end.

    The folder that a killed backup left is deleted first.

    Raises:
        StorageError: The folder cannot be created, or another process writes the same backup.
    """
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.mkdir(mode=0o700, exist_ok=True)
        if partial.is_symlink() or (os.name == "posix" and partial.stat().st_uid != os.geteuid()):
            raise StorageError(f"{str(partial)!r} belongs to another user. Delete it, or write the backup to another folder.")
    except OSError as error:
        raise StorageUnusable(f"Cannot write {str(target)!r}: {error.strerror or error}. {_COPY_HINT}", passes=False) from None
    descriptor = lock_file_of(partial / "backup")
    try:
        if not try_lock(descriptor):
            raise StorageError(f"Another process is writing the backup {str(target)!r}.")
        for path in partial.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != "backup.lock":
                path.unlink()
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    finally:
        os.close(descriptor)
