"""Memory and CPU time of the processes of a fleet, and the load on its database, sampled once a second."""

from __future__ import annotations

import asyncio  # noqa: TID251  # as the connections of `clients`
import contextlib
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.fleet.site import Replica, Site

SAMPLE_SECONDS = 1.0
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Resident memory of one process of a replica."""

    at: float
    pid: int
    replica: int
    megabytes: float


@dataclass(frozen=True, slots=True)
class DatabaseCounters:
    """Counters of the database since its start, from `pg_stat_database` and the processes of PostgreSQL."""

    transactions: int
    rows_read: int
    rows_written: int
    megabytes_of_wal: float

    def minus(self, earlier: DatabaseCounters) -> DatabaseCounters:
        """Return what was counted since `earlier`."""
        return DatabaseCounters(
            self.transactions - earlier.transactions,
            self.rows_read - earlier.rows_read,
            self.rows_written - earlier.rows_written,
            self.megabytes_of_wal - earlier.megabytes_of_wal,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """All counters at one moment; CPU in seconds."""

    at: float
    gateways: float
    postgres: float
    nginx: float
    driver: float
    upstream: float
    busy: float
    """Busy seconds of all processors of the machine."""
    database: DatabaseCounters


@dataclass
class Meters:
    """Samples the processes of a fleet while a block runs."""

    site: Site
    drivers: list[int | None] = field(default_factory=lambda: list[int | None]([os.getpid()]))
    """The processes of the harness."""
    memory: list[MemorySample] = field(default_factory=list[MemorySample])
    connections: list[int] = field(default_factory=list[int])
    """Connections to the database, sampled."""
    _gateway_cpu: dict[int, float] = field(default_factory=dict[int, float])
    """CPU seconds of each process that ran a replica, also of ended ones."""

    async def sample(self) -> None:
        """Sample memory, CPU and connections until cancelled."""
        with psycopg.connect(self.site.database, autocommit=True) as connection:
            while True:
                for replica in self.site.replicas:
                    self.note(replica)
                self.connections.append(await asyncio.to_thread(_connections, connection))
                await asyncio.sleep(SAMPLE_SECONDS)

    def note(self, replica: Replica) -> None:
        """Sample one replica. Called before its process is killed, too."""
        if replica.pid is None:
            return
        with contextlib.suppress(OSError, IndexError):
            resident = int(Path(f"/proc/{replica.pid}/statm").read_text().split()[1]) * PAGE / 2**20
            cpu = process_cpu(replica.pid)
            if resident:
                self.memory.append(MemorySample(time.time(), replica.pid, replica.number, resident))
                self._gateway_cpu[replica.pid] = cpu

    def read(self) -> Reading:
        """Read all counters now."""
        for replica in self.site.replicas:
            self.note(replica)
        master = self.site.nginx.pid if self.site.nginx is not None else 0
        return Reading(
            at=time.time(),
            gateways=sum(self._gateway_cpu.values()),
            postgres=tree_cpu(self.site.postgres_pid()),
            nginx=tree_cpu(master),
            driver=sum(process_cpu(pid) for pid in self.drivers if pid is not None),
            upstream=process_cpu(self.site.upstream_pid),
            busy=machine_busy(),
            database=self._database(),
        )

    def _database(self) -> DatabaseCounters:
        with psycopg.connect(self.site.database, autocommit=True) as connection:
            counted = (
                "SELECT xact_commit + xact_rollback, tup_returned, tup_inserted + tup_updated + tup_deleted "
                "FROM pg_stat_database WHERE datname = current_database()"
            )
            row = connection.execute(counted).fetchone()
            wal = connection.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None and wal is not None
        return DatabaseCounters(int(row[0]), int(row[1]), int(row[2]), float(wal[0]) / 2**20)

    def growth(self, replica: int, began: float, ended: float) -> float | None:
        """Return the growth of a replica's memory in MiB per minute between two times, for the process that lived longest.

        `None` if there are fewer than eight samples. The growth is that of the medians of the first and the last quarter.
        """
        chosen = [one for one in self.memory if one.replica == replica and began <= one.at <= ended]
        pids = [one.pid for one in chosen]
        samples = [one for one in chosen if one.pid == max(pids, key=pids.count)]
        if len(samples) < 8:
            return None
        quarter = len(samples) // 4
        first, last = samples[:quarter], samples[-quarter:]
        minutes = (statistics.mean(one.at for one in last) - statistics.mean(one.at for one in first)) / 60
        return (statistics.median(one.megabytes for one in last) - statistics.median(one.megabytes for one in first)) / minutes

    def highest(self, began: float = 0.0) -> float:
        """Return the largest memory of a replica in MiB since the time `began`."""
        return max((one.megabytes for one in self.memory if one.at >= began), default=0.0)


def _connections(connection: psycopg.Connection[Any]) -> int:
    """Return the number of other connections to the database."""
    counted = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    row = connection.execute(counted).fetchone()
    assert row is not None
    return int(row[0])


def process_cpu(pid: int) -> float:
    """Return the CPU seconds of a process, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def tree_cpu(pid: int) -> float:
    """Return the CPU seconds of a process and its children, also of children that have ended and were waited for."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            own = (int(fields[11]) + int(fields[12])) / TICKS
            if path.parent.name == str(pid):
                total += own + (int(fields[13]) + int(fields[14])) / TICKS
            elif fields[1] == str(pid):
                total += own
    return total


def machine_busy() -> float:
    """Return the busy seconds of all processors since boot: all but idle time and waits for disks."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


def per_second(before: Reading, after: Reading) -> dict[str, Any]:
    """Return CPU per second of each part, in processors, and the load on the database per second."""
    seconds = after.at - before.at
    database = after.database.minus(before.database)
    return {
        "gateways": (after.gateways - before.gateways) / seconds,
        "PostgreSQL": (after.postgres - before.postgres) / seconds,
        "nginx": (after.nginx - before.nginx) / seconds,
        "harness and server": (after.driver - before.driver + after.upstream - before.upstream) / seconds,
        "machine": (after.busy - before.busy) / seconds,
        "transactions": database.transactions / seconds,
        "rows read": database.rows_read / seconds,
        "rows written": database.rows_written / seconds,
        "MB of write-ahead log": database.megabytes_of_wal / seconds,
    }
