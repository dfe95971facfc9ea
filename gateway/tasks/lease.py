"""`Lease`: the time-limited right of a process to run its tasks. When the lease expires, other processes take the tasks over.

`TaskRunner` creates the lease; `task_executor` and `upkeep` use it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import anyio

from gateway.storage.record_types import PROCESS_CHARS, TaskRow
from gateway.storage.records import Records

LATE_FACTOR = 3.0
"""Seconds by which the lease (the right of a process to run its tasks) is extended for each second that a renewal is late."""

MAX_LATE_SECONDS = 5.0
"""Maximum lateness of a renewal, in seconds, for which the lease (the right of a process to run its tasks) is extended.

A greater lateness counts as this value, because the machine was probably suspended rather than busy."""


class Lease:
    """Time-limited right of this process to run its tasks, renewed regularly. One lease covers all tasks of the process.

    When the lease expires, other processes take the tasks over.
    """

    def __init__(self, records: Records, seconds: float) -> None:
        """Create a lease that lasts `seconds` after each renewal.

        `seconds` must be the same in all processes that share the database. A random id (`owner`) identifies this process in the database.
        """
        self.owner = secrets.token_hex(PROCESS_CHARS // 2)
        self.seconds = seconds
        self.tick_seconds = seconds / 5
        """Seconds between two renewals of the lease."""
        self._records = records
        self._renewing = anyio.Lock()
        self._renewed_at = float("-inf")
        self._late = 0.0

    async def renew(self, known: Mapping[str, float] | None = None) -> tuple[set[str], list[TaskRow]]:
        """Renew the lease in the database. The lease is longer if renewals are late, because the machine is then busy.

        `known` maps the id of each task that runs in this process to the time of its last known change. Returns the ids of the tasks that
        this process still owns, and the rows of the tasks that have changed in the database since then.
        """
        async with self._renewing:
            began = anyio.current_time()
            late = began - self._renewed_at - self.tick_seconds if known else 0.0
            self._late = min(max(late, self._late * 0.9), MAX_LATE_SECONDS)
            seconds = self.seconds + LATE_FACTOR * self._late
            found = await (await self._records.tasks()).renew(known or {}, owner=self.owner, lease_seconds=seconds)
            self._renewed_at = began
            return found

    async def refresh(self) -> None:
        """Renew the lease if more than half of its time has passed. Called before a new task is stored, so that its lease is valid."""
        if anyio.current_time() - self._renewed_at > self.seconds / 2:
            await self.renew()
