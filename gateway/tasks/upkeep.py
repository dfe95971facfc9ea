"""`Upkeep`: the background loops of a process that runs tasks (tool calls in the background). `TaskRunner` owns the object.

The first loop renews the lease, which is the right of this process to run its tasks, and applies changes that other processes stored. The
second loop starts queued tasks, takes over tasks of dead processes, and deletes expired tasks.
"""

from __future__ import annotations

import logging
import time

import anyio
import anyio.to_thread

from gateway.errors import StorageError
from gateway.policy.task_scheduling import choose_next
from gateway.storage.records import Records
from gateway.tasks.stored_call import error_outcome, from_stored
from gateway.tasks.task import Task
from gateway.tasks.task_executor import TaskExecutor

logger = logging.getLogger(__name__)

TAKE_OVER_AT_ONCE = 16
"""Maximum number of orphaned tasks (whose process stopped or died) that are taken over in one iteration of the loop."""

SWEEP_SECONDS = 60.0
"""Seconds between two deletions of expired tasks."""


class Upkeep:
    """Runs the two background loops of a process with tasks.

    One loop renews the lease; the other starts queued tasks, takes over orphaned tasks, and deletes expired tasks.

    The lease is the right of the process to run its tasks. A task is orphaned if the process that ran it has stopped or died.
    """

    def __init__(self, records: Records, executor: TaskExecutor) -> None:
        self._records = records
        self._executor = executor
        self._lease = executor.lease
        self._takes_over_from = float("-inf")
        """Time by the event loop's clock from which this process may take over tasks of dead processes.

        It is infinite while the database is unavailable. When the database is available again, it is set to one lease duration from then,
        so that living processes first have time to renew their leases (rights to run their tasks).
        """

    async def run(self) -> None:
        """Run both loops until cancelled, then release the tasks of this process, so that other processes take them over."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_lease)  # in a separate asyncio task, so that no other database work delays a renewal
                group.start_soon(self._note_stop)
                await self._maintain()
        finally:
            await self._release()

    async def _note_stop(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self._executor.is_stopping = True

    async def _keep_lease(self) -> None:
        while True:
            try:
                await self._tick()
            except StorageError as error:
                self._note_outage(error)
            await anyio.sleep(self._lease.tick_seconds)

    async def _tick(self) -> None:
        running = self._executor.running
        known = {name: task.row.updated_at for name, task in running.items()}
        if not known:
            return
        held, changed = await self._lease.renew(known)
        for row in changed:
            if row.id in running:
                self._executor.apply(running[row.id], row)
        for task in [task for name, task in running.items() if name in known and name not in held]:
            self._executor.lose(task)

    async def _maintain(self) -> None:
        checked_at, swept_at = float("-inf"), anyio.current_time()
        while True:
            try:
                self._executor.work = anyio.Event()
                if self._executor.is_draining:
                    await anyio.sleep_forever()
                await self._admit()
                if anyio.current_time() - checked_at >= 2 * self._lease.tick_seconds:
                    checked_at = anyio.current_time()
                    await self._discard()
                    await self._take_over()
                if self._records.is_open and anyio.current_time() - swept_at >= SWEEP_SECONDS:
                    swept_at = anyio.current_time()
                    await (await self._records.tasks()).sweep()
            except StorageError as error:
                self._note_outage(error)
                await anyio.sleep(self._lease.tick_seconds)
            with anyio.move_on_after(self._lease.tick_seconds):
                await self._executor.work.wait()

    def _note_outage(self, error: StorageError) -> None:
        self._takes_over_from = float("inf")
        logger.warning("task database did not answer error=%s", error)

    async def _admit(self) -> None:
        """Allow queued tasks of all processes to start, as far as the limits permit, and start the allowed tasks of this process.

        Another process notices which of its tasks may start when it next renews its right to run tasks (its lease).
        """
        running = self._executor.running
        if not any(not task.row.admitted_at for task in running.values()):
            return
        for task_id in await (await self._records.tasks()).admit(choose_next):
            if (task := running.get(task_id)) is not None:
                task.row.admitted_at, task.row.message = time.time(), ""
                task.notify()

    async def _discard(self) -> None:
        """Delete the tasks in `TaskExecutor.doubtful`, whose clients received an error although the database may have stored the task."""
        if doubtful := list(self._executor.doubtful):
            await (await self._records.tasks()).discard(doubtful, owner=self._lease.owner)
            self._executor.doubtful.difference_update(doubtful)

    async def _take_over(self) -> None:
        if not await anyio.to_thread.run_sync(self._records.has_orphans, time.time()):
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
            if row.is_cancelled:
                await self._executor.end(Task(row), {}, "cancelled")
                continue
            if row.admitted_at and row.call.get("resumes") is False:
                text = "The gateway stopped while this ran, and its tasks are not resumed (`tasks.resume` of its source)."
                await self._executor.end(Task(row), error_outcome(text), "failed")
                continue
            logger.info("task taken over task=%s tool=%s attempt=%s", row.id[:6], row.tool, row.attempts)
            self._executor.launch(row, from_stored(row))

    async def _release(self) -> None:
        """Delete this process's lease (its right to run tasks) from the database, so that other processes take its tasks over at once."""
        if not self._records.is_open:
            return
        with anyio.move_on_after(2, shield=True):
            while self._executor.running:  # noqa: ASYNC110  # cancelled tasks still record their finished steps
                await anyio.sleep(0.01)
        with anyio.move_on_after(2, shield=True):
            try:
                await (await self._records.tasks()).release(owner=self._lease.owner)
            except StorageError as error:
                logger.warning("task lease could not be released error=%s", error)
