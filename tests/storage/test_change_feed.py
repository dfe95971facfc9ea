"""A change that one process publishes reaches the subscribers in all processes that share the database."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import psycopg
import pytest

from gateway.errors import StorageError
from gateway.storage.change_feed import ChangeFeed, publish_in
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from tests.fakes.postgres import Postgres, postgres
from tests.fakes.running import ROOT

pytestmark = pytest.mark.fleet

PUBLISHER = """
import sys, anyio, pathlib
from gateway.storage.change_feed import ChangeFeed
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder

async def main(folder, url, topic):
    records = Records(StateFolder(pathlib.Path(folder)), audit_days=30, url=url or None)
    await ChangeFeed(records.database).publish(topic)
    await records.aclose()

anyio.run(main, *sys.argv[1:])
"""


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str | None:
    """The URL of a new database on a server; `None` stands for the file in the state folder."""
    if request.param == "sqlite":
        return None
    started: Postgres = request.getfixturevalue("server")
    return started.database(f"feed_{time.monotonic_ns()}")


@asynccontextmanager
async def feed(folder: Path, url: str | None) -> AsyncGenerator[tuple[ChangeFeed, Records]]:
    records = Records(StateFolder(folder), audit_days=30, url=url)
    made = ChangeFeed(records.database)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        yield made, records
        tasks.cancel_scope.cancel()
    await records.aclose()


async def until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    with anyio.fail_after(seconds):
        while not holds():
            await anyio.sleep(0.01)


def publish_elsewhere(folder: Path, url: str | None, topic: str) -> None:
    subprocess.run([sys.executable, "-c", PUBLISHER, str(folder), url or "", topic], cwd=ROOT, timeout=30, check=True)


class Counter:
    """A subscriber that counts its calls, and can fail or wait."""

    def __init__(self) -> None:
        self.calls = 0
        self.running = 0
        self.most_running = 0
        self.fails = False
        self.go = anyio.Event()
        self.go.set()

    async def __call__(self) -> None:
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            self.calls += 1
            await self.go.wait()
            if self.fails:
                raise StorageError("not now")
        finally:
            self.running -= 1


def test_feed_without_subscribers_imports_no_database_driver(tmp_path: Path) -> None:
    probe = (
        "import sys, anyio, pathlib\n"
        "from gateway.storage.change_feed import ChangeFeed\n"
        "from gateway.storage.records import Records\n"
        "from gateway.storage.state_folder import StateFolder\n"
        f"records = Records(StateFolder(pathlib.Path({str(tmp_path)!r})), audit_days=1)\n"
        "async def main():\n"
        "    with anyio.move_on_after(0.2):\n"
        "        await ChangeFeed(records.database).run()\n"
        "anyio.run(main)\n"
        "print([m for m in ('sqlalchemy', 'sqlite3', 'psycopg') if m in sys.modules], records.is_open)"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.strip() == "[] False"


async def test_change_of_another_process_calls_only_subscribers_of_its_topic(tmp_path: Path, url: str | None) -> None:
    async with feed(tmp_path, url) as (made, _):
        keys, pins = Counter(), Counter()
        subscription = made.subscribe("keys", keys)
        made.subscribe("pins", pins)
        assert (subscription.age, made.seconds_since_look) == (math.inf, math.inf)
        await until(lambda: keys.calls == 1 and pins.calls == 1 and subscription.age < 1)
        await anyio.to_thread.run_sync(publish_elsewhere, tmp_path, url, "keys")
        await until(lambda: keys.calls == 2, 1.0)
        await anyio.sleep(1.2)
        assert (keys.calls, pins.calls) == (2, 1)
        assert subscription.age < 1.5
        assert made.seconds_since_look < 1.5


async def test_change_in_a_rolled_back_transaction_is_not_published(tmp_path: Path, url: str | None) -> None:
    async with feed(tmp_path, url) as (made, records):
        counter = Counter()
        made.subscribe("keys", counter)
        await until(lambda: counter.calls == 1)
        database = await records.database()
        with pytest.raises(ZeroDivisionError):
            async with database.begin() as connection:
                await publish_in(connection, "keys")
                raise ZeroDivisionError
        await anyio.sleep(1.2)
        assert counter.calls == 1
        async with database.begin() as connection:
            await publish_in(connection, "keys")
        await until(lambda: counter.calls == 2, 1.0)


async def test_changes_during_a_call_cause_one_further_call(tmp_path: Path, url: str | None) -> None:
    async with feed(tmp_path, url) as (made, _):
        counter = Counter()
        subscription = made.subscribe("keys", counter)
        await until(lambda: counter.calls == 1 and subscription.age < 1)
        counter.go = anyio.Event()
        for _ in range(5):
            await made.publish("keys")
        await until(lambda: counter.calls == 2)
        for _ in range(5):
            await made.publish("keys")
        await anyio.sleep(1.2)
        assert subscription.age > 1.0  # it has not seen every change
        counter.go.set()
        await until(lambda: counter.calls == 3 and subscription.age < 1)
        await anyio.sleep(1.2)
        assert (counter.calls, counter.most_running) == (3, 1)


async def test_failed_call_is_repeated_until_it_succeeds(tmp_path: Path, url: str | None, caplog: pytest.LogCaptureFixture) -> None:
    async with feed(tmp_path, url) as (made, _):
        counter, other = Counter(), Counter()
        counter.fails = True
        subscription = made.subscribe("keys", counter)
        made.subscribe("keys", other)
        await until(lambda: counter.calls >= 3)
        assert (subscription.age, other.calls) == (math.inf, 1)
        counter.fails = False
        await until(lambda: subscription.age < 1)
    assert [record.message for record in caplog.records if "change not applied" in record.message] == [
        "change not applied, retrying topic=keys reason='not now'"
    ]


def kill_feed_connections(url: str) -> int:
    feeds = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%versions%' AND pid <> pg_backend_pid()"
    with psycopg.connect(url, autocommit=True) as administrator:
        return len(administrator.execute(feeds).fetchall())


@pytest.mark.postgres
async def test_notification_arrives_sooner_than_the_next_read(server: Postgres, tmp_path: Path) -> None:
    async with feed(tmp_path, server.database("soon")) as (made, _):
        counter, delays = Counter(), list[float]()
        made.subscribe("keys", counter)
        await until(lambda: counter.calls == 1)
        for number in range(2, 12):
            start = time.monotonic()
            await made.publish("keys")
            await until(lambda number=number: counter.calls == number)
            delays.append(time.monotonic() - start)
    assert sorted(delays)[5] < 0.3, delays


@pytest.mark.postgres
async def test_lost_notifications_are_noticed_by_the_next_read(server: Postgres, tmp_path: Path) -> None:
    url = server.database("silent")
    async with feed(tmp_path, url) as (made, records):
        counter = Counter()
        made.subscribe("keys", counter)
        await until(lambda: counter.calls == 1)
        async with (await records.database()).begin() as connection:
            await connection.exec_driver_sql("INSERT INTO versions (name, number) VALUES ('keys', 1)")
        await until(lambda: counter.calls == 2, 1.5)


@pytest.mark.postgres
async def test_feed_whose_connection_is_killed_reconnects(server: Postgres, tmp_path: Path) -> None:
    url = server.database("killed")
    async with feed(tmp_path, url) as (made, _):
        counter = Counter()
        made.subscribe("keys", counter)
        for number in range(1, 4):
            await until(lambda number=number: counter.calls >= number)
            calls = counter.calls
            assert await anyio.to_thread.run_sync(kill_feed_connections, url) >= 1
            await anyio.to_thread.run_sync(publish_elsewhere, tmp_path, url, "keys")
            await until(lambda calls=calls: counter.calls > calls)


@pytest.mark.postgres
async def test_outage_is_logged_once_and_ends_with_a_call(server: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = server.database("outage")
    async with feed(tmp_path, url) as (made, _):
        counter = Counter()
        subscription = made.subscribe("keys", counter)
        await until(lambda: subscription.age < 1)
        await anyio.to_thread.run_sync(server.stop)
        try:
            await anyio.sleep(3.0)
            assert min(subscription.age, made.seconds_since_look) > 2.0
        finally:
            await anyio.to_thread.run_sync(server.start)
        await until(lambda: counter.calls == 2 and subscription.age < 1)
        await made.publish("keys")
        await until(lambda: counter.calls == 3, 1.0)
    said = [record for record in caplog.records if record.name == "gateway.storage.change_feed" and record.levelno >= logging.WARNING]
    assert [record.message.partition(" reason=")[0] for record in said] == [
        "change feed interrupted, database unusable",
        "change feed resumed",
    ]


@pytest.mark.postgres
async def test_frozen_server_does_not_stop_the_feed_for_ever(server: Postgres, tmp_path: Path) -> None:
    """A server process that stops answering while its connection stays open is left for a new connection."""
    url = server.database("frozen")
    async with feed(tmp_path, url) as (made, _):
        counter = Counter()
        subscription = made.subscribe("keys", counter)
        await until(lambda: counter.calls == 1)
        with psycopg.connect(url) as holder:
            holder.execute("LOCK TABLE versions IN ACCESS EXCLUSIVE MODE")
            await anyio.sleep(8.0)
            assert subscription.age > 6.0
        await until(lambda: counter.calls == 2 and subscription.age < 1)


@pytest.mark.postgres
async def test_clock_of_the_server_is_measured(server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with feed(tmp_path, server.database("clock")) as (made, _):
        counter = Counter()
        made.subscribe("keys", counter)
        await until(lambda: counter.calls == 1)
        assert abs(made.clock_offset) < 0.5
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - 300)  # this machine's clock is set back by five minutes
        await until(lambda: abs(made.clock_offset - 300) < 0.5)
