"""The load on a fleet: 2025 sessions with event streams and occasional calls, and 2026 requests at a fixed rate."""

from __future__ import annotations

import asyncio  # noqa: TID251  # as the connections of `clients`
import itertools
import random
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fleet.clients import Connection, ConnectionLost, NoAnswer, Person, Pool, StreamBroke, legacy, modern
from benchmarks.fleet.judge import Failure, Outcome, Verdict, weigh
from benchmarks.fleet.streams import Streams
from benchmarks.payload import LEGACY

ATTEMPTS = 4
"""Attempts of a call, as a careful client makes them."""

RETRY_SECONDS = 0.2
"""Pause before the first retry of a call; each further pause is twice as long."""

PAUSE_SPREAD = (0.75, 1.25)
"""Least and greatest pause between two calls of a session, in multiples of the mean."""

OPENERS = 32
"""Sessions that are opened at once."""

TOOL = "up__tool_0"


@dataclass
class Journal:
    """Everything that the clients observed."""

    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    waits: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """For each call its begin, and the seconds until the right answer, with all retries."""
    faults: list[str] = field(default_factory=list[str])
    """Failures of the harness itself."""


class Load:
    """Clients of one fleet, behind one nginx."""

    def __init__(self, port: int, people: list[Person]) -> None:
        self.journal = Journal()
        self._port = port
        self._people = people
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._pool = Pool(port)
        self.open_sessions = 0
        self.streams = Streams(port)
        self._is_stopping = False

    # -- calls -------------------------------------------------------------------------------------------------------

    async def call(self, person: Person, era: str, session: str = "", own: Connection | None = None) -> Connection | None:
        """Make a call, with retries, over `own` or the shared connections. Return the open connection for the next call."""
        call = f"{person.name}:{next(self._numbers)}"
        start = time.time()
        for attempt in range(1, ATTEMPTS + 1):
            number = next(self._numbers)
            name = f"{call}/{attempt}"
            params: dict[str, Any] = {"name": TOOL, "arguments": {"text": call}}
            began = time.time()
            try:
                if era == "2026":
                    answer = await self._pool.send(modern(person, "tools/call", number, params, name))
                else:
                    if own is None or not own.is_open:
                        own = await Connection.open(self._port)
                    answer = await own.send(legacy(person, session, {"id": number, "method": "tools/call", "params": params}, name))
                verdict, problem, failure = weigh(answer, number, call)
            except StreamBroke as error:
                verdict, problem, failure = Verdict.FAILED, str(error), Failure.STREAM_BROKE
            except (ConnectionLost, NoAnswer) as error:
                verdict, problem, failure = Verdict.FAILED, str(error), Failure.BARE
            is_last = verdict is Verdict.FAILED and (attempt == ATTEMPTS or failure is Failure.BARE)
            seconds = time.time() - began
            self.journal.outcomes.append(Outcome(call, name, era, began, seconds, verdict, problem, failure, is_last))
            if verdict is not Verdict.FAILED:
                self.journal.waits.append((start, time.time() - start))
            if verdict is not Verdict.FAILED or is_last:
                break
            await asyncio.sleep(RETRY_SECONDS * 2 ** (attempt - 1))
        return own

    def start_modern(self, rate: float) -> None:
        """Send 2026 calls at a fixed rate per second until `stop`, however slow the answers are."""
        self._spawn(self._modern(rate))

    async def _modern(self, rate: float) -> None:
        due = time.monotonic()
        for person in itertools.cycle(self._people):
            due += 1 / rate
            await asyncio.sleep(max(due - time.monotonic(), 0))
            self._spawn(self._one(person))

    async def _one(self, person: Person) -> None:
        await self.call(person, "2026")

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def open_all(self, count: int, every: float, share: float) -> None:
        """Open `count` sessions. Each makes a call every `every` seconds, and a `share` of them hold an event stream.

        Raises:
            RuntimeError: A session could not be opened.
        """
        places = iter(range(count))
        await self.streams.start()

        async def opener() -> None:
            for place in places:
                person = self._people[place % len(self._people)]
                session, connection = await self._open(person)
                self.open_sessions += 1
                self._spawn(self._session(person, session, connection, every))
                if place < count * share:
                    self.streams.hold(person, session)

        async with asyncio.TaskGroup() as group:
            for _ in range(OPENERS):
                group.create_task(opener())

    async def _open(self, person: Person) -> tuple[str, Connection]:
        connection = await Connection.open(self._port)
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "fleet", "version": "1"}}
        answer = await connection.send(legacy(person, "", {"id": 0, "method": "initialize", "params": hello}, "initialize"))
        if answer.status != 200 or not answer.session:
            raise RuntimeError(f"initialize was answered with {answer.status}: {answer.body[:300]!r}")
        done = await connection.send(legacy(person, answer.session, {"method": "notifications/initialized"}, "initialized"))
        if done.status != 202:
            raise RuntimeError(f"notifications/initialized was answered with {done.status}: {done.body[:300]!r}")
        return answer.session, connection

    async def _session(self, person: Person, session: str, connection: Connection | None, every: float) -> None:
        await asyncio.sleep(random.random() * every)
        while not self._is_stopping:
            # Equal pauses would make each session's calls arrive at the same replica again and again.
            due = time.monotonic() + every * random.uniform(*PAUSE_SPREAD)
            connection = await self.call(person, "2025", session, connection)
            await asyncio.sleep(max(due - time.monotonic(), 0))

    # -- the end -----------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.journal.faults.append(repr(error))

    def check(self) -> None:
        """Raise `RuntimeError` if a client of the harness itself failed."""
        if self.journal.faults:
            raise RuntimeError(f"the harness failed: {self.journal.faults[0]}")

    async def stop(self) -> None:
        """End all clients."""
        self._is_stopping = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.streams.stop()
        self._pool.close()
