"""The rows of 2025 sessions that replicas share: sessions that are wanted at the same time are read together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.errors import StorageError
from gateway.storage.client_sessions import ClientSessionRow, ClientSessions
from gateway.storage.engine import Database, open_database


class Watched:
    """A database that counts its reads, holds them until `go`, and fails the reads numbered in `failing`."""

    def __init__(self, database: Database, failing: Sequence[int] = ()) -> None:
        self._database = database
        self._failing = failing
        self.reads = 0
        self.go = anyio.Event()

    async def rows(self, query: Any) -> Any:
        self.reads += 1
        number = self.reads
        await self.go.wait()
        if number in self._failing:
            raise StorageError("The disk is gone.")
        return await self._database.rows(query)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncGenerator[Database]:
    opened = open_database(tmp_path)
    stored = ClientSessions(opened)
    for number in range(3):
        await stored.put(ClientSessionRow(f"s{number}", "error", [f"file:///{number}"]), until=1e12, now=0, topic="t")
    yield opened
    await opened.aclose()


def batched(watched: Watched) -> ClientSessions:
    return ClientSessions(watched)  # pyright: ignore[reportArgumentType]  # of which `get` needs only `rows`


async def test_sessions_wanted_during_a_read_are_read_together(database: Database) -> None:
    watched, found = Watched(database), dict[str, ClientSessionRow | None]()
    sessions = batched(watched)

    async def get(name: str) -> None:
        found[name] = await sessions.get(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(get, "s0")
        await anyio.wait_all_tasks_blocked()
        for number in range(1, 100):
            tasks.start_soon(get, f"s{number}")
        await anyio.wait_all_tasks_blocked()
        watched.go.set()
    assert watched.reads == 2, "the first alone, all others together"
    assert [name for name, row in found.items() if row is not None] == ["s0", "s1", "s2"]
    assert all(row.name == name and row.log_level == "error" for name, row in found.items() if row is not None)


async def test_failed_read_fails_only_the_sessions_of_its_batch(database: Database) -> None:
    watched = Watched(database, failing=[2])
    sessions, failed = batched(watched), list[str]()

    async def get(name: str) -> None:
        try:
            await sessions.get(name)
        except StorageError:
            failed.append(name)

    async with anyio.create_task_group() as tasks:
        for names in (("s0",), ("s1", "s2")):
            for name in names:
                tasks.start_soon(get, name)
            await anyio.wait_all_tasks_blocked()
        watched.go.set()
    assert sorted(failed) == ["s1", "s2"]
    assert (await sessions.get("s1")) is not None


async def test_cancelled_reader_leaves_its_batch_to_another_task(database: Database) -> None:
    watched, found = Watched(database), list[ClientSessionRow | None]()
    sessions = batched(watched)

    async def get(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            found.append(await sessions.get(name))

    scopes = [anyio.CancelScope() for _ in range(3)]
    async with anyio.create_task_group() as tasks:
        for number, scope in enumerate(scopes):
            tasks.start_soon(get, f"s{number}", scope)
            await anyio.wait_all_tasks_blocked()
        scopes[1].cancel()  # it waits for the first read, to read the session of the third task too
        await anyio.wait_all_tasks_blocked()
        watched.go.set()
    assert sorted(row.name for row in found if row is not None) == ["s0", "s2"]
