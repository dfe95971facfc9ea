"""Long-running work where a restart and other processes find it.

A task belongs to the process that runs it, by a lease that it renews; whoever finds a lease run out takes the task over. All
decisions are made in the database, so that of two processes one wins; leases count in the database server's time where there is
one, because the clocks of machines differ. What a task is and how it runs is `tasks`' business.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa

from gateway.errors import TaskError
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.engine import Database
from gateway.storage.entries import Choose, Steps, TaskRow, WaitingTask
from gateway.storage.tables import locks, task_starts, task_steps, tasks

RATE_SECONDS = 60.0
"""How long a beginning counts."""

MAX_WAITING = 2_000
"""Waiting tasks looked at together, the oldest first."""

# One statement for both dialects: the first of a step, its result, and whether the task is still this process's.
_PUT_STEP = sa.text(
    "INSERT INTO task_steps (task, key, is_done, value) "
    "SELECT CAST(:task AS TEXT), CAST(:key AS TEXT), CAST(:is_done AS INTEGER), CAST(:value AS TEXT) "
    "WHERE EXISTS (SELECT 1 FROM tasks WHERE id = :task AND owner = :owner AND gone_at = 0) "
    "ON CONFLICT (task, key) DO UPDATE SET is_done = excluded.is_done, value = excluded.value"
)


class TaskRows:
    """The repository. Every method raises `StorageError` as `Database.begin` does."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self, row: TaskRow, *, lease_seconds: float, max_open: int, max_kept: int, choose: Choose | None, steps: Steps | None = None
    ) -> None:
        """Store a new task, with what it did already; committed when this returns, and `row` says whether it may begin.

        With `choose` it waits for its turn; without, it has begun. The oldest finished ones of the principal over `max_kept` give way.

        Raises:
            TaskError: The principal has `max_open` unfinished ones.
        """
        mine = tasks.c.principal == row.principal
        async with self._database.begin() as connection:
            await _lock(connection)  # held by one process at a time: as few statements as can be
            counts = sa.select(sa.func.count(), sa.func.count().filter(tasks.c.gone_at == 0)).select_from(tasks).where(mine)
            kept, opened = (await connection.execute(counts)).one()
            if opened >= max_open:
                text = "There are already {} unfinished tasks of yours, running or waiting; wait for one to end, or cancel one."
                raise TaskError(text.format(max_open))
            if kept - opened >= max_kept:
                await _sweep(connection)
                over = sa.select(tasks.c.id).where(mine & (tasks.c.gone_at > 0)).order_by(tasks.c.gone_at.desc()).offset(max_kept - 1)
                await _delete(connection, [found for (found,) in await connection.execute(over)])
            row.admitted_at = time.time()
            if choose is not None and row.id not in await _admit(connection, choose, WaitingTask(row.id, row.principal, row.limits)):
                row.admitted_at = 0.0
            stored = {**_to_row(row), "message": "" if row.admitted_at else row.message}
            await connection.execute(sa.insert(tasks).values({**stored, "lease_until": _now(connection) + lease_seconds}))
            for key, (is_done, value) in (steps or {}).items():
                step: JsonObject = {"task": row.id, "key": key, "is_done": int(is_done), "value": json.dumps(value)}
                await connection.execute(sa.insert(task_steps), step)

    async def admit(self, choose: Choose) -> list[str]:
        """Let those begin whose turn it is, whichever process has them; their ids."""
        async with self._database.begin() as connection:
            await _lock(connection)
            return await _admit(connection, choose)

    async def sweep(self) -> None:
        """Forget what is past its time."""
        async with self._database.begin() as connection:
            await _sweep(connection)

    async def retry(self, task_id: str, *, from_start: bool) -> bool:
        """Have a finished task run again, by whichever process looks first; False where it is not over, or gone.

        It goes on after the steps that worked, or `from_start`.
        """
        async with self._database.begin() as connection:
            found = await _locked(connection, task_id)
            if found is None or not found.gone_at:
                return False
            kept = {} if from_start else await _steps(connection, task_id)
            worked = {key: step for key, step in kept.items() if step[0] and not _is_failure(step[1])}
            for key in [key for key in worked if key.startswith("kept:") and key.endswith("/task")]:
                if key.removeprefix("kept:").removesuffix("/task") not in worked:
                    del worked[key]  # a server's own task that did not work is not followed again
            for key in [key for key in await _steps(connection, task_id) if key not in worked]:
                await connection.execute(sa.delete(task_steps).where((task_steps.c.task == task_id) & (task_steps.c.key == key)))
            # An answer that nobody gave was put there when it ended.
            asked = {} if from_start else {key: item for key, item in found.asked.items() if item.get("answer")}
            values: JsonObject = {
                "status": "working", "message": "", "outcome": "{}", "asked": json.dumps(asked), "updated_at": time.time(),
                "gone_at": 0.0, "is_cancelled": 0, "attempts": 2, "owner": "", "lease_until": 0.0, "admitted_at": 0.0,
            }  # fmt: skip
            await connection.execute(sa.update(tasks).where(tasks.c.id == task_id).values(values))
            return True

    async def get(self, task_id: str) -> TaskRow | None:
        """One task; expired ones are gone."""
        async with self._database.begin() as connection:
            found = (await connection.execute(sa.select(tasks).where(tasks.c.id == task_id))).mappings().first()
        row = _from_row(found) if found is not None else None
        return None if row is not None and 0 < row.gone_at <= time.time() else row

    async def all_of(self, principal: str | None = None) -> list[TaskRow]:
        """Tasks of a principal, or all, oldest first."""
        query = sa.select(tasks).order_by(tasks.c.created_at, tasks.c.id)
        query = query if principal is None else query.where(tasks.c.principal == principal)
        async with self._database.begin() as connection:
            await _sweep(connection)
            return [_from_row(found) for found in (await connection.execute(query)).mappings()]

    async def save(self, row: TaskRow, *, owner: str, drop_steps: bool = False) -> bool:
        """Write what the owner knows: status, message, outcome, questions. False when another process took the task over.

        Answers that came through another process are kept and put into `row`. What is over stays as it is. With `drop_steps` what
        the task did is forgotten; else it is kept as long as the task, for another try.
        """
        async with self._database.begin() as connection:
            found = await _locked(connection, row.id)
            if found is None or found.owner != owner or found.gone_at:
                return False
            for key, stored in found.asked.items():
                if "answer" in stored and key in row.asked:
                    row.asked[key].setdefault("answer", stored["answer"])
            row.is_cancelled = found.is_cancelled or row.is_cancelled
            row.lease_until, row.admitted_at = found.lease_until, max(found.admitted_at, row.admitted_at)
            await connection.execute(sa.update(tasks).where(tasks.c.id == row.id), _to_row(row))
            if drop_steps:
                await connection.execute(sa.delete(task_steps).where(task_steps.c.task == row.id))
            return True

    async def answer(self, task_id: str, answers: Mapping[str, JsonValue]) -> None:
        """Put down answers to open questions; others are ignored."""
        async with self._database.begin() as connection:
            found = await _locked(connection, task_id)
            if found is None or found.gone_at:
                return
            for key, value in answers.items():
                if key in found.asked and "answer" not in found.asked[key] and isinstance(value, dict):
                    found.asked[key]["answer"] = value
            is_open = any("answer" not in item for item in found.asked.values())
            status = "working" if found.status == "input_required" and not is_open else found.status
            values: JsonObject = {"asked": json.dumps(found.asked), "status": status, "updated_at": time.time()}
            await connection.execute(sa.update(tasks).where(tasks.c.id == task_id).values(values))

    async def cancel(self, task_id: str) -> None:
        """Ask for it to be stopped; one that nobody runs is over at once."""
        now = time.time()
        async with self._database.begin() as connection:
            found = await _locked(connection, task_id)
            if found is None or found.gone_at:
                return
            values: JsonObject = {"is_cancelled": 1, "updated_at": now}
            await connection.execute(sa.update(tasks).where(tasks.c.id == task_id).values(values))
            left = (tasks.c.id == task_id) & (tasks.c.lease_until < _now(connection))
            values = {"status": "cancelled", "gone_at": now + found.ttl_seconds}
            await connection.execute(sa.update(tasks).where(left).values(values))

    async def renew(self, ids: Sequence[str], *, owner: str, lease_seconds: float) -> list[TaskRow]:
        """Renew the owner's leases; the tasks as they are stored, without those that it lost."""
        mine = tasks.c.id.in_(list(ids)) & (tasks.c.owner == owner)
        async with self._database.begin(urgent=True) as connection:
            until = _now(connection) + lease_seconds
            await connection.execute(sa.update(tasks).where(mine & (tasks.c.gone_at == 0)).values(lease_until=until))
            return [_from_row(found) for found in (await connection.execute(sa.select(tasks).where(mine))).mappings()]

    async def take_over(self, *, owner: str, lease_seconds: float, limit: int) -> list[TaskRow]:
        """Make tasks whose owner died one's own. One that still waited for its turn was never begun.

        Whoever asks lives, so what it owns is not orphaned, however late it renews.
        """
        async with self._database.begin() as connection:
            now = _now(connection)
            orphaned = (tasks.c.gone_at == 0) & (tasks.c.lease_until < now) & (tasks.c.owner != owner)
            query = sa.select(tasks).where(orphaned).order_by(tasks.c.created_at).limit(limit).with_for_update(skip_locked=True)
            found = [_from_row(item) for item in (await connection.execute(query)).mappings()]
            for row in found:
                row.owner = owner
                row.attempts += 1 if row.admitted_at else 0
                values: JsonObject = {"owner": owner, "lease_until": now + lease_seconds, "attempts": row.attempts}
                await connection.execute(sa.update(tasks).where(tasks.c.id == row.id).values(values))
            return found

    async def release(self, *, owner: str) -> None:
        """Let go of everything: the process ends, and others may take over at once."""
        async with self._database.begin() as connection:
            mine = (tasks.c.owner == owner) & (tasks.c.gone_at == 0)
            await connection.execute(sa.update(tasks).where(mine).values(lease_until=0.0))

    # -- steps -------------------------------------------------------------------------------------------------

    async def steps(self, task_id: str) -> Steps:
        """What the task did."""
        async with self._database.begin() as connection:
            return await _steps(connection, task_id)

    async def put_step(self, task_id: str, key: str, *, is_done: bool, value: JsonValue, owner: str) -> bool:
        """Begin a step, or record its result. False when another process took the task over."""
        row: JsonObject = {"task": task_id, "key": key, "is_done": int(is_done), "value": json.dumps(value), "owner": owner}
        async with self._database.begin() as connection:
            return bool((await connection.execute(_PUT_STEP, row)).rowcount)

    async def drop_step(self, task_id: str, key: str) -> None:
        """Forget a step that failed before anything was recorded."""
        async with self._database.begin() as connection:
            await connection.execute(sa.delete(task_steps).where((task_steps.c.task == task_id) & (task_steps.c.key == key)))


def _now(connection: Any) -> sa.ColumnElement[float]:
    """The time by which leases are judged: the server's own, where there is one."""
    if connection.dialect.name == "postgresql":
        return sa.cast(sa.func.date_part("epoch", sa.func.clock_timestamp()), sa.Float)
    return sa.literal(time.time(), sa.Float)


async def _lock(connection: Any) -> None:
    await connection.execute(sa.select(locks).where(locks.c.name == "tasks").with_for_update())


async def _admit(connection: Any, choose: Choose, new: WaitingTask | None = None) -> list[str]:
    """Give turns, also to one that is not stored yet."""
    waiting: list[WaitingTask] = []
    running: list[WaitingTask] = []
    columns = sa.select(tasks.c.id, tasks.c.principal, tasks.c.limits, tasks.c.admitted_at)
    counted = (tasks.c.gone_at == 0) & (tasks.c.status == "working") & ((tasks.c.admitted_at > 0) | (tasks.c.is_cancelled == 0))
    found = await connection.execute(columns.where(counted).order_by(tasks.c.created_at, tasks.c.id))
    for id_, principal, limits, admitted_at in found:
        (running if admitted_at else waiting).append(WaitingTask(id_, principal, json.loads(limits)))
    waiting = [*waiting[:MAX_WAITING], *([new] if new is not None else [])]
    if not waiting:
        return []
    paced = {str(limit["scope"]) for claim in waiting for limit in claim.limits if limit.get("perMinute") is not None}
    started: dict[str, int] = {}
    now = time.time()
    if paced:
        # A clock that was set back would otherwise keep what lies in the future for ever.
        outside = (task_starts.c.at <= now - RATE_SECONDS) | (task_starts.c.at > now + RATE_SECONDS)
        await connection.execute(sa.delete(task_starts).where(outside))
        counts = sa.select(task_starts.c.scope, sa.func.count()).group_by(task_starts.c.scope)
        started = {str(scope): int(count) for scope, count in await connection.execute(counts)}
    chosen = choose(waiting, running, started)
    stored = [id_ for id_ in chosen if new is None or id_ != new.id]
    if stored:
        await connection.execute(sa.update(tasks).where(tasks.c.id.in_(stored)).values(admitted_at=now, message=""))
    begun: list[JsonObject] = [
        {"scope": limit["scope"], "at": now} for claim in waiting if claim.id in chosen for limit in claim.limits if limit["scope"] in paced
    ]
    if begun:
        await connection.execute(sa.insert(task_starts), begun)
    return chosen


async def _steps(connection: Any, task_id: str) -> Steps:
    query = sa.select(task_steps.c.key, task_steps.c.is_done, task_steps.c.value).where(task_steps.c.task == task_id)
    return {key: (bool(done), json.loads(value)) for key, done, value in await connection.execute(query)}


def _is_failure(value: JsonValue) -> bool:
    """Whether a step's recorded result is a call's that says that it failed."""
    result = cast("JsonObject", value).get("result") if isinstance(value, dict) else None
    return isinstance(result, dict) and bool(cast("JsonObject", result).get("isError"))


async def _sweep(connection: Any) -> None:
    gone = sa.select(tasks.c.id).where((tasks.c.gone_at > 0) & (tasks.c.gone_at <= time.time())).limit(500)
    old = [found for (found,) in await connection.execute(gone)]
    if old:
        await _delete(connection, old)


async def _delete(connection: Any, ids: list[str]) -> None:
    await connection.execute(sa.delete(task_steps).where(task_steps.c.task.in_(ids)))
    await connection.execute(sa.delete(tasks).where(tasks.c.id.in_(ids)))


async def _locked(connection: Any, task_id: str) -> TaskRow | None:
    found = (await connection.execute(sa.select(tasks).where(tasks.c.id == task_id).with_for_update())).mappings().first()
    return _from_row(found) if found is not None else None


_JSON = ("call", "outcome", "asked", "limits")


def _to_row(row: TaskRow) -> JsonObject:
    values: JsonObject = {name: getattr(row, name) for name in TaskRow.__dataclass_fields__}
    values.update((name, json.dumps(values[name])) for name in _JSON)
    return {**values, "is_cancelled": int(row.is_cancelled)}


def _from_row(found: Mapping[Any, Any]) -> TaskRow:
    values: dict[str, Any] = {name: found[name] for name in TaskRow.__dataclass_fields__}
    values.update((name, json.loads(values[name])) for name in _JSON)
    values["is_cancelled"] = bool(values["is_cancelled"])
    return TaskRow(**values)
