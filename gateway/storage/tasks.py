"""Long-running work where a restart and other processes find it.

A task belongs to the process that runs it. A process has one lease, whatever it runs, and renews it; whoever finds a lease run
out takes its tasks over. All decisions are made in the database, so that of two processes one wins; leases count in the database
server's time where there is one, because the clocks of machines differ. Whose turn it is: `turns`. What a task is and how it runs
is `tasks`' business.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa

from gateway.json_types import JsonObject, JsonValue
from gateway.storage.engine import Database
from gateway.storage.entries import KEPT, Choose, Steps, TaskRow, forget, is_answer_to, is_open
from gateway.storage.tables import of_gateway, task_owners, task_steps, tasks
from gateway.storage.turns import JSON_COLUMNS, NewTask, NewTasks, admit, delete, lock, sweep, to_row

_DOUBT = re.compile(r"!\d+$")
"""Ends the durable key of the question what is to become of a step in doubt."""

FORGET_OWNER_SECONDS = 86_400.0
"""How long a lease that ran out is still on record."""

UNCLAIMED_SECONDS = 30 * 86_400.0
"""How long a task waits for its gateway to run again before another gateway that shares the database ends it."""

UNCLAIMED: JsonObject = {"error": {"code": -32603, "message": "The gateway of this task has not run for 30 days."}}

# One statement for both dialects: the first of a step, its result, and whether the task is still this process's.
_PUT_STEP = sa.text(
    "INSERT INTO task_steps (task, key, is_done, value) "
    "SELECT CAST(:task AS TEXT), CAST(:key AS TEXT), CAST(:is_done AS INTEGER), CAST(:value AS TEXT) "
    "WHERE EXISTS (SELECT 1 FROM tasks WHERE id = :task AND owner = :owner AND gone_at = 0) "
    "ON CONFLICT (task, key) DO UPDATE SET is_done = excluded.is_done, value = excluded.value"
)


class TaskRows:
    """The repository. Every method raises `StorageError` as `Database.begin` does."""

    def __init__(self, database: Database, gateway: str = "") -> None:
        """With a `gateway`, other gateways that share the database do not run its tasks, and it does not run theirs."""
        self._database = database
        self._gateway = gateway
        self._new = NewTasks(database, gateway)

    async def add(
        self, row: TaskRow, *, max_open: int, max_kept: int, choose: Choose | None, steps: Steps | None = None
    ) -> str:
        """Store a new task, with what it did already; committed when this returns, and `row` says whether it may begin.

        With `choose` it waits for its turn; without, it has begun. The oldest finished ones of the principal over `max_kept` give way.
        Given back is the id of the task that an earlier request with the same key made, where there is one: nothing is stored then.

        Raises:
            TaskError: The principal has `max_open` unfinished ones.
        """
        row.gateway = self._gateway
        new = NewTask(row, steps or {}, choose, max_open=max_open, max_kept=max_kept)
        await self._new.add(new)
        return new.existing

    async def made_by(self, principal: str, request_key: str) -> str:
        """The id of the task that a request with this key made; empty where there is none."""
        there = (tasks.c.principal == principal) & (tasks.c.request_key == request_key)
        there &= of_gateway(tasks, self._gateway) & ((tasks.c.gone_at == 0) | (tasks.c.gone_at > time.time()))
        async with self._database.begin() as connection:
            return (await connection.execute(sa.select(tasks.c.id).where(there).order_by(tasks.c.created_at))).scalars().first() or ""

    async def discard(self, ids: Sequence[str], *, owner: str) -> None:
        """Forget tasks that the owner could not tell whether they were stored."""
        async with self._database.begin() as connection:
            mine = sa.select(tasks.c.id).where(tasks.c.id.in_(list(ids)) & (tasks.c.owner == owner))
            await delete(connection, [found for (found,) in await connection.execute(mine)])

    async def admit(self, choose: Choose) -> list[str]:
        """Let those begin whose turn it is, whichever process has them; their ids."""
        async with self._database.begin() as connection:
            await lock(connection)
            return await admit(connection, choose, self._gateway)

    async def sweep(self) -> None:
        """Forget what is past its time."""
        async with self._database.begin() as connection:
            await sweep(connection)
            unclaimed = (tasks.c.gone_at == 0) & (tasks.c.updated_at < time.time() - UNCLAIMED_SECONDS) & ~_has_owner(connection)
            ended: JsonObject = {
                "status": "failed", "outcome": json.dumps(UNCLAIMED), "message": UNCLAIMED["error"]["message"],
                "gone_at": time.time() + FORGET_OWNER_SECONDS,
            }  # fmt: skip
            await connection.execute(sa.update(tasks).where(unclaimed & ~of_gateway(tasks, self._gateway)).values(ended))
            old = task_owners.c.until < _now(connection) - FORGET_OWNER_SECONDS
            await connection.execute(sa.delete(task_owners).where(old))

    async def retry(self, task_id: str, *, from_start: bool) -> bool:
        """Have a finished task run again, by whichever process of this gateway looks first; False where it is not over, or gone.

        It goes on after the steps that worked, or `from_start`.
        """
        async with self._database.begin() as connection:
            found = await _locked(connection, task_id)
            if found is None or not found.gone_at:
                return False
            kept = {} if from_start else await _steps(connection, task_id)
            worked = {key: step for key, step in kept.items() if step[0] and not _is_failure(step[1])}
            for key in [key for key in worked if key.startswith(KEPT) and key.endswith("/task")]:
                if key.removeprefix(KEPT).removesuffix("/task") not in worked:
                    del worked[key]  # a server's own task that did not work is not followed again
            for key in [key for key in worked if key.startswith(KEPT) and key.endswith("/listed")]:
                del worked[key]  # the new try asks for approvals outside the client again
            for key in [key for key in await _steps(connection, task_id) if key not in worked]:
                await connection.execute(sa.delete(task_steps).where((task_steps.c.task == task_id) & (task_steps.c.key == key)))
            for item in found.asked.values():
                # An answer that nobody gave was put there when the task ended. A step in doubt is in doubt for a new reason.
                if from_start or not item.get("answer") or _DOUBT.search(item.get("step", "!0")):
                    forget(item)
            values: JsonObject = {
                "status": "working", "message": "", "outcome": "{}", "asked": json.dumps(found.asked), "updated_at": time.time(),
                "gone_at": 0.0, "is_cancelled": 0, "attempts": 2, "deaths": 0, "owner": "", "admitted_at": 0.0,
                "gateway": self._gateway,
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
            await sweep(connection)
            return [_from_row(found) for found in (await connection.execute(query)).mappings()]

    async def save(self, row: TaskRow, *, owner: str, drop_results: bool = False) -> bool:
        """Write what the owner knows: status, message, outcome, questions. False when another process took the task over.

        Answers that came through another process are kept and put into `row`, which waits for nobody then. What is over stays as it
        is. The steps are kept as long as the task. With `drop_results` only their names are kept, because no retry needs their results.
        """
        async with self._database.begin() as connection:
            found = await _locked(connection, row.id)
            if found is None or found.owner != owner or found.gone_at:
                return False
            for key, stored in found.asked.items():
                if key in row.asked and is_answer_to(stored, row.asked[key]):
                    row.asked[key].setdefault("answer", stored["answer"])
            if row.status == "input_required" and not any(map(is_open, row.asked.values())):
                row.status = "working"  # it was answered while this was on its way
            row.is_cancelled = found.is_cancelled or row.is_cancelled
            row.admitted_at = max(found.admitted_at, row.admitted_at)
            await connection.execute(sa.update(tasks).where(tasks.c.id == row.id), to_row(row))
            if drop_results:
                own = task_steps.c.task == row.id
                await connection.execute(sa.delete(task_steps).where(own & task_steps.c.key.startswith(KEPT)))
                await connection.execute(sa.update(task_steps).where(own).values(value="null"))
            return True

    async def answer(self, task_id: str, answers: Mapping[str, JsonValue]) -> TaskRow | None:
        """Store answers to open questions; ignore other answers. Return the task as it is then, or `None` if it is over or unknown."""
        async with self._database.begin() as connection:
            found = await _locked(connection, task_id)
            if found is None or found.gone_at:
                return None
            for key, value in answers.items():
                if key in found.asked and is_open(found.asked[key]) and isinstance(value, dict):
                    found.asked[key]["answer"] = value
            if found.status == "input_required" and not any(map(is_open, found.asked.values())):
                found.status = "working"
            found.updated_at = time.time()
            values: JsonObject = {"asked": json.dumps(found.asked), "status": found.status, "updated_at": found.updated_at}
            await connection.execute(sa.update(tasks).where(tasks.c.id == task_id).values(values))
            return found

    async def cancel(self, task_id: str) -> None:
        """Ask for it to be stopped; one that nobody runs is over at once."""
        now = time.time()
        async with self._database.begin() as connection:
            found = await _locked(connection, task_id)
            if found is None or found.gone_at:
                return
            values: JsonObject = {"is_cancelled": 1, "updated_at": now}
            await connection.execute(sa.update(tasks).where(tasks.c.id == task_id).values(values))
            left = (tasks.c.id == task_id) & ~_has_owner(connection)
            values = {"status": "cancelled", "message": "Cancelled", "gone_at": now + found.ttl_seconds}
            await connection.execute(sa.update(tasks).where(left).values(values))

    async def renew(
        self, known: Mapping[str, float], *, owner: str, lease_seconds: float
    ) -> tuple[set[str], list[TaskRow]]:
        """Renew the owner's lease: one row that nobody else writes, so that nothing holds it up.

        `known` are its tasks, with the time of their last change as it knows it. Given back are those that are still its own, and
        those of them that changed in the database, as they stand there.
        """
        async with self._database.begin(urgent=True) as connection:
            until = _now(connection) + lease_seconds
            mine = sa.update(task_owners).where(task_owners.c.id == owner).values(until=until)
            if not (await connection.execute(mine)).rowcount:
                await connection.execute(sa.insert(task_owners).values(id=owner, until=until))
            if not known:
                return set(), []
            own = tasks.c.id.in_(list(known)) & (tasks.c.owner == owner)
            stored = await connection.execute(sa.select(tasks.c.id, tasks.c.updated_at).where(own))
            held: dict[str, float] = {id_: at for id_, at in stored}  # noqa: C416  # rows are no pairs to the type checker
            changed = [id_ for id_, at in held.items() if at != known[id_]]
            if not changed:
                return set(held), []
            found = await connection.execute(sa.select(tasks).where(tasks.c.id.in_(changed)))
            return set(held), [_from_row(item) for item in found.mappings()]

    async def any_orphans(self, *, owner: str) -> bool:
        """Whether there is something to take over."""
        async with self._database.begin() as connection:
            return (await connection.execute(sa.select(tasks.c.id).where(self._orphaned(owner, connection)).limit(1))).first() is not None

    async def take_over(self, *, owner: str, limit: int) -> list[TaskRow]:
        """Make the tasks of owners that stopped or died the owner's own. A task that still waited for its turn was never begun.

        An owner that died left its lease to expire, while one that stopped released it. Tasks of this owner are not orphaned, however
        late it renews.
        """
        async with self._database.begin() as connection:
            query = sa.select(tasks).where(self._orphaned(owner, connection)).order_by(tasks.c.created_at).limit(limit)
            query = query.with_for_update(skip_locked=True)
            found = [_from_row(item) for item in (await connection.execute(query)).mappings()]
            owners = sa.select(task_owners.c.id).where(task_owners.c.id.in_([row.owner for row in found]))
            died = set((await connection.execute(owners)).scalars())
            for row in found:
                if row.admitted_at:
                    row.attempts += 1
                    if row.owner in died and not _waits_for_person(row, await _steps(connection, row.id)):
                        row.deaths += 1
                row.owner = owner
                values: JsonObject = {"owner": owner, "attempts": row.attempts, "deaths": row.deaths}
                await connection.execute(sa.update(tasks).where(tasks.c.id == row.id).values(values))
            return found

    def _orphaned(self, owner: str, connection: Any) -> sa.ColumnElement[bool]:
        return of_gateway(tasks, self._gateway) & (tasks.c.gone_at == 0) & (tasks.c.owner != owner) & ~_has_owner(connection)

    async def release(self, *, owner: str) -> None:
        """Let go of everything: the process ends, and others may take over at once."""
        async with self._database.begin() as connection:
            await connection.execute(sa.delete(task_owners).where(task_owners.c.id == owner))

    # -- steps -------------------------------------------------------------------------------------------------

    async def steps(self, task_id: str) -> Steps:
        """What the task did."""
        async with self._database.begin() as connection:
            return await _steps(connection, task_id)

    async def listed(self, task_id: str | None = None) -> dict[str, list[str]]:
        """Ids of the entries of the pending list that a task, or any task, waits for, by task."""
        query = sa.select(task_steps.c.task, task_steps.c.value).where(task_steps.c.key.like(f"{KEPT}%/listed"))
        query = query if task_id is None else query.where(task_steps.c.task == task_id)
        found: dict[str, list[str]] = {}
        async with self._database.begin() as connection:
            for task, value in await connection.execute(query):
                kept: JsonObject = json.loads(value) or {}
                if "id" in kept:
                    found.setdefault(task, []).append(kept["id"])
        return found

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


def _has_owner(connection: Any) -> sa.ColumnElement[bool]:
    """Whether the process that has a task lives."""
    lives = (task_owners.c.id == tasks.c.owner) & (task_owners.c.until >= _now(connection))
    return sa.exists().where(lives).correlate(tasks)


async def _steps(connection: Any, task_id: str) -> Steps:
    query = sa.select(task_steps.c.key, task_steps.c.is_done, task_steps.c.value).where(task_steps.c.task == task_id)
    return {key: (bool(done), json.loads(value)) for key, done, value in await connection.execute(query)}


def _is_failure(value: JsonValue) -> bool:
    """Whether a step's recorded result is a call's that says that it failed."""
    result = cast("JsonObject", value).get("result") if isinstance(value, dict) else None
    return isinstance(result, dict) and bool(cast("JsonObject", result).get("isError"))


def _waits_for_person(row: TaskRow, steps: Steps) -> bool:
    """Whether every step of the task that is in flight waits for a person, in the client or on the pending list."""
    waits = [str(item.get("step", "")) for item in row.asked.values() if is_open(item)]
    for key, (_, value) in steps.items():
        if key.startswith(KEPT) and key.endswith("/listed") and "taken" not in cast("JsonObject", value):
            waits.append(key.removeprefix(KEPT))
    in_flight = [key for key, (is_done, value) in steps.items() if not is_done and not isinstance(value, dict)]
    # A question without a durable key belongs to a call in flight, but does not say to which.
    return bool(waits) and ("" in waits or all(any(wait.startswith((f"{key}/", f"{key}!")) for wait in waits) for key in in_flight))


async def _locked(connection: Any, task_id: str) -> TaskRow | None:
    found = (await connection.execute(sa.select(tasks).where(tasks.c.id == task_id).with_for_update())).mappings().first()
    return _from_row(found) if found is not None else None


def _from_row(found: Mapping[Any, Any]) -> TaskRow:
    values: dict[str, Any] = {name: found[name] for name in TaskRow.__dataclass_fields__}
    values.update((name, json.loads(values[name])) for name in JSON_COLUMNS)
    values["is_cancelled"] = bool(values["is_cancelled"])
    return TaskRow(**values)
