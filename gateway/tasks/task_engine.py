"""`TaskEngine`: the interface of the two task engines. An engine decides which process runs a task. `TaskRunner` and `Upkeep` use it.

Decided: an engine dispatches tasks, notices dead processes, and passes on answers and cancellations; it does not know the steps of a task.
`StepLog` records the steps in the gateway's database, and the task's owner there (`TaskRow.owner`) is the fence: a process that lost a task
cannot write to it. Because: agents and workflows run steps concurrently and in any order, and engines that journal steps themselves need a
fixed order. Instead of: one activity of the engine per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.storage.record_types import TaskRow
from gateway.storage.records import Records
from gateway.tasks.task import Task
from gateway.tasks.task_executor import TaskExecutor
from gateway.tools.context import CallContext


class TaskEngine(Protocol):
    """Protocol of an engine, which decides which process runs a task."""

    @property
    def new_owner(self) -> str:
        """Owner with which this process stores a new task that `dispatch` will start; empty if no process owns the task at first."""
        ...

    async def run(self) -> None:
        """Do the background work of the engine until cancelled."""
        ...

    def dispatch(self, row: TaskRow, ctx: CallContext) -> Task:
        """Have a stored task run, once it may start (`TaskRow.admitted_at`), and return its state."""
        ...

    def has_queued(self) -> bool:
        """Return whether queued tasks may exist that this process should allow to start."""
        ...

    def admit(self, ids: Sequence[str]) -> None:
        """Have tasks run that were queued and were just allowed to start. They may be tasks of other processes."""
        ...

    async def recover(self) -> None:
        """Have orphaned tasks continue, whose process stopped or died. Called about once a second.

        Raises:
            StorageError: The tasks cannot be read.
        """
        ...

    def note_outage(self) -> None:
        """Record that the database is unavailable, so that processes may be alive although their leases have expired."""
        ...

    async def wake(self, task_id: str) -> None:
        """Have a task continue that waits for a person, because an answer or a cancellation was stored."""
        ...


MakeEngine = Callable[[TaskExecutor, Records], TaskEngine]
"""Function that creates the engine of a process from the object that runs tasks and the database that stores them."""
