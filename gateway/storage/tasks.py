"""Long-running work where a restart and other processes find it.

A task belongs to the process that runs it, by a lease that it renews; whoever finds a lease run out takes the task over. All
decisions are made in the database, so that of two processes one wins. What a task is and how it runs is `tasks`' business.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gateway.errors import TaskError
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.engine import Database
from gateway.storage.entries import TaskRow
from gateway.storage.tables import locks, task_steps, tasks


class TaskRows:
    """The repository. Every method raises `StorageError` as `Database.begin` does."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, row: TaskRow, *, max_open: int, max_kept: int) -> None:
        """Store a new task; committed when this returns. The oldest finished ones of the principal over `max_kept` give way.

        Raises:
            TaskError: The principal has `max_open` unfinished ones.
        """
        mine = tasks.c.principal == row.principal
        async with self._database.begin() as connection:
            await connection.execute(sa.select(locks).where(locks.c.name == "tasks").with_for_update())
            await _sweep(connection)
            open_count = sa.select(sa.func.count()).select_from(tasks).where(mine & (tasks.c.gone_at == 0))
            if (await connection.execute(open_count)).scalar_one() >= max_open:
                raise TaskError(f"There are already {max_open} unfinished tasks; wait for one to end, or cancel one.")
            finished = sa.select(tasks.c.id).where(mine & (tasks.c.gone_at > 0)).order_by(tasks.c.gone_at.desc()).offset(max_kept - 1)
            old = [found for (found,) in await connection.execute(finished)]
            if old:
                await _delete(connection, old)
            await connection.execute(sa.insert(tasks), _to_row(row))

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

    async def save(self, row: TaskRow, *, owner: str) -> bool:
        """Write what the owner knows: status, message, outcome, questions. False when another process took the task over.

        Answers that came through another process are kept and put into `row`. What is over stays as it is.
        """
        async with self._database.begin() as connection:
            found = await _locked(connection, row.id)
            if found is None or found.owner != owner or found.gone_at:
                return False
            for key, stored in found.asked.items():
                if "answer" in stored and key in row.asked:
                    row.asked[key].setdefault("answer", stored["answer"])
            row.is_cancelled = found.is_cancelled or row.is_cancelled
            row.lease_until = max(found.lease_until, row.lease_until)
            await connection.execute(sa.update(tasks).where(tasks.c.id == row.id), _to_row(row))
            if row.gone_at:
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
            if found.lease_until < now:
                values |= {"status": "cancelled", "gone_at": now + found.ttl_seconds}
                await connection.execute(sa.delete(task_steps).where(task_steps.c.task == task_id))
            await connection.execute(sa.update(tasks).where(tasks.c.id == task_id).values(values))

    async def renew(self, ids: Sequence[str], *, owner: str, until: float) -> list[TaskRow]:
        """Renew the owner's leases; the tasks as they are stored, without those that it lost."""
        mine = tasks.c.id.in_(list(ids)) & (tasks.c.owner == owner)
        async with self._database.begin() as connection:
            await connection.execute(sa.update(tasks).where(mine & (tasks.c.gone_at == 0)).values(lease_until=until))
            return [_from_row(found) for found in (await connection.execute(sa.select(tasks).where(mine))).mappings()]

    async def take_over(self, *, owner: str, until: float, limit: int) -> list[TaskRow]:
        """Make tasks whose owner died one's own."""
        now = time.time()
        orphaned = (tasks.c.gone_at == 0) & (tasks.c.lease_until < now)
        async with self._database.begin() as connection:
            query = sa.select(tasks).where(orphaned).order_by(tasks.c.created_at).limit(limit).with_for_update(skip_locked=True)
            found = [_from_row(item) for item in (await connection.execute(query)).mappings()]
            for row in found:
                row.owner, row.lease_until, row.attempts = owner, until, row.attempts + 1
                values: JsonObject = {"owner": owner, "lease_until": until, "attempts": row.attempts}
                await connection.execute(sa.update(tasks).where(tasks.c.id == row.id).values(values))
            return found

    async def release(self, *, owner: str) -> None:
        """Let go of everything: the process ends, and others may take over at once."""
        async with self._database.begin() as connection:
            mine = (tasks.c.owner == owner) & (tasks.c.gone_at == 0)
            await connection.execute(sa.update(tasks).where(mine).values(lease_until=0.0))

    # -- steps -------------------------------------------------------------------------------------------------

    async def steps(self, task_id: str) -> dict[str, tuple[bool, JsonValue]]:
        """By key: whether the step is done, and its result."""
        async with self._database.begin() as connection:
            query = sa.select(task_steps.c.key, task_steps.c.is_done, task_steps.c.value).where(task_steps.c.task == task_id)
            return {key: (bool(done), json.loads(value)) for key, done, value in await connection.execute(query)}

    async def put_step(self, task_id: str, key: str, *, is_done: bool, value: JsonValue, owner: str) -> bool:
        """Begin a step, or record its result. False when another process took the task over."""
        row: JsonObject = {"task": task_id, "key": key, "is_done": int(is_done), "value": json.dumps(value)}
        async with self._database.begin() as connection:
            holds = sa.select(sa.func.count()).select_from(tasks).where((tasks.c.id == task_id) & (tasks.c.owner == owner))
            if not (await connection.execute(holds)).scalar_one():
                return False
            this = (task_steps.c.task == task_id) & (task_steps.c.key == key)
            changed = await connection.execute(sa.update(task_steps).where(this).values(row))
            if not changed.rowcount:
                await connection.execute(sa.insert(task_steps), row)
            return True

    async def drop_step(self, task_id: str, key: str) -> None:
        """Forget a step that failed before anything was recorded."""
        async with self._database.begin() as connection:
            await connection.execute(sa.delete(task_steps).where((task_steps.c.task == task_id) & (task_steps.c.key == key)))


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


_JSON = ("call", "outcome", "asked")


def _to_row(row: TaskRow) -> JsonObject:
    values: JsonObject = {name: getattr(row, name) for name in TaskRow.__dataclass_fields__}
    values.update((name, json.dumps(values[name])) for name in _JSON)
    return {**values, "is_cancelled": int(row.is_cancelled)}


def _from_row(found: Mapping[Any, Any]) -> TaskRow:
    values: dict[str, Any] = {name: found[name] for name in TaskRow.__dataclass_fields__}
    values.update((name, json.loads(values[name])) for name in _JSON)
    values["is_cancelled"] = bool(values["is_cancelled"])
    return TaskRow(**values)
