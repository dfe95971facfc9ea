"""Kills replicas at an interval, and upgrades the fleet once while it serves: expand, replace all, contract, replace all."""

from __future__ import annotations

import asyncio  # noqa: TID251  # as the connections of `clients`
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.fleet.judge import Kill
from benchmarks.fleet.site import SHUN_SECONDS, START_SECONDS, Replica, Site
from benchmarks.fleet.versions import Upgrade, Version
from benchmarks.machine import has_ended

DOWN_SECONDS = 6.0
"""Seconds that a killed replica stays away before it is started again.

Clients have opened their streams at the other replicas by then, and a supervisor would need some seconds, too.
"""

SETTLE_SECONDS = 2 * SHUN_SECONDS + 0.5
"""Seconds from the readiness of a replica until nginx sends requests to it again.

nginx counts whole seconds, so it shuns a replica for up to twice `fail_timeout`.
"""

REPLACE_SECONDS = 8.0
"""A replica is replaced only if the next kill is due later than this, so that at most one replica is away."""

STOP_SECONDS = 30.0
"""Seconds within which a replica must end after SIGTERM."""


@dataclass
class Disturbances:
    """What was done to the fleet, and when."""

    site: Site
    before_kill: Callable[[Replica], None] = lambda replica: None
    """Called before a process is ended, to read its counters for the last time."""
    kills: list[Kill] = field(default_factory=list[Kill])
    notes: list[str] = field(default_factory=list[str])
    """One line per event."""
    stop_seconds: list[float] = field(default_factory=list[float])
    """Seconds from SIGTERM to the end of each replica that was replaced."""
    ready_seconds: list[float] = field(default_factory=list[float])
    """Seconds from the start of each replica to its readiness."""
    _next_kill: float = math.inf
    """Time of the next kill, on the clock `time.monotonic`."""
    _busy: set[int] = field(default_factory=set[int])
    """Numbers of the replicas that are away."""

    async def kill_every(self, seconds: float, numbers: tuple[int, ...], kills: int) -> None:
        """Kill one of the replicas `numbers` in turn, `seconds` after the last kill, and start it again, until `kills` are done."""
        due = time.monotonic()
        for turn in range(kills):
            due = self._next_kill = due + seconds
            await asyncio.sleep(max(due - time.monotonic(), 0))
            replica = self._next(numbers, turn)
            if replica is None:
                self.note("no replica may be killed now: one is being replaced, and another must serve")
                continue
            self._busy.add(replica.number)
            assert replica.process is not None
            self.before_kill(replica)
            os.kill(replica.process.pid, signal.SIGKILL)
            self.kills.append(Kill(replica.address, time.time()))
            self.note(f"killed replica {replica.number}")
            await asyncio.to_thread(replica.process.wait)
            await asyncio.sleep(DOWN_SECONDS)
            await self._start(replica, self.site.version)
            self._busy.discard(replica.number)
        self._next_kill = math.inf

    def _next(self, numbers: tuple[int, ...], turn: int) -> Replica | None:
        """Return a replica that may be killed: it is not being replaced."""
        order = [numbers[(turn + shift) % len(numbers)] for shift in range(len(numbers))]
        return next((self.site.replicas[number] for number in order if number not in self._busy), None)

    async def upgrade(self, versions: Upgrade) -> None:
        """Migrate the database by `moongate db migrate` to the expanded schema, replace all replicas, and do the same to contract it."""
        for version in (versions.expanded, versions.contracted):
            done = await asyncio.to_thread(self.site.moongate, version, "db", "migrate")
            self.note(f"migrated the database to schema {done['schema']}")
            self.site.version = version
            for replica in self.site.replicas:
                await self._replace(replica, version)

    async def _replace(self, replica: Replica, version: Version) -> None:
        while self._busy or self._next_kill - time.monotonic() < REPLACE_SECONDS:  # noqa: ASYNC110  # one replica at a time
            await asyncio.sleep(0.05)
        self._busy.add(replica.number)
        assert replica.process is not None
        self.before_kill(replica)
        began = time.monotonic()
        os.kill(replica.process.pid, signal.SIGTERM)
        while not has_ended(replica.process):
            if time.monotonic() - began > STOP_SECONDS:
                raise RuntimeError(f"replica {replica.number} did not stop within {STOP_SECONDS:g} s: {self.site.log_of(replica)[-1000:]}")
            await asyncio.sleep(0.02)
        replica.process.wait()
        self.stop_seconds.append(time.monotonic() - began)
        await self._start(replica, version)
        self._busy.discard(replica.number)
        self.note(f"replaced replica {replica.number} by {version.name}")

    async def _start(self, replica: Replica, version: Version) -> None:
        began = time.monotonic()
        self.site.launch(replica, version)
        while not await asyncio.to_thread(self.site.is_ready, replica):
            if time.monotonic() - began > START_SECONDS:
                raise RuntimeError(f"replica {replica.number} is not ready: {self.site.log_of(replica)[-1000:]}")
            await asyncio.sleep(0.05)
        self.ready_seconds.append(time.monotonic() - began)
        await asyncio.sleep(SETTLE_SECONDS)

    def note(self, text: str) -> None:
        """Add a line to `notes` with the time of day."""
        self.notes.append(f"{time.strftime('%H:%M:%S')} {text}")
