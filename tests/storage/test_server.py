"""The gateway's records and sessions on a PostgreSQL server behave as in a file."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

import anyio
import psycopg
import pytest

from gateway.errors import NotFound, PolicyDenied, StorageError
from gateway.storage.agent_sessions import HeldSession, Sessions
from gateway.storage.memories import Memories
from gateway.storage.migrations import STEPS
from gateway.storage.record_types import AuditEntry, PendingQuestion
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from tests.fakes.postgres import Postgres, postgres

pytestmark = [pytest.mark.postgres]


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running:
        yield running


def entry(name: str, at: float) -> AuditEntry:
    return AuditEntry(at, "ask.judged", "docs", name, "local", {"outcome": "allowed"})


async def test_audit_log_budgets_and_questions_are_shared_by_gateways(server: Postgres, tmp_path: Path) -> None:
    url = server.database("shared")
    gateways = [Records(StateFolder(tmp_path), audit_days=30, url=url) for _ in range(2)]
    try:
        for number in range(10):
            gateways[number % 2].note(entry(str(number), time.time()))
            await gateways[number % 2].flush()
        log = await gateways[0].audit()
        assert [found.name for found in await log.read()] == [str(number) for number in range(10)]
        report = await log.verify()
        assert (report.entries, report.problem) == (10, "")
        used: list[int] = []

        async def count(records: Records) -> None:
            for _ in range(4):
                used.append(await (await records.budget()).count("docs", "local", limit=5, window_seconds=60))  # noqa: PERF401  # counts of both, as they come

        async with anyio.create_task_group() as tasks:
            for records in gateways:
                tasks.start_soon(count, records)
        assert sorted(used) == [0, 1, 2, 3, 4, 5, 5, 5]
        now = time.time()
        await (await gateways[0].questions()).add(PendingQuestion("a", "call", "docs", "read", "local", "may I?", "open", now, now + 60))
        assert await (await gateways[1].questions()).move("a", "open", "approved")
        assert await (await gateways[0].questions()).state("a") == "approved"
    finally:
        for records in gateways:
            await records.aclose()


async def test_gateways_that_start_at_once_make_the_tables_once(server: Postgres, tmp_path: Path) -> None:
    """An open transaction with a table of the same name blocks all four, so that they continue at the same moment."""
    url = server.database("fresh")
    gateways = [Records(StateFolder(tmp_path), audit_days=30, url=url) for _ in range(4)]
    used: list[int] = []

    async def use(records: Records) -> None:
        used.append(await (await records.budget()).count("docs", "local", limit=9, window_seconds=60))
        await records.aclose()

    waiting = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = 'fresh' AND wait_event_type = 'Lock'"
    with anyio.fail_after(40):
        connect = psycopg.AsyncConnection.connect
        async with await connect(url) as first, await connect(url, autocommit=True) as other:
            await first.execute("CREATE TABLE schema_version (version INTEGER PRIMARY KEY)")
            async with anyio.create_task_group() as tasks:
                for records in gateways:
                    tasks.start_soon(use, records)
                while await (await other.execute(waiting)).fetchone() != (4,):
                    await anyio.sleep(0.02)
                await first.rollback()
            rows = await (await other.execute("SELECT version, xmin::text FROM schema_version ORDER BY version")).fetchall()
    assert sorted(used) == [0, 1, 2, 3]
    assert [version for version, _ in rows] == list(range(1, len(STEPS) + 1))
    assert len({transaction for _, transaction in rows}) == 1


async def test_session_is_held_by_one_gateway_and_continues_at_another(server: Postgres, tmp_path: Path) -> None:
    url = server.database("held")
    gateways = [Records(StateFolder(tmp_path), audit_days=30, url=url) for _ in range(2)]
    try:
        one, two = [await records.sessions() for records in gateways]
        begun = await one.begin("ada", "helper", most=1)
        await one.keep(begun, [{"role": "user", "contents": ["nul \0"]}], {"p": {"runs": 1}}, ttl_seconds=60)
        taken: list[HeldSession | None] = []

        async def claim(sessions: Sessions) -> None:
            taken.append(await sessions.claim(begun.id, "ada"))

        async with anyio.create_task_group() as tasks:
            for sessions in (one, two, one, two):
                tasks.start_soon(claim, sessions)
        [held] = [found for found in taken if found is not None]
        assert (held.state, held.messages) == ({"p": {"runs": 1}}, [{"role": "user", "contents": ["nul \0"]}])
        await two.keep(held, [], {}, ttl_seconds=60)
        await two.release(held)
        with pytest.raises(NotFound):
            await two.claim(begun.id, "bob")
        with pytest.raises(PolicyDenied):
            await two.begin("ada", "helper", most=1)
        [listed] = await one.list("ada")
        assert (listed.turns, listed.is_busy) == (2, False)
        await one.delete(begun.id, "ada")
        with pytest.raises(StorageError, match="was deleted"):
            await two.keep(held, [], {}, ttl_seconds=60)
    finally:
        for records in gateways:
            await records.aclose()


async def test_memories_are_found_on_a_server_too(server: Postgres, tmp_path: Path) -> None:
    records = Records(StateFolder(tmp_path), audit_days=30, url=server.database("memories"))
    try:
        memories = Memories(await records.database())
        await memories.add("ada", "m", [("near \0", [1.0, 0.0], {"a": 1}), ("far", [0.0, 1.0], {}), ("other model", [1.0], {})])
        [found] = await memories.search("ada", "m", [2.0, 0.1], top=5, at_least=0.5)
        assert (found.text, found.fields) == ("near \\x00", {"a": 1})
        assert await memories.delete("ada", "m") == 3
    finally:
        await records.aclose()
