"""`LocalEngine`: the default task engine. A task runs in the process that received its call; after a crash, another process takes it over.

The engine needs only the gateway's database: a process holds a lease there (`Lease`), and its tasks are free when the lease has expired.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.to_thread

from gateway.storage.record_types import TaskRow
from gateway.storage.records import Records
from gateway.storage.shared_clock import shared_now
from gateway.tasks.task import Task
from gateway.tasks.task_executor import TaskExecutor
from gateway.tools.context import CallContext

TAKE_OVER_AT_ONCE = 16
"""Maximum number of orphaned tasks (whose process stopped or died) that are taken over in one call of `recover`."""


class LocalEngine:
    """Implements `TaskEngine` without a server: runs new tasks in this process, and takes over the tasks of dead processes."""

    def __init__(self, executor: TaskExecutor, records: Records, *, takes_over: bool = True) -> None:
        """Store the arguments. `executor` runs tasks in this process, and `records` is the database that the processes share.

        If `takes_over` is false, the engine leaves tasks of other processes to them.
        """
        self._is_alone = not takes_over
        self._executor = executor
        self._records = records
        self._lease = executor.lease
        self._takes_over_from = float("-inf")
        """Time by the event loop's clock from which this process may take over tasks of dead processes.

        It is infinite while the database is unavailable. When the database is available again, it is set to one lease duration from then,
        so that living processes first have time to renew their leases (rights to run their tasks).
        """

    @property
    def new_owner(self) -> str:
        """This process, because it runs the tasks whose calls it receives."""
        return self._lease.owner

    async def run(self) -> None:
        """Return at once, because this engine has no background work: `Upkeep` renews the lease and calls `recover`."""

    def dispatch(self, row: TaskRow, ctx: CallContext) -> Task:
        """Start a stored task in this process, and return its state. A queued task waits in memory until it may start."""
        return self._executor.launch(row, ctx)

    def has_queued(self) -> bool:
        """Return whether tasks wait in this process until they may start."""
        return any(not task.row.admitted_at for task in self._executor.running.values())

    def admit(self, ids: Sequence[str]) -> None:
        """Start the tasks of this process that were just allowed to start.

        Another process notices which of its tasks may start when it next renews its right to run tasks (its lease).
        """
        for task_id in ids:
            if (task := self._executor.running.get(task_id)) is not None:
                task.row.admitted_at, task.row.message = shared_now(), ""
                task.notify()

    async def recover(self) -> None:
        """Take over tasks of processes that stopped or died, at most `TAKE_OVER_AT_ONCE`. Raises `StorageError`."""
        if self._is_alone or not await anyio.to_thread.run_sync(self._records.has_orphans, shared_now()):
            return
        rows = await self._records.tasks()
        are_there = await rows.any_orphans(owner=self._lease.owner)
        if self._takes_over_from == float("inf"):
            # After an outage of the database, all leases may have expired, so the other processes first get time to renew their leases.
            self._takes_over_from = anyio.current_time() + self._lease.seconds
        if not are_there or anyio.current_time() < self._takes_over_from:
            return
        await self._lease.renew()
        for row in await rows.take_over(owner=self._lease.owner, limit=TAKE_OVER_AT_ONCE):
            await self._executor.resume(row)

    def note_outage(self) -> None:
        """Take no tasks over until the database is available again and living processes had time to renew their leases."""
        self._takes_over_from = float("inf")

    async def wake(self, task_id: str) -> None:
        """Do nothing: a task that waits for a person stays in its process, which reads the answer when it next renews its lease."""
