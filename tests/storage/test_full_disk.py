"""A database with a full disk works again when space is free, and keeps all committed data."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.errors import StorageError
from gateway.storage.engine import Database, open_database
from gateway.storage.file_names import DATABASE_FILE
from tests.faults.test_storage import small_disk

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60), pytest.mark.fault(12)]
ROWS = 30


async def count_up(database: Database) -> None:
    async with database.begin() as connection:
        await connection.execute(sa.text("UPDATE task_owners SET until = until + 1"))


async def until_full(database: Database) -> int:
    """Return the number of writes that succeeded before the disk was full."""
    for done in range(1000):
        try:
            await count_up(database)
        except StorageError as error:
            assert "full" in str(error)
            return done
    raise AssertionError("the disk did not fill")


async def test_log_that_filled_the_disk_is_emptied_when_there_is_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1500k") as disk:
        database = open_database(disk)
        try:
            async with database.begin() as connection:
                for number in range(ROWS):
                    words = {"id": f"{number} {'x' * 800}"}
                    await connection.execute(sa.text("INSERT INTO task_owners (id, until) VALUES (:id, 0)"), words)
            filler = disk / "filler"
            filler.write_bytes(b"x" * 200_000)
            with closing(sqlite3.connect(disk / DATABASE_FILE, isolation_level=None)) as reader:
                reader.execute("BEGIN")
                assert reader.execute("SELECT max(until) FROM task_owners").fetchone() == (0,)
                done = await until_full(database)
                assert reader.execute("SELECT max(until) FROM task_owners").fetchone() == (0,)  # it held the log up to the end
            filler.unlink()
            for _ in range(300):
                await count_up(database)
            async with database.begin() as connection:
                found = (await connection.execute(sa.text("SELECT count(*), min(until), max(until) FROM task_owners"))).one()
            assert tuple(found) == (ROWS, done + 300, done + 300)
        finally:
            await database.aclose()


async def test_log_shrinks_after_a_long_reader(tmp_path: Path) -> None:
    database, log = open_database(tmp_path), tmp_path / f"{DATABASE_FILE}-wal"
    try:
        async with database.begin() as connection:
            await connection.execute(sa.text("INSERT INTO task_owners (id, until) VALUES (:id, 0)"), {"id": "x" * 1_000_000})
        with closing(sqlite3.connect(tmp_path / DATABASE_FILE, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM task_owners").fetchone()
            for number in range(8):
                async with database.begin() as connection:
                    await connection.execute(sa.text("UPDATE task_owners SET id = :id"), {"id": str(number) * 1_000_000})
            assert log.stat().st_size > 8_000_000
        for _ in range(2):  # the first commit checkpoints, the second starts a new log
            async with database.begin() as connection:
                await connection.execute(sa.text("UPDATE task_owners SET until = until + 1"))
        assert log.stat().st_size < 5_000_000
    finally:
        await database.aclose()
