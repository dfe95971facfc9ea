"""`Lease`: the time-limited right of this process to run its tasks; the database stores when it ends.

Used by `task_executor` and `upkeep`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import anyio

from gateway.storage.record_types import TaskRow
from gateway.storage.records import Records

LATE_FACTOR = 3.0
"""Seconds added to the lease for each second that a renewal is late."""

MAX_LATE_SECONDS = 5.0
"""Maximum seconds of lateness that lengthen the lease, also after the machine was suspended."""


class Lease:
    """One lease covers every task of the process. Other processes take the tasks over when it expires."""

    def __init__(self, records: Records, seconds: float) -> None:
        """`seconds` is how long the lease lasts. It is the same in all processes."""
        self.owner = secrets.token_hex(12)
        self.seconds = seconds
        self.tick_seconds = seconds / 5
        """Seconds between two renewals."""
        self._records = records
        self._renewing = anyio.Lock()
        self._renewed_at = float("-inf")
        self._late = 0.0

    async def renew(self, known: Mapping[str, float] | None = None) -> tuple[set[str], list[TaskRow]]:
        """Renew the lease. A process on a busy machine renews late, so it gets a longer lease.

        `known` maps the id of each task that runs here to the time of its last known change. Returns the ids of the tasks that this process
        still owns, and the rows of tasks that changed in the database since.
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
        """Renew the lease if more than half of its time has passed, so that a task which is stored next belongs to a living process."""
        if anyio.current_time() - self._renewed_at > self.seconds / 2:
            await self.renew()
