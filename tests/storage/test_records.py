"""The gateway's database: opened on first use, shared by processes, intact after a kill; audit log, budgets and questions."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import pytest

from gateway.errors import NotFound, PolicyDenied, StorageError
from gateway.storage.audit_writer import MAX_QUEUED
from gateway.storage.pending_questions import MAX_OPEN_PER_PRINCIPAL
from gateway.storage.record_types import AuditEntry, PendingQuestion
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from tests.fakes.running import ROOT
from tests.storage.earlier_schemas import back_to_13

WRITER = """
import sys, anyio, pathlib
from gateway.storage.record_types import AuditEntry
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder

async def main(folder, name):
    records = Records(StateFolder(pathlib.Path(folder)), audit_days=30)
    number = 0
    while True:
        records.note(AuditEntry(1e12 + number, "test", name, str(number)))
        await records.flush()
        used = await (await records.budget()).count("docs", "local", limit=200, window_seconds=3600)
        print(number, used, flush=True)
        number += 1

anyio.run(main, *sys.argv[1:])
"""


@asynccontextmanager
async def records(folder: Path, *, audit_days: int = 30, gateway: str = "") -> AsyncGenerator[Records]:
    made = Records(StateFolder(folder), audit_days=audit_days, gateway=gateway)
    try:
        yield made
    finally:
        await made.aclose()


def entry(name: str, at: float | None = None, source: str = "docs") -> AuditEntry:
    return AuditEntry(time.time() if at is None else at, "ask.judged", source, name, "local", {"outcome": "allowed", "maxTokens": 9})


def question(name: str = "a", principal: str = "local", seconds: float = 60) -> PendingQuestion:
    now = time.time()
    return PendingQuestion(name, "call", "docs", "read", principal, "docs wants to read", "open", now, now + seconds)


def start_writer(folder: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(folder), name], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def sql(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "gateway.db")) as raw, raw:
        raw.execute(statement)


def test_nothing_is_imported_or_written_before_the_first_use(tmp_path: Path) -> None:
    probe = (
        "import sys, pathlib; from gateway.storage.records import Records; from gateway.storage.state_folder import StateFolder\n"
        f"r = Records(StateFolder(pathlib.Path({str(tmp_path / 's')!r})), audit_days=1)\n"
        "print([m for m in ('sqlalchemy', 'aiosqlite', 'sqlite3') if m in sys.modules], r.is_open)"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.strip() == "[] False"
    assert not (tmp_path / "s").exists()


async def test_lines_come_back_in_order_after_a_restart(tmp_path: Path) -> None:
    async with records(tmp_path) as first:
        for number in range(5):
            first.note(entry(str(number)))
    async with records(tmp_path) as second:
        second.note(entry("5", source="files"))
        await second.flush()
        log = await second.audit()
        assert [line.name for line in await log.read()] == ["0", "1", "2", "3", "4", "5"]
        assert [line.name for line in await log.read(source="files")] == ["5"]
        assert (await log.read(limit=1))[0].fields == {"outcome": "allowed", "maxTokens": 9}
        assert [line.name for line in await log.read(since=time.time() + 60)] == []
        assert (await log.verify()).problem == ""


@pytest.mark.attack(29)
async def test_the_database_belongs_to_its_user_alone(tmp_path: Path) -> None:
    async with records(tmp_path) as made:
        made.note(entry("0"))
    assert (tmp_path / "gateway.db").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "tampering",
    [
        "DELETE FROM audit WHERE id = 2",
        "DELETE FROM audit WHERE id = 1",
        "DELETE FROM audit WHERE id = 4",
        "DELETE FROM audit",
        "UPDATE audit SET principal = 'somebody' WHERE id = 3",
        "UPDATE audit_chain SET last = 3, head = (SELECT digest FROM audit WHERE id = 3)",
        "DELETE FROM audit_chain",
    ],
)
async def test_removed_or_changed_line_shows(tmp_path: Path, tampering: str) -> None:
    async with records(tmp_path) as made:
        for number in range(4):
            made.note(entry(str(number)))
    sql(tmp_path, tampering)
    async with records(tmp_path) as made:
        assert (await (await made.audit()).verify()).problem != ""


async def test_lines_past_their_time_go_and_the_rest_still_verifies(tmp_path: Path) -> None:
    async with records(tmp_path, audit_days=2) as made:
        for days in (9, 5, 1, 0):
            made.note(entry(f"{days} days", time.time() - days * 86_400))
        await made.flush()
        log = await made.audit()
        assert [line.name for line in await log.read()] == ["1 days", "0 days"]
        assert (await log.verify()).problem == ""


async def test_full_queue_drops_lines_and_counts_them(tmp_path: Path) -> None:
    async with records(tmp_path) as made:
        for number in range(MAX_QUEUED + 3):
            made.note(entry(str(number)))
        await made.flush()
        last = (await (await made.audit()).read(limit=1))[0]
    assert (last.kind, last.fields) == ("audit.dropped", {"lines": 3})


@pytest.mark.timeout(60)
async def test_kill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    writers = [start_writer(tmp_path, name) for name in "ab"]
    acknowledged: list[list[str]] = []
    for writer in writers:
        assert writer.stdout is not None
        acknowledged.append([writer.stdout.readline() for _ in range(20)])
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
        assert writer.stdout is not None
        acknowledged[writers.index(writer)] += [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        writer.wait()
        writer.stdout.close()
    async with records(tmp_path) as made:
        log = await made.audit()
        assert (await log.verify()).problem == ""
        for name, lines in zip("ab", acknowledged, strict=True):
            kept = [int(line.name) for line in await log.read(source=name, limit=100_000)]
            assert kept == list(range(len(kept)))
            assert len(kept) >= len(lines)
    used = sorted(int(line.split()[1]) for lines in acknowledged for line in lines)
    assert len([u for u in used if u < 200]) == len({u for u in used if u < 200}), "two requests took one place of the budget"


async def test_database_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    async with records(tmp_path) as made:
        made.note(entry("0"))
    sql(tmp_path, "INSERT INTO schema_version (version, at) VALUES (99, 0)")
    async with records(tmp_path) as made:
        with pytest.raises(StorageError, match="schema version 99"):
            await made.audit()


async def test_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "gateway.db").write_bytes(b"this is no database " * 100)
    async with records(tmp_path) as made:
        with pytest.raises(StorageError, match=r"gateway\.db"):
            await made.audit()


@pytest.mark.fault(13)
async def test_locked_database_is_an_error_and_works_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with records(tmp_path) as made:
        await made.audit()
        with closing(sqlite3.connect(tmp_path / "gateway.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            made.note(entry("0"))
            with pytest.raises(StorageError, match="locked"), anyio.fail_after(20):
                await made.flush()
            other.execute("ROLLBACK")
        await made.flush()
        assert [line.name for line in await (await made.audit()).read()] == ["0"]


async def test_migrated_tables_have_the_columns_that_statements_name(tmp_path: Path) -> None:
    import sqlalchemy as sa

    from gateway.storage import tables

    async with records(tmp_path) as made:
        await made.audit()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'gateway.db'}")
    try:
        found = sa.inspect(engine)
        named: list[sa.TableClause] = [table for table in vars(tables).values() if isinstance(table, sa.TableClause)]
        assert {table.name for table in named} == {*found.get_table_names()} - {"schema_version", "schema_support"}
        for table in named:
            assert {column["name"] for column in found.get_columns(table.name)} == {column.name for column in table.c}
    finally:
        engine.dispose()


async def test_budget_survives_a_restart_and_is_per_server_and_caller(tmp_path: Path) -> None:
    async with records(tmp_path) as made:
        budget = await made.budget()
        assert [await budget.count("docs", "ada", limit=2, window_seconds=3600) for _ in range(2)] == [0, 1]
    async with records(tmp_path) as made:
        budget = await made.budget()
        assert await budget.count("docs", "ada", limit=2, window_seconds=3600) == 2
        assert await budget.count("docs", "bob", limit=2, window_seconds=3600) == 0
        assert await budget.count("files", "ada", limit=2, window_seconds=3600) == 0


async def test_request_leaves_the_budget_when_the_window_has_passed(tmp_path: Path) -> None:
    async with records(tmp_path) as made:
        budget = await made.budget()
        await budget.count("docs", "ada", limit=9, window_seconds=3600)
        sql(tmp_path, "UPDATE sampling_use SET at = at - 3601")
        assert await budget.count("docs", "ada", limit=9, window_seconds=3600) == 0


async def test_question_is_answered_once(tmp_path: Path) -> None:
    async with records(tmp_path) as made:
        asks = await made.questions()
        await asks.add(question())
        assert [ask.id for ask in await asks.list(only_open=True)] == ["a"]
        assert await asks.move("a", "open", "approved")
        assert not await asks.move("a", "open", "denied")
        assert await asks.state("a") == "approved"
        assert await asks.list(only_open=True) == []
        assert await asks.state("nothing") == "withdrawn"


async def test_question_past_its_time_cannot_be_answered(tmp_path: Path) -> None:
    async with records(tmp_path) as made:
        asks = await made.questions()
        await asks.add(question(seconds=-1))
        assert await asks.state("a") == "expired"
        assert not await asks.move("a", "open", "approved")


async def test_open_questions_per_caller_are_limited(tmp_path: Path) -> None:
    async with records(tmp_path) as made:
        asks = await made.questions()
        for number in range(MAX_OPEN_PER_PRINCIPAL):
            await asks.add(question(str(number)))
        with pytest.raises(PolicyDenied):
            await asks.add(question("more"))
        await asks.add(question("other", principal="bob"))


async def test_unassigned_sessions_and_budgets_go_to_the_first_user(tmp_path: Path) -> None:
    async with records(tmp_path) as old:
        store = await old.sessions()
        begun = await store.begin("local", "clerk", most=1)
        await store.keep(begun, [], {"turn": 1}, ttl_seconds=60)
        assert await (await old.budget()).count("docs", "local", limit=2, window_seconds=3600) == 0
    back_to_13(lambda statement: sql(tmp_path, statement))
    async with records(tmp_path, gateway="front") as front, records(tmp_path, gateway="back") as back:
        ours, theirs = await front.sessions(), await back.sessions()
        assert [found.id for found in await theirs.list()] == [begun.id], "until one of them goes on with it"
        held = await ours.claim(begun.id, "local")
        assert held is not None and held.state == {"turn": 1}
        assert [found.id for found in await ours.list()] == [begun.id] and await theirs.list() == []
        for attempt in (theirs.claim, theirs.get, theirs.delete):
            with pytest.raises(NotFound):
                await attempt(begun.id, "local")
        await theirs.begin("local", "clerk", most=1)
        counts = [await (await one.budget()).count("docs", "local", limit=2, window_seconds=3600) for one in (front, back, front, back)]
        assert counts == [1, 1, 2, 2], "both count the earlier request, and not each other's"
