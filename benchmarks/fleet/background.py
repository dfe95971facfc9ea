"""The part `tasks`: many calls as tasks through three replicas, one of which is killed at an interval.

Each task is one call of a tool that may run twice (`policies.up.idempotent`). The server behind the gateways counts its calls, so a
repeated step shows. The client starts each task with an idempotency key, and polls it until it is done.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # as the connections of `clients`
import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fleet.clients import Answer, ConnectionLost, NoAnswer, Person, Pool, modern
from benchmarks.fleet.disturbances import Disturbances
from benchmarks.fleet.judge import RETRYABLE_STATUSES, texts
from benchmarks.fleet.meters import Meters, per_second
from benchmarks.fleet.progress import say
from benchmarks.fleet.site import Site, effects, running
from benchmarks.fleet.versions import this_checkout

TOOL = "up__tool_1"
IDEMPOTENCY_KEY = "dev.moongate/idempotencyKey"
FIRST_POLL_SECONDS = 0.5
LAST_POLL_SECONDS = 4.0
RETRY_SECONDS = 0.5
PROGRESS_SECONDS = 15.0


@dataclass(frozen=True)
class Size:
    """The number of tasks and the disturbances."""

    tasks: int = 50_000
    in_flight: int = 30
    """Tasks that the clients have started and not yet read. More only make the tasks wait on two processors."""
    interval: float = 20.0
    """Seconds between two kills."""
    patience: float = 60.0
    """Seconds after which a task without a result counts as lost."""
    limit: float = 3600.0
    """Seconds after which no more tasks are started. The figures then name the number that was reached."""


@dataclass
class Tally:
    """What the clients observed."""

    started: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])
    errors: Counter[str] = field(default_factory=Counter[str])
    """Failed requests that the clients sent again, by what they got."""
    polls: int = 0
    seconds: list[float] = field(default_factory=list[float])
    """Seconds from the start of each task to its result."""


class Clients:
    """Starts tasks and reads their results."""

    def __init__(self, site: Site, size: Size) -> None:
        self.tally = Tally()
        self._site = site
        self._size = size
        self._pool = Pool(site.port)
        self._numbers = itertools.count(1)
        self._until = time.monotonic() + size.limit

    async def run(self) -> None:
        """Run all tasks, `in_flight` at once."""
        numbers = iter(range(self._size.tasks))
        async with asyncio.TaskGroup() as group:
            for _ in range(self._size.in_flight):
                group.create_task(self._work(numbers))
        self._pool.close()

    async def _work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            if time.monotonic() > self._until:
                return
            person = self._site.people[number % len(self._site.people)]
            call = f"{person.name}:task{number}"
            self.tally.started += 1
            began = time.monotonic()
            try:
                async with asyncio.timeout(self._size.patience):
                    found = await self._one(person, call)
            except TimeoutError:
                self.tally.lost.append(f"{call}: no result within {self._size.patience:g} s")
                continue
            if found == call:
                self.tally.right += 1
                self.tally.seconds.append(time.monotonic() - began)
            else:
                self.tally.wrong.append(f"{call}: {found}")

    async def _one(self, person: Person, call: str) -> str:
        """Start a task, wait for its end, and return the text of its result, or what it has instead."""
        started = await self._send(
            person, "tools/call", {"name": TOOL, "arguments": {"text": call}, "_meta": {IDEMPOTENCY_KEY: call}}, call
        )
        result: dict[str, Any] = started.get("result") or {}
        if result.get("resultType") != "task":
            return f"not a task: {str(started)[:300]}"
        pause = FIRST_POLL_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LAST_POLL_SECONDS)
            self.tally.polls += 1
            state = await self._send(person, "tasks/get", {"taskId": result["taskId"]}, call)
            task: dict[str, Any] = state.get("result") or {}
            if task.get("status") != "working":
                return texts(task) or f"{task.get('status')}: {str(state)[:300]}"

    async def _send(self, person: Person, method: str, params: dict[str, Any], call: str) -> dict[str, Any]:
        """Send a request until a gateway answers it, and return the JSON-RPC response."""
        while True:
            number = next(self._numbers)
            try:
                answer = await self._pool.send(modern(person, method, number, params, call, tasks=True))
            except (ConnectionLost, NoAnswer) as error:
                self.tally.errors[f"{method}: {error}"] += 1
            else:
                message = self._usable(method, number, answer)
                if message is not None:
                    return message
            await asyncio.sleep(RETRY_SECONDS)

    def _usable(self, method: str, number: int, answer: Answer) -> dict[str, Any] | None:
        """Return the JSON-RPC response; `None` if the request must be sent again."""
        message = answer.message()
        if answer.status in RETRYABLE_STATUSES or message is None:
            self.tally.errors[f"{method}: HTTP {answer.status}"] += 1
            return None
        if message.get("id") != number:
            return {"result": {"status": f"the response has the id {message.get('id')} instead of {number}"}}
        return message


async def measure(site: Site, size: Size) -> dict[str, Any]:
    """Run all tasks on a fleet and return the figures."""
    meters, clients = Meters(site), Clients(site, size)
    disturbances = Disturbances(site, meters.note)
    sampling = asyncio.create_task(meters.sample())
    before = meters.read()
    killing = asyncio.create_task(disturbances.kill_every(size.interval, tuple(range(len(site.replicas))), 1_000_000))
    telling = asyncio.create_task(_tell(clients.tally, size))
    try:
        await clients.run()
    finally:
        for task in (killing, telling):
            task.cancel()
        await asyncio.gather(killing, telling, return_exceptions=True)
    after = meters.read()
    sampling.cancel()
    tally, kills = clients.tally, len(disturbances.kills)
    counted = {text: count for text, count in (await asyncio.to_thread(effects, site.upstream)).items() if ":task" in text}
    repeated = [count - 1 for count in counted.values() if count > 1]
    seconds = after.at - before.at
    figures = {
        "size": dataclasses.asdict(size),
        "started": tally.started,
        "right": tally.right,
        "wrong": tally.wrong[:20],
        "wrong_count": len(tally.wrong),
        "lost": tally.lost[:20],
        "lost_count": len(tally.lost),
        "kills": kills,
        "repeated_steps": sum(repeated),
        "repeated_per_kill": sum(repeated) / kills if kills else 0.0,
        "most_repeats_of_a_task": max(repeated, default=0),
        "never_called": tally.started - len(counted),
        "seconds": seconds,
        "tasks_per_second": tally.right / seconds,
        "polls": tally.polls,
        "errors": dict(tally.errors),
        "wait": {part: _percentile(tally.seconds, value) for part, value in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))},
        "use": per_second(before, after),
        "transactions_per_task": (after.database.transactions - before.database.transactions) / max(tally.right, 1),
        "rows_written_per_task": (after.database.rows_written - before.database.rows_written) / max(tally.right, 1),
        "gateway_ms_per_task": (after.gateways - before.gateways) / max(tally.right, 1) * 1000,
        "postgres_ms_per_task": (after.postgres - before.postgres) / max(tally.right, 1) * 1000,
        "connections": max(meters.connections, default=0),
        "memory_mib": meters.highest(),
        "events": disturbances.notes,
        "warnings": site.warnings(),
    }
    say(_line(figures))
    return figures


async def _tell(tally: Tally, size: Size) -> None:
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        say(f"{tally.right} of {size.tasks} tasks, {len(tally.wrong)} wrong, {len(tally.lost)} lost")


def _percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0


def _line(figures: dict[str, Any]) -> str:
    return (
        f"{figures['right']} tasks right in {figures['seconds']:.0f} s, {figures['wrong_count']} wrong, "
        f"{figures['lost_count']} lost, {figures['repeated_steps']} repeated steps in {figures['kills']} kills"
    )


def run(folder: Path, size: Size) -> dict[str, Any]:
    """Start a fleet in an empty folder, run the part, and return the figures."""
    with running(folder, this_checkout()) as site:
        say(f"three replicas serve; {size.tasks} tasks")
        return asyncio.run(measure(site, size))
