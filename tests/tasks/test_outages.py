"""Tasks on a database server that is crowded, away for a while, or full: they wait for it, and end once."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import psycopg
import psycopg.sql
import pytest

from gateway.config.models import TaskSettings
from gateway.errors import StorageError
from gateway.json_types import JsonObject, JsonValue
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task
from gateway.tasks.task_executor import CallTool
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import IDEMPOTENCY_KEY, CallContext
from tests.fakes.postgres import Postgres, postgres
from tests.tasks.dying import Journal, running, steady

pytestmark = [pytest.mark.faults, pytest.mark.postgres, pytest.mark.timeout(90)]
STEPS = 10
FULL = r"too many clients|remaining connection slots"


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as started:
        yield started


@pytest.fixture
def url(server: Postgres) -> str:
    return server.database(f"outage_{secrets.token_hex(4)}")


async def ended(runner: TaskRunner, task: Task) -> Task:
    with anyio.fail_after(60):
        while not task.is_over:
            task = await runner.wait_for_change(task)
    return task


def steps(journal: Journal, at_step: dict[int, anyio.Event], go: anyio.Event) -> CallTool:
    """Return a call of ten steps with one effect each. At the steps in `at_step` the call sets the event and waits for `go`."""

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        assert ctx.ports.durable is not None
        for number in range(STEPS):

            async def work(key: str, number: int = number) -> JsonValue:
                journal.write(str(number))
                return number

            await ctx.ports.durable.step("step", work, repeatable=False)
            if number in at_step:
                at_step[number].set()
                await go.wait()
        return Complete.text("done")

    return call


@pytest.mark.requirement(97)
@pytest.mark.fault(9)
async def test_tasks_wait_for_an_unavailable_database_and_are_not_orphaned(
    url: str, server: Postgres, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    there, go = anyio.Event(), anyio.Event()
    call = steps(journal, {4: there}, go)
    slow = partial(running, lease_seconds=1.5)
    async with slow(tmp_path, call, url=url) as runner, slow(tmp_path, call, url=url):
        task = await runner.start("tool", {}, CallContext())
        await there.wait()
        await anyio.to_thread.run_sync(server.stop)
        go.set()  # its next step meets the outage
        with pytest.raises(StorageError):
            await runner.start("tool", {}, CallContext())
        await anyio.sleep(3.0)  # twice the lease
        assert not task.is_over
        await anyio.to_thread.run_sync(server.start)
        task = await ended(runner, task)
    assert (task.status, task.row.attempts) == ("completed", 1)
    assert journal.lines() == [str(number) for number in range(STEPS)]


def fill(url: str, crowd: list[psycopg.Connection]) -> None:
    """Open all connections that the database server allows. Ends the connections of gateways, which may reconnect meanwhile."""
    strangers = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> ALL(%s)"
    most = 0
    while not most or len(crowd) < most:
        with pytest.raises(psycopg.OperationalError, match=FULL):
            while True:
                crowd.append(psycopg.connect(url, autocommit=True))
        crowd[0].execute(strangers, [[connection.info.backend_pid for connection in crowd]])
        [(setting,)] = crowd[0].execute("SHOW max_connections").fetchall()
        most = int(setting)


@pytest.mark.fault(9)
async def test_database_without_free_connections_is_an_error(
    url: str, server: Postgres, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    there, go = anyio.Event(), anyio.Event()
    crowd: list[psycopg.Connection] = []
    async with running(tmp_path, steps(journal, {4: there}, go), url=url) as runner:
        task = await runner.start("tool", {}, CallContext())
        await there.wait()
        await anyio.to_thread.run_sync(server.stop)
        await anyio.to_thread.run_sync(server.start)  # every connection of the gateway is gone
        try:
            await anyio.to_thread.run_sync(fill, url, crowd)
            go.set()
            with pytest.raises(StorageError, match=FULL):
                await runner.start("tool", {}, CallContext())
            assert not task.is_over
        finally:
            for connection in crowd:
                connection.close()
        task = await ended(runner, task)
    assert (task.status, journal.lines()) == ("completed", [str(number) for number in range(STEPS)])


async def test_concurrent_tasks_of_gateways_end_once_where_they_started(url: str, tmp_path: Path) -> None:
    """Also where the server's administrator made every transaction a serializable one."""
    with psycopg.connect(url, autocommit=True) as administrator:
        name = psycopg.sql.Identifier(url.rpartition("/")[2])
        administrator.execute(psycopg.sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = serializable").format(name))
    settings = TaskSettings(max_per_caller=1000, max_running_per_caller=1000, starts_per_minute_per_caller=100_000)
    over: list[Task] = []

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        assert ctx.ports.durable is not None

        async def work(key: str) -> JsonValue:
            return None

        await ctx.ports.durable.step("step", work, repeatable=False)
        return Complete.text("done")

    async with AsyncExitStack() as stack:
        runners = [await stack.enter_async_context(steady(tmp_path, call, settings=settings, url=url)) for _ in range(3)]

        async def one(runner: TaskRunner) -> None:
            over.append(await ended(runner, await runner.start("tool", {}, CallContext())))

        async with anyio.create_task_group() as clients:
            for number in range(120):
                clients.start_soon(one, runners[number % 3])
    assert {(task.status, task.row.attempts) for task in over} == {("completed", 1)}
    assert len({task.id for task in over}) == 120


async def test_progress_of_a_server_is_stored_whatever_its_content(url: str, tmp_path: Path) -> None:
    seen = anyio.Event()

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        await ctx.progress(1, None, "half\0way \ud800" + "x" * 100_000)
        await seen.wait()
        return Complete.text("nul \0 and \ud800")

    async with running(tmp_path, call, url=url) as runner:
        task = await runner.start("tool", {}, CallContext())
        with anyio.fail_after(20):
            while not task.message.startswith("half\ufffdway ?x"):
                task = await runner.wait_for_change(task)
        assert len(task.message) == 2_000
        seen.set()
        task = await ended(runner, task)
    assert (task.status, task.message) == ("completed", "Completed")


async def test_same_request_through_several_gateways_at_once_is_one_task(url: str, tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        return Complete.text("done")

    ids: list[str] = []
    async with steady(tmp_path, call, url=url) as one, steady(tmp_path, call, url=url) as two:

        async def ask(runner: TaskRunner) -> None:
            ids.append((await runner.start("tool", {}, CallContext(CallFacts(meta={IDEMPOTENCY_KEY: "same"})))).id)

        async with anyio.create_task_group() as clients:
            for number in range(10):
                clients.start_soon(ask, (one, two)[number % 2])
        assert len(set(ids)) == len(await one.all_of("local")) == 1
