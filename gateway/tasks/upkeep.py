"""`Upkeep`: the background loops of a process that runs tasks (tool calls in the background). `TaskRunner` owns the object.

The first loop renews the lease, which is the right of this process to run its tasks, and applies changes that other processes stored. The
second loop starts queued tasks, lets the engine continue tasks of dead processes, and deletes expired tasks.
"""

from __future__ import annotations

import logging

import anyio

from gateway.errors import StorageError
from gateway.policy.task_scheduling import choose_next
from gateway.storage.records import Records
from gateway.tasks.task_engine import TaskEngine
from gateway.tasks.task_executor import TaskExecutor

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0
"""Seconds between two deletions of expired tasks."""


class Upkeep:
    """Runs the two background loops of a process with tasks.

    One loop renews the lease; the other starts queued tasks, lets the engine continue orphaned tasks, and deletes expired tasks.

    The lease is the right of the process to run its tasks. A task is orphaned if the process that ran it has stopped or died.
    """

    def __init__(self, records: Records, executor: TaskExecutor, engine: TaskEngine) -> None:
        self._records = records
        self._executor = executor
        self._engine = engine
        self._lease = executor.lease

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
                    await self._engine.recover()
                if self._records.is_open and anyio.current_time() - swept_at >= SWEEP_SECONDS:
                    swept_at = anyio.current_time()
                    await (await self._records.tasks()).sweep()
            except StorageError as error:
                self._note_outage(error)
                await anyio.sleep(self._lease.tick_seconds)
            with anyio.move_on_after(self._lease.tick_seconds):
                await self._executor.work.wait()

    def _note_outage(self, error: StorageError) -> None:
        self._engine.note_outage()
        logger.warning("task database did not answer error=%s", error)

    async def _admit(self) -> None:
        """Allow queued tasks of all processes to start, as far as the limits permit, and pass their ids to the engine."""
        if self._engine.has_queued():
            self._engine.admit(await (await self._records.tasks()).admit(choose_next))

    async def _discard(self) -> None:
        """Delete the tasks in `TaskExecutor.doubtful`, whose clients received an error although the database may have stored the task."""
        if doubtful := list(self._executor.doubtful):
            for owner in {self._engine.new_owner, self._lease.owner}:  # calls that became tasks belong to this process at once
                await (await self._records.tasks()).discard(doubtful, owner=owner)
            self._executor.doubtful.difference_update(doubtful)

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
