"""`ChangeFeed`: tells the processes that share a database when one of them has changed shared data, such as the API keys.

Shared data has a topic, for example `api-keys`. A process that changes the data increments the number of the topic in the same transaction
(`publish_in`). The feeds of all processes read the numbers regularly, and call the subscribers of the topics whose number has changed.

With a PostgreSQL server, a feed holds one connection of its own. The server notifies this connection of changes (`LISTEN`), so subscribers
are usually called within milliseconds. The feed also reads the numbers each second, because some proxies in front of PostgreSQL drop
notifications. With an SQLite file, it only reads the numbers.

`app` creates the feed, which costs nothing without subscribers: the database driver is imported, and the database opened, after the first
subscription.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from gateway.errors import GatewayError, StorageUnusable
from gateway.storage.shared_clock import note_shared_clock

if TYPE_CHECKING:
    from psycopg import AsyncConnection as ServerConnection
    from sqlalchemy.ext.asyncio import AsyncConnection

    from gateway.storage.engine import Database

logger = logging.getLogger(__name__)

CHANNEL = "moongate_versions"
"""Name of the PostgreSQL notification channel. The payload of a notification is the topic."""

LOOK_SECONDS = 0.9
"""Maximum seconds between two reads of the numbers from a PostgreSQL server."""

FILE_LOOK_SECONDS = 0.5
"""Seconds between two reads of the numbers from an SQLite file."""

GATHER_SECONDS = 0.02
"""Seconds between a notification and the read of the numbers, so that one read covers the changes of a burst."""

ANSWER_SECONDS = 5.0
"""Timeout of one read of the numbers in seconds. After that, the feed opens a new connection."""

RETRY_SECONDS = 0.25
"""Seconds until the first attempt to reconnect. They double with each failed attempt up to `MAX_RETRY_SECONDS`, and are random by half."""

MAX_RETRY_SECONDS = 2.0
"""Maximum seconds between two attempts to reconnect."""

_FILE_NUMBERS_AND_CLOCK = (
    "SELECT (julianday('now') - 2440587.5) * 86400.0, name, number FROM (SELECT 1) AS always LEFT JOIN versions ON true"
)
_NUMBERS_AND_CLOCK = (
    "SELECT extract(epoch FROM clock_timestamp())::float8, name, number FROM (SELECT 1) AS always LEFT JOIN versions ON true"
)


class Subscription:
    """One subscriber of a topic. `ChangeFeed.subscribe` creates it. It knows whether the subscriber has seen the latest change."""

    def __init__(self, topic: str, changed: Callable[[], Awaitable[None]]) -> None:
        """`changed` is called after a change of `topic`."""
        self.topic = topic
        self._changed = changed
        self.current_at = -math.inf
        """Monotonic time (`time.monotonic`) at which the subscriber was last known to have seen every change; infinitely early at first."""
        self._found: tuple[int, int] | None = None
        self._found_at = -math.inf
        self._handled: tuple[int, int] | None = None
        self._wake = anyio.Event()
        self._has_failed = False

    @property
    def age(self) -> float:
        """Seconds since the subscriber was last known to have seen every change; infinite before the first time."""
        return time.monotonic() - self.current_at

    def note(self, found: tuple[int, int], at: float) -> None:
        """Note what the feed has read at the monotonic time `at`: its connection's number and the topic's number."""
        self._found, self._found_at = found, at
        if found == self._handled:
            self.current_at = at
        else:
            self._wake.set()

    async def run(self) -> None:
        """Call the subscriber after each change, until cancelled. A failed call is repeated after the next read of the numbers."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            found, at = self._found, self._found_at
            if found == self._handled:
                continue
            try:
                await self._changed()
            except Exception as error:  # a fault of one subscriber must not end the gateway
                self._log(error)
                continue
            self._has_failed = False
            self._handled = found
            self.current_at = self._found_at if self._found == found else at

    def _log(self, error: Exception) -> None:
        if not self._has_failed:
            logger.warning("change not applied, retrying topic=%s reason=%r", self.topic, str(error), exc_info=_fault(error))
        self._has_failed = True


@dataclass(frozen=True, slots=True)
class _Look:
    """What one read of the numbers returned."""

    at: float
    """Monotonic time before the read."""
    numbers: Mapping[str, int]
    clock_offset: float


class _Watch(Protocol):
    """An open connection by which the feed reads the numbers."""

    async def look(self) -> _Look:
        """Read the numbers of all topics. Raises `StorageUnusable`."""
        ...

    async def wait(self) -> None:
        """Wait until the next read is due. Raises `StorageUnusable`."""
        ...


class ChangeFeed:
    """Publishes changes of shared data to all processes that share a database, and calls subscribers in this process.

    The owner runs `run` in a task group. `publish` works without `run`.
    """

    def __init__(self, database: Callable[[], Awaitable[Database]]) -> None:
        """`database` opens the database on first use, and returns it (`Records.database`)."""
        self._database = database
        self._subscriptions: list[Subscription] = []
        self._is_wanted = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._looked_at = -math.inf
        self.clock_offset = 0.0
        """Seconds by which the database server's clock is ahead of this machine's clock (`time.time`), as last measured."""

    @property
    def seconds_since_look(self) -> float:
        """Seconds since the feed last read the numbers successfully; infinite before the first read."""
        return time.monotonic() - self._looked_at

    def subscribe(self, topic: str, changed: Callable[[], Awaitable[None]]) -> Subscription:
        """Call `changed` after each change of `topic`, by this or another process. Return an object that says how current its data is.

        `changed` is also called once after the start of `run` and after each reconnection, because a change may have been missed. It reads
        the data itself. Calls of one subscriber never overlap, and several changes may cause one call. If `changed` raises an exception, it
        is called again about a second later.
        """
        subscription = Subscription(topic, changed)
        self._subscriptions.append(subscription)
        self._is_wanted.set()
        if self._tasks is not None:
            self._tasks.start_soon(subscription.run)
        return subscription

    async def publish(self, topic: str) -> None:
        """Publish a change of `topic` in a transaction of its own. Raises `StorageError`."""
        database = await self._database()
        async with database.begin() as connection:
            await publish_in(connection, topic)

    async def read_clock(self, connection: AsyncConnection) -> float:
        """Return the time of the database server's clock in seconds since the epoch, and measure `clock_offset`."""
        before = time.time()
        now, took = await measure_clock(connection)
        self.clock_offset = now - before - took / 2
        return now

    async def run(self) -> None:
        """Read the numbers and call subscribers, until cancelled. Waits for the first subscription before it opens the database."""
        await self._is_wanted.wait()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                for subscription in self._subscriptions:
                    tasks.start_soon(subscription.run)
                await self._follow()
            finally:
                self._tasks = None

    async def _follow(self) -> None:
        """Read the numbers over one connection until it fails; then reconnect. Logs the first failure and the recovery."""
        is_failing, delay, generation = False, RETRY_SECONDS, 0
        while True:
            generation += 1
            try:
                async with _watch(await self._database()) as watch:
                    while True:
                        self._note(await watch.look(), generation)
                        if is_failing:
                            logger.warning("change feed resumed")
                        is_failing, delay = False, RETRY_SECONDS
                        await watch.wait()
            except Exception as error:  # also of the driver: the next connection may work
                if not is_failing:
                    logger.warning("change feed interrupted, database unusable reason=%r", str(error), exc_info=_fault(error))
                is_failing = True
            await anyio.sleep(delay * random.uniform(0.5, 1.0))  # spreads the reconnections of many gateways
            delay = min(delay * 2, MAX_RETRY_SECONDS)

    def _note(self, look: _Look, generation: int) -> None:
        self._looked_at, self.clock_offset = look.at, look.clock_offset
        for subscription in self._subscriptions:
            subscription.note((generation, look.numbers.get(subscription.topic, 0)), look.at)


async def measure_clock(connection: AsyncConnection) -> tuple[float, float]:
    """Read the database's clock, and use it as the shared clock (`shared_clock`). Return its time, and the seconds that the read took."""
    import sqlalchemy as sa

    from gateway.storage.tables import database_clock

    start = time.monotonic()
    now = float((await connection.execute(sa.select(database_clock(connection)))).scalar_one())
    took = time.monotonic() - start
    note_shared_clock(now, start + took / 2)
    return now, took


async def publish_in(connection: AsyncConnection, topic: str) -> None:
    """Publish a change of `topic` in the open transaction that changes the data. Call it last: it locks the topic until the commit.

    If the transaction rolls back, nothing is published.
    """
    import sqlalchemy as sa

    upsert = "INSERT INTO versions (name, number) VALUES (:t, 1) ON CONFLICT (name) DO UPDATE SET number = versions.number + 1"
    await connection.execute(sa.text(upsert), {"t": topic})
    if connection.dialect.name == "postgresql":
        await connection.execute(sa.select(sa.func.pg_notify(CHANNEL, topic)))


def _fault(error: Exception) -> Exception | None:
    """Return the error if its traceback belongs in the log, because it is not one of the gateway's errors."""
    return None if isinstance(error, GatewayError) else error


def _to_look(rows: Sequence[Any], at: float, local: float) -> _Look:
    """Return what a read returned that began at the monotonic time `at` and at the time `local` of this machine's clock."""
    half = (time.monotonic() - at) / 2
    note_shared_clock(rows[0][0], at + half)
    return _Look(at, {name: number for _, name, number in rows if name is not None}, rows[0][0] - local - half)


@contextmanager
def _failures() -> Generator[None]:
    """Convert errors of the PostgreSQL driver and timeouts inside the block to `StorageUnusable`."""
    import psycopg

    try:
        yield
    except (psycopg.Error, OSError) as error:  # `TimeoutError` is an `OSError`
        reason = str(error).partition("\n")[0] or f"no answer within {ANSWER_SECONDS:g} s"
        raise StorageUnusable(f"The database server cannot be used: {reason}") from None


@asynccontextmanager
async def _watch(database: Database) -> AsyncGenerator[_Watch]:
    """Context manager: open a connection of the kind that fits the database, and close it at the end. Raises `StorageUnusable`."""
    if database.file is not None:
        with _FileWatch.opened(database.file) as watch:
            yield watch
        return
    watch = await _ServerWatch.opened(database.server_arguments)
    try:
        yield watch
    finally:
        await watch.aclose()


class _FileWatch:
    """Reads the numbers from an SQLite file, over a connection that never locks out writers."""

    def __init__(self, path: Path, raw: Any) -> None:
        self._path = path
        self._raw = raw

    @classmethod
    def opened(cls, path: Path) -> Any:
        """Return a context manager that opens the file for reading and closes it at the end."""
        import sqlite3

        try:
            raw = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=ANSWER_SECONDS, check_same_thread=False)
        except sqlite3.Error as error:
            raise StorageUnusable(f"The database {str(path)!r} cannot be read: {error}.") from None
        return closing(cls(path, raw))

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    async def look(self) -> _Look:
        """Read the numbers of all topics. Raises `StorageUnusable`."""
        return _to_look(*await anyio.to_thread.run_sync(self._read))

    async def wait(self) -> None:
        """Wait until the next read is due."""
        await anyio.sleep(FILE_LOOK_SECONDS)

    def _read(self) -> tuple[list[Any], float, float]:
        import sqlite3

        at, local = time.monotonic(), time.time()
        try:
            return self._raw.execute(_FILE_NUMBERS_AND_CLOCK).fetchall(), at, local
        except sqlite3.Error as error:
            raise StorageUnusable(f"The database {str(self._path)!r} cannot be read: {error}.") from None


class _ServerWatch:
    """Reads the numbers over one connection to a PostgreSQL server, which also receives notifications."""

    def __init__(self, connection: ServerConnection[Any]) -> None:
        self._connection = connection

    @classmethod
    async def opened(cls, arguments: Mapping[str, Any]) -> _ServerWatch:
        """Connect and subscribe to notifications. Raises `StorageUnusable`."""
        import psycopg

        # A server that no longer answers is noticed even if its network drops every packet.
        alive: dict[str, Any] = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
        alive["tcp_user_timeout"] = int(ANSWER_SECONDS * 1000)
        with _failures():
            connect = psycopg.AsyncConnection.connect
            connection = await connect(**{**alive, **arguments}, autocommit=True, prepare_threshold=None)
            try:
                with anyio.fail_after(ANSWER_SECONDS):
                    await connection.execute(f"LISTEN {CHANNEL}")
            except BaseException:
                await cls(connection).aclose()
                raise
        return cls(connection)

    async def aclose(self) -> None:
        """Close the connection."""
        with anyio.move_on_after(ANSWER_SECONDS, shield=True):
            await self._connection.close()

    async def look(self) -> _Look:
        """Read the numbers of all topics and the server's clock. Raises `StorageUnusable`."""
        at, local = time.monotonic(), time.time()
        with _failures(), anyio.fail_after(ANSWER_SECONDS):
            rows = await (await self._connection.execute(_NUMBERS_AND_CLOCK)).fetchall()
        return _to_look(rows, at, local)

    async def wait(self) -> None:
        """Wait for a notification, for at most `LOOK_SECONDS`. Raises `StorageUnusable`."""
        is_notified = False
        with _failures():
            async with aclosing(self._connection.notifies(timeout=LOOK_SECONDS, stop_after=1)) as notifications:
                async for _ in notifications:
                    is_notified = True
        if is_notified:
            await anyio.sleep(GATHER_SECONDS)
