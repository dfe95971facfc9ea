"""Stores new tasks (calls that run in the background) in the database, and marks queued tasks as started.

Both actions count the tasks of all processes, under one database lock. Only one process holds the lock at a time. A process therefore
stores all its waiting new tasks in one transaction, so that the time to store fifty tasks does not grow with the other work of the process.
`policy.task_scheduling` chooses the tasks to start. Only the package `tasks` uses this module.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import anyio
import sqlalchemy as sa

from gateway.errors import StorageError, StorageUnusable, TaskError
from gateway.json_types import JsonObject
from gateway.storage.engine import Database
from gateway.storage.record_types import Choose, Steps, TaskRow, WaitingTask
from gateway.storage.shared_clock import shared_now
from gateway.storage.tables import locks, of_gateway, task_starts, task_steps, tasks

RATE_SECONDS = 60.0
"""Seconds for which the start of a task counts towards a rate limit."""

MAX_WAITING = 2_000
"""Maximum number of queued tasks that are considered for a start at once; the oldest come first."""

MAX_AT_ONCE = 100
"""Maximum number of new tasks that are stored in one transaction."""

IDLE_MS = 10_000
"""Maximum idle time of a PostgreSQL transaction that holds the lock, in milliseconds. A suspended gateway thus cannot block others."""

JSON_COLUMNS = ("call", "outcome", "asked", "limits")


class NewTask:
    """A new task that waits to be stored, and the result of storing it."""

    def __init__(self, row: TaskRow, steps: Steps, choose: Choose | None, *, max_open: int, max_kept: int) -> None:
        """Encode a task and its finished steps for the database. The arguments are those of `TaskRows.add`.

        Raises `TypeError` or `ValueError` if a part of the task is not JSON.
        """
        self.row = row
        self.choose = choose
        self.max_open = max_open
        self.max_kept = max_kept
        self.values = to_row(row)
        self.steps: list[JsonObject] = [
            {"task": row.id, "key": key, "is_done": int(is_done), "value": json.dumps(value)} for key, (is_done, value) in steps.items()
        ]
        self.is_done = False
        self.existing = ""
        """Id of the task that an earlier call with the same idempotency key created; empty if the new task was stored."""
        self.error: TaskError | StorageError | None = None


class NewTasks:
    """Stores the new tasks of this process in batches, with one transaction per batch."""

    def __init__(self, database: Database, gateway: str) -> None:
        """Store the arguments.

        Limits and idempotency keys apply to the tasks of the gateway `gateway`. An empty id means the tasks of all gateways.
        """
        self._database = database
        self._gateway = gateway
        self._waiting: list[NewTask] = []
        self._turn = anyio.Lock()

    async def add(self, new: NewTask) -> None:
        """Store a new task, and return when it is committed. Raises `TaskError` if the principal has too many tasks.

        Raises `StorageError` if the database reports an error; the task may be stored nevertheless. Cancellation takes effect only after
        the attempt to store the task, so that the caller learns the result.
        """
        self._waiting.append(new)
        with anyio.CancelScope(shield=True):  # each transaction has its own deadline
            async with self._turn:
                while not new.is_done:
                    batch, self._waiting = self._waiting[:MAX_AT_ONCE], self._waiting[MAX_AT_ONCE:]
                    await self._store(batch)
        if new.error is not None:
            raise new.error

    async def _store(self, batch: Sequence[NewTask]) -> None:
        failed: StorageError | None = StorageError("The task could not be stored.")
        try:
            async with self._database.begin() as connection:
                await lock(connection)
                await self._insert(connection, await self._judged(connection, batch))
            failed = None
        except StorageError as error:
            failed = error
            batch, self._waiting = [*batch, *self._waiting], []  # tasks that wait now would fail one after the other for the same reason
        finally:
            for new in batch:
                new.is_done = True
                if failed is not None:
                    new.error = _copy(failed)

    async def _judged(self, connection: Any, batch: Sequence[NewTask]) -> list[NewTask]:
        """Return the tasks of `batch` that may be stored. The idempotency key must be new, and the principal must not have too many tasks.

        A task with a known key receives the id of the earlier task with this key (`existing`). A task beyond the principal's limit receives
        an error. Old finished tasks are deleted to make room.
        """
        batch = await self._unknown(connection, batch)
        callers = sorted({new.row.principal for new in batch})
        is_open = sa.func.count().filter(tasks.c.gone_at == 0)
        mine = tasks.c.principal.in_(callers) & of_gateway(tasks, self._gateway)
        counts = sa.select(tasks.c.principal, sa.func.count(), is_open).where(mine).group_by(tasks.c.principal)
        kept, opened = Counter[str](), Counter[str]()
        for principal, stored, unfinished in await connection.execute(counts):
            kept[principal], opened[principal] = stored - unfinished, unfinished
        taken: list[NewTask] = []
        for new in batch:
            principal = new.row.principal
            if opened[principal] >= new.max_open:
                text = f"You already have {new.max_open} unfinished tasks, running or queued; wait for one to end, or cancel one."
                new.error = TaskError(text)
                continue
            opened[principal] += 1
            taken.append(new)
        for principal in {new.row.principal for new in taken if kept[new.row.principal] >= new.max_kept}:
            most = min(new.max_kept for new in taken if new.row.principal == principal)
            await sweep(connection)
            over = sa.select(tasks.c.id).where((tasks.c.principal == principal) & (tasks.c.gone_at > 0) & of_gateway(tasks, self._gateway))
            over = over.order_by(tasks.c.gone_at.desc()).offset(most - 1)
            await delete(connection, [found for (found,) in await connection.execute(over)])
        return taken

    async def _unknown(self, connection: Any, batch: Sequence[NewTask]) -> list[NewTask]:
        """Return the tasks of `batch` with a new idempotency key. Every other task receives the id of the earlier task with its key."""
        keys = sorted({new.row.request_key for new in batch if new.row.request_key})
        made: dict[tuple[str, str], str] = {}
        if keys:
            is_there = (tasks.c.gone_at == 0) | (tasks.c.gone_at > shared_now())
            there = of_gateway(tasks, self._gateway) & tasks.c.request_key.in_(keys) & is_there
            stored = sa.select(tasks.c.principal, tasks.c.request_key, tasks.c.id).where(there).order_by(tasks.c.created_at.desc())
            made = {(principal, key): id_ for principal, key, id_ in await connection.execute(stored)}
        unknown: list[NewTask] = []
        for new in batch:
            if new.row.request_key:
                first = made.setdefault((new.row.principal, new.row.request_key), new.row.id)
                new.existing = first if first != new.row.id else ""
            if not new.existing:
                unknown.append(new)
        return unknown

    async def _insert(self, connection: Any, batch: Sequence[NewTask]) -> None:
        if not batch:
            return
        now = shared_now()
        asking = [new for new in batch if new.choose is not None]
        chosen: set[str] = set()
        if asking and asking[0].choose is not None:
            begun = [_waiting(new) for new in batch if new.choose is None]
            chosen = set(await admit(connection, asking[0].choose, self._gateway, [_waiting(new) for new in asking], begun))
        for new in batch:
            may_begin = new.choose is None or new.row.id in chosen
            new.row.admitted_at = now if may_begin else 0.0
            new.values |= {"admitted_at": new.row.admitted_at, "message": "" if may_begin else new.row.message}
        await connection.execute(sa.insert(tasks), [new.values for new in batch])
        if steps := [step for new in batch for step in new.steps]:
            await connection.execute(sa.insert(task_steps), steps)


async def lock(connection: Any) -> None:
    """Take the database lock that a transaction must hold to count tasks. The lock is released when the transaction ends."""
    query = sa.select(locks.c.name).where(locks.c.name == "tasks").with_for_update()
    if connection.dialect.name == "postgresql":
        query = query.add_columns(sa.func.set_config("idle_in_transaction_session_timeout", str(IDLE_MS), True))
    await connection.execute(query)


async def admit(
    connection: Any, choose: Choose, gateway: str, new: Sequence[WaitingTask] = (), begun: Sequence[WaitingTask] = ()
) -> list[str]:
    """Let `choose` select queued tasks of the gateway `gateway`, mark them as started in the database, and return their ids.

    An empty `gateway` means the tasks of all gateways. `new` are queued tasks, and `begun` are running tasks, that are not stored yet;
    those of `new` are not marked. The transaction must hold the database lock (see `lock`).
    """
    waiting: list[WaitingTask] = []
    running = list(begun)
    columns = sa.select(tasks.c.id, tasks.c.principal, tasks.c.limits, tasks.c.admitted_at)
    counted = (tasks.c.gone_at == 0) & (tasks.c.status == "working") & ((tasks.c.admitted_at > 0) | (tasks.c.is_cancelled == 0))
    found = await connection.execute(columns.where(counted & of_gateway(tasks, gateway)).order_by(tasks.c.created_at, tasks.c.id))
    for id_, principal, limits, admitted_at in found:
        (running if admitted_at else waiting).append(WaitingTask(id_, principal, json.loads(limits)))
    waiting = [*waiting[:MAX_WAITING], *new]
    if not waiting:
        return []
    own = f"{gateway}/" if gateway else ""
    paced = {str(limit["scope"]) for claim in waiting for limit in claim.limits if limit.get("perMinute") is not None}
    started: dict[str, int] = {}
    now = shared_now()
    if paced:
        # Starts have a time in the future if the clock was set back. Without the second condition they would never expire.
        outside = (task_starts.c.at <= now - RATE_SECONDS) | (task_starts.c.at > now + RATE_SECONDS)
        await connection.execute(sa.delete(task_starts).where(outside))
        counts = sa.select(task_starts.c.scope, sa.func.count()).group_by(task_starts.c.scope)
        counted_starts = await connection.execute(counts)
        started = {scope.removeprefix(own): int(count) for scope, count in counted_starts if scope.startswith(own)}
    chosen = choose(waiting, running, started)
    fresh = {claim.id for claim in new}
    if stored := [id_ for id_ in chosen if id_ not in fresh]:
        # Every transaction locks rows in the same order, so that two transactions cannot deadlock.
        ordered = sa.select(tasks.c.id).where(tasks.c.id.in_(stored)).order_by(tasks.c.id).with_for_update()
        await connection.execute(ordered)
        values: JsonObject = {"admitted_at": now, "message": "", "updated_at": now}
        await connection.execute(sa.update(tasks).where(tasks.c.id.in_(stored)).values(values))
    picked = set(chosen)
    beginnings: list[JsonObject] = [
        {"scope": f"{own}{limit['scope']}", "at": now}
        for claim in waiting
        if claim.id in picked
        for limit in claim.limits
        if limit["scope"] in paced
    ]
    if beginnings:
        await connection.execute(sa.insert(task_starts), beginnings)
    return chosen


async def sweep(connection: Any) -> None:
    """Delete expired tasks and their steps, at most 500, within an open transaction."""
    gone = sa.select(tasks.c.id).where((tasks.c.gone_at > 0) & (tasks.c.gone_at <= shared_now())).limit(500)
    old = [found for (found,) in await connection.execute(gone)]
    if old:
        await delete(connection, old)


async def delete(connection: Any, ids: Sequence[str]) -> None:
    """Delete the tasks with these ids, and their steps, within an open transaction."""
    if ids:
        await connection.execute(sa.delete(task_steps).where(task_steps.c.task.in_(ids)))
        await connection.execute(sa.delete(tasks).where(tasks.c.id.in_(ids)))


def to_row(row: TaskRow) -> JsonObject:
    """Convert a task to the values of the columns of the table `tasks`."""
    values: JsonObject = {name: getattr(row, name) for name in TaskRow.__dataclass_fields__}
    values.update((name, json.dumps(values[name])) for name in JSON_COLUMNS)
    return {**values, "is_cancelled": int(row.is_cancelled)}


def _waiting(new: NewTask) -> WaitingTask:
    return WaitingTask(new.row.id, new.row.principal, new.row.limits)


def _copy(error: StorageError) -> StorageError:
    """Copy an error, because each waiting caller raises it: a shared exception would collect the tracebacks of all callers."""
    return StorageUnusable(str(error), passes=error.passes) if isinstance(error, StorageUnusable) else StorageError(str(error))
