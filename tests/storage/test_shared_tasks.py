"""Tasks of gateways with different configurations in one database: each gateway counts, runs and finds only its own."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gateway.json_types import JsonObject
from gateway.policy.task_scheduling import choose_next
from gateway.storage.engine import Database, open_database
from gateway.storage.file_names import DATABASE_FILE
from gateway.storage.record_types import TaskRow
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.storage.task_rows import UNCLAIMED_SECONDS, TaskRows
from tests.storage.earlier_schemas import tables_since

pytestmark = pytest.mark.anyio
ONE: list[JsonObject] = [{"scope": "caller:local", "running": 1}]


@pytest.fixture
async def database(tmp_path: Path) -> AsyncGenerator[Database]:
    opened = open_database(tmp_path)
    yield opened
    await opened.aclose()


def new_row(name: str, *, request_key: str = "") -> TaskRow:
    row = TaskRow(name, "local", "t", {}, 60.0, limits=ONE, request_key=request_key)
    row.owner = f"process of {name}"
    return row


async def add(rows: TaskRows, row: TaskRow, max_open: int = 9) -> str:
    return await rows.add(row, max_open=max_open, max_kept=9, choose=choose_next)


async def test_gateways_do_not_wait_for_each_others_turns(database: Database) -> None:
    front, behind = TaskRows(database, "front"), TaskRows(database, "behind")
    rows = [new_row("f1"), new_row("f2"), new_row("b1")]
    for owner, row in zip((front, front, behind), rows, strict=True):
        await add(owner, row)
    assert [bool(row.admitted_at) for row in rows] == [True, False, True]
    assert await behind.admit(choose_next) == []
    await front.cancel("f1")
    assert await behind.admit(choose_next) == []
    assert await front.admit(choose_next) == ["f2"]


async def test_starts_per_minute_are_counted_for_each_gateway(database: Database) -> None:
    front, behind = TaskRows(database, "front"), TaskRows(database, "behind")
    rows = [new_row("f1"), new_row("b1"), new_row("f2"), new_row("b2")]
    for owner, row in zip((front, behind) * 2, rows, strict=True):
        row.limits = [{"scope": "caller:local", "perMinute": 1}]
        await add(owner, row)
    assert [bool(row.admitted_at) for row in rows] == [True, True, False, False]


async def test_limits_and_request_keys_are_of_one_gateway(database: Database) -> None:
    front, behind = TaskRows(database, "front"), TaskRows(database, "behind")
    assert await add(front, new_row("f1", request_key="k"), max_open=1) == ""
    assert await add(behind, new_row("b1", request_key="k"), max_open=1) == ""
    assert await add(behind, new_row("b2", request_key="k"), max_open=1) == "b1"
    assert [await rows.made_by("local", "k") for rows in (front, behind, TaskRows(database, "third"))] == ["f1", "b1", ""]


async def test_orphan_waits_for_its_own_gateway(database: Database, tmp_path: Path) -> None:
    behind = TaskRows(database, "behind")
    await add(behind, new_row("b1"))
    records = {name: Records(StateFolder(tmp_path), audit_days=1, gateway=name) for name in ("front", "behind", "")}
    assert {name: found.has_orphans(time.time()) for name, found in records.items()} == {"front": False, "behind": True, "": True}
    front = TaskRows(database, "front")
    assert not await front.any_orphans(owner="x")
    assert await front.take_over(owner="x", limit=9) == []
    await front.sweep()
    assert [row.id for row in await behind.take_over(owner="y", limit=9)] == ["b1"]


async def test_orphan_of_a_lost_gateway_is_ended_after_thirty_days(database: Database) -> None:
    front, behind = TaskRows(database, "front"), TaskRows(database, "behind")
    old, new = new_row("old"), new_row("new")
    old.updated_at -= UNCLAIMED_SECONDS + 60
    for row in (old, new):
        await add(behind, row)
    await behind.sweep()
    assert {row.status for row in await behind.all_of()} == {"working"}
    await front.sweep()
    assert {row.id: row.status for row in await behind.all_of()} == {"old": "failed", "new": "working"}


async def test_retried_task_belongs_to_gateway_that_retries_it(database: Database) -> None:
    front, behind = TaskRows(database, "front"), TaskRows(database, "behind")
    await add(behind, new_row("b1"))
    await behind.release(owner="process of b1")
    await front.cancel("b1")
    assert await front.retry("b1", from_start=False)
    assert [row.id for row in await front.take_over(owner="x", limit=9)] == ["b1"]


async def test_any_gateway_takes_over_task_of_earlier_version(tmp_path: Path) -> None:
    opened = open_database(tmp_path)
    await add(TaskRows(opened), new_row("old"))
    await opened.aclose()
    with sqlite3.connect(tmp_path / DATABASE_FILE) as raw:
        raw.execute("ALTER TABLE tasks DROP COLUMN gateway")
        for table in ("approval_rules", "sessions", "sampling_use"):
            raw.execute(f"ALTER TABLE {table} DROP COLUMN gateway")
        for table in tables_since(11):
            raw.execute(f"DROP TABLE {table}")
        raw.execute("DELETE FROM schema_version WHERE version > 11")
    raw.close()
    assert Records(StateFolder(tmp_path), audit_days=1, gateway="front").has_orphans(time.time())
    opened = open_database(tmp_path)
    assert [row.id for row in await TaskRows(opened, "front").take_over(owner="x", limit=9)] == ["old"]
    await opened.aclose()
