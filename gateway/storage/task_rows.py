"""`TaskRows`: stores tasks (calls that run in the background) in the database, so that other processes can take them over.

A task belongs to the process that runs it. A process renews one lease for all its tasks; when the lease expires, another process takes the
tasks over. All decisions are made in database transactions, so that only one of two competing processes succeeds. If the database is on a
server, the server's clock decides when a lease expires, because the clocks of machines differ. `task_admission` lets queued tasks start;
the package `tasks` runs them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa

from gateway.json_types import JsonObject, JsonValue, members_of
from gateway.storage.engine import Database
from gateway.storage.record_types import (
    KEPT,
    PARKED,
    PROCESS_CHARS,
    WOKEN,
    Choose,
    ClaimedTask,
    Steps,
    StrandedTask,
    TaskRow,
    forget,
    is_answer_to,
    is_open,
)
from gateway.storage.shared_clock import shared_now
from gateway.storage.tables import database_clock, of_gateway, task_owners, task_steps, tasks
from gateway.storage.task_admission import JSON_COLUMNS, NewTask, NewTasks, admit, delete, lock, sweep, to_row

_DOUBT = re.compile(r"!\d+$")
"""Matches the keys of questions that ask whether to retry a step. A task asks this if the process died during the step."""

FORGET_OWNER_SECONDS = 86_400.0
"""Seconds for which the expired lease of a process (its right to run tasks) stays stored."""

UNCLAIMED_SECONDS = 30 * 86_400.0
"""Seconds for which an unfinished task waits for its gateway. Then another gateway that shares the database sets the task to `failed`."""

UNCLAIMED: JsonObject = {"error": {"code": -32603, "message": "The gateway of this task has not run for 30 days."}}

# Valid in both dialects: inserts or updates a step, unless another process has taken over the task.
_PUT_STEP = sa.text(
    "INSERT INTO task_steps (task, key, is_done, value) "
    "SELECT CAST(:task AS TEXT), CAST(:key AS TEXT), CAST(:is_done AS INTEGER), CAST(:value AS TEXT) "
    "WHERE EXISTS (SELECT 1 FROM tasks WHERE id = :task AND owner = :owner AND gone_at = 0) "
    "ON CONFLICT (task, key) DO UPDATE SET is_done = excluded.is_done, value = excluded.value"
)


class TaskRows:
    """Stores tasks (calls that run in the background), their steps, and the leases of the processes that run the tasks.

    A lease is the right of a process to run its tasks until it expires, and is renewed regularly.

    Every method raises `StorageError` if the database is unavailable, locked for too long, full or damaged.
    """

    def __init__(self, database: Database, gateway: str = "") -> None:
        """Store the arguments.

        `gateway` is the id of this gateway, because several gateways can share the database. The object starts, takes over and counts only
        the tasks of this gateway. If the id is empty, it does so with the tasks of all gateways.
        """
        self._database = database
        self._gateway = gateway
        self._new = NewTasks(database, gateway)

    async def add(
        self, row: TaskRow, *, max_open: int, max_kept: int, choose: Choose | None, steps: Steps | None = None
    ) -> str:
        """Store a new task and its finished steps, and return an empty string. The task is committed on return.

        If an earlier call with the same idempotency key created a task, the id of that task is returned, and nothing is stored.

        With `choose`, the task is queued, and `choose` selects the queued tasks that may start. If the new task may start,
        `row.admitted_at` is set. Without `choose`, the task already runs. The principal's oldest finished tasks beyond `max_kept` are
        deleted.

        Raises:
            TaskError: The principal already has `max_open` unfinished tasks.
        """
        row.gateway = self._gateway
        new = NewTask(row, steps or {}, choose, max_open=max_open, max_kept=max_kept)
        await self._new.add(new)
        return new.existing

    async def made_by(self, principal: str, request_key: str) -> str:
        """Return the id of the principal's task whose idempotency key has the digest `request_key`, or an empty string."""
        there = (tasks.c.principal == principal) & (tasks.c.request_key == request_key)
        there &= of_gateway(tasks, self._gateway) & ((tasks.c.gone_at == 0) | (tasks.c.gone_at > shared_now()))
        found = await self._database.rows(sa.select(tasks.c.id).where(there).order_by(tasks.c.created_at).limit(1))
        return found[0]["id"] if found else ""

    async def discard(self, ids: Sequence[str], *, owner: str) -> None:
        """Delete the tasks with these ids that belong to the process `owner`.

        Such a task may have been stored although the database reported an error.
        """
        async with self._database.begin() as connection:
            mine = sa.select(tasks.c.id).where(tasks.c.id.in_(list(ids)) & (tasks.c.owner == owner))
            await delete(connection, [found for (found,) in await connection.execute(mine)])

    async def admit(self, choose: Choose) -> list[str]:
        """Let `choose` select queued tasks of all processes, mark them as started, and return their ids."""
        async with self._database.begin() as connection:
            await lock(connection)
            return await admit(connection, choose, self._gateway)

    async def sweep(self) -> None:
        """Delete expired tasks and old leases of processes, and set abandoned tasks of other gateways to `failed`.

        A task is abandoned if it is unfinished, has not changed for `UNCLAIMED_SECONDS`, and no living process runs it.
        """
        async with self._database.begin() as connection:
            await sweep(connection)
            unclaimed = (tasks.c.gone_at == 0) & (tasks.c.updated_at < shared_now() - UNCLAIMED_SECONDS) & ~_has_owner(connection)
            ended: JsonObject = {
                "status": "failed", "outcome": json.dumps(UNCLAIMED), "message": UNCLAIMED["error"]["message"],
                "gone_at": shared_now() + FORGET_OWNER_SECONDS,
            }  # fmt: skip
            await connection.execute(sa.update(tasks).where(unclaimed & ~of_gateway(tasks, self._gateway)).values(ended))
            old = task_owners.c.until < database_clock(connection) - FORGET_OWNER_SECONDS
            await connection.execute(sa.delete(task_owners).where(old))

    async def retry(self, task_id: str, *, from_start: bool) -> bool:
        """Queue a finished task again, so that a process of this gateway runs it; return `False` if it is unfinished or unknown.

        Steps that succeeded are not repeated, unless `from_start` is set.
        """
        async with self._database.begin() as connection:
            found = await _locked(connection, task_id)
            if found is None or not found.gone_at:
                return False
            kept = {} if from_start else await _steps(connection, task_id)
            worked = {key: step for key, step in kept.items() if step[0] and not _is_failure(step[1])}
            for key in [key for key in worked if key.startswith(KEPT) and key.endswith("/task")]:
                if key.removeprefix(KEPT).removesuffix("/task") not in worked:
                    del worked[key]  # the task on a server that the failed step followed is not followed again
            for key in [key for key in worked if key.startswith(KEPT) and key.endswith("/listed")]:
                del worked[key]  # the new attempt requests approvals on the pending list again
            for key in [key for key in await _steps(connection, task_id) if key not in worked]:
                await connection.execute(sa.delete(task_steps).where((task_steps.c.task == task_id) & (task_steps.c.key == key)))
            for item in found.asked.values():
                # Empty answers were stored when the task ended. The question about a step with unknown outcome must be asked again.
                if from_start or not item.get("answer") or _DOUBT.search(item.get("step", "!0")):
                    forget(item)
            values: JsonObject = {
                "status": "working", "message": "", "outcome": "{}", "asked": json.dumps(found.asked), "updated_at": shared_now(),
                "gone_at": 0.0, "is_cancelled": 0, "attempts": 2, "deaths": 0, "owner": "", "admitted_at": 0.0,
                "gateway": self._gateway,
            }  # fmt: skip
            await connection.execute(sa.update(tasks).where(tasks.c.id == task_id).values(values))
            return True

    async def get(self, task_id: str) -> TaskRow | None:
        """Return the task with this id, or `None` if it is unknown or expired."""
        found = await self._database.rows(sa.select(tasks).where(tasks.c.id == task_id))
        row = _from_row(found[0]) if found else None
        return None if row is not None and 0 < row.gone_at <= shared_now() else row

    async def all_of(self, principal: str | None = None) -> list[TaskRow]:
        """Delete expired tasks, then return the tasks of one principal, or all tasks, in both cases of all gateways, oldest first."""
        query = sa.select(tasks).order_by(tasks.c.created_at, tasks.c.id)
        query = query if principal is None else query.where(tasks.c.principal == principal)
        async with self._database.begin() as connection:
            await sweep(connection)
            return [_from_row(found) for found in (await connection.execute(query)).mappings()]

    async def save(self, row: TaskRow, *, owner: str, drop_results: bool = False) -> bool:
        """Store the state of a task that the process `owner` runs. Return `False` if the task has ended or belongs to another process.

        Answers that another process has stored are kept, and copied into `row`. With `drop_results`, the results of the steps are deleted,
        because the task has succeeded and is not retried.
        """
        async with self._database.begin() as connection:
            found = await _locked(connection, row.id)
            if found is None or found.owner != owner or found.gone_at:
                return False
            for key, stored in found.asked.items():
                if key in row.asked and is_answer_to(stored, row.asked[key]):
                    row.asked[key].setdefault("answer", stored["answer"])
            if row.status == "input_required" and not any(map(is_open, row.asked.values())):
                row.status = "working"  # another process stored the last answer after `row` was prepared
            row.is_cancelled = found.is_cancelled or row.is_cancelled
            row.admitted_at = max(found.admitted_at, row.admitted_at)
            await connection.execute(sa.update(tasks).where(tasks.c.id == row.id), to_row(row))
            if drop_results:
                own = task_steps.c.task == row.id
                await connection.execute(sa.delete(task_steps).where(own & task_steps.c.key.startswith(KEPT)))
                await connection.execute(sa.update(task_steps).where(own).values(value="null"))
            return True

    async def answer(self, task_id: str, answers: Mapping[str, JsonValue]) -> TaskRow | None:
        """Store answers to open questions of a task, by name; ignore other answers.

        Returns the updated task, or `None` if it is finished or unknown.
        """
        async with self._database.begin() as connection:
            found = await _locked(connection, task_id)
            if found is None or found.gone_at:
                return None
            for key, value in answers.items():
                if key in found.asked and is_open(found.asked[key]) and isinstance(value, dict):
                    found.asked[key]["answer"] = value
            if found.status == "input_required" and not any(map(is_open, found.asked.values())):
                found.status = "working"
            found.updated_at = shared_now()
            found.owner = WOKEN if found.owner == PARKED else found.owner
            values: JsonObject = {
                "asked": json.dumps(found.asked), "status": found.status, "updated_at": found.updated_at, "owner": found.owner,
            }  # fmt: skip
            await connection.execute(sa.update(tasks).where(tasks.c.id == task_id).values(values))
            return found

    async def cancel(self, task_id: str) -> None:
        """Request the cancellation of a task. The process that runs the task notices the request at its next lease renewal.

        If no living process runs the task, it is set to `cancelled` at once.
        """
        now = shared_now()
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
        """Renew the lease of the process `owner` for `lease_seconds`, and find its tasks that other processes have changed.

        The lease is the right of the process to run its tasks. `known` maps the id of each task of the process to the time of the last
        change that the process knows. Returns the ids of the tasks that still belong to the process, and the rows of the tasks that have
        changed since then. Only the process `owner` writes the row of its lease, so the update never waits for another transaction.
        """
        async with self._database.begin(urgent=True) as connection:
            until = database_clock(connection) + lease_seconds
            mine = sa.update(task_owners).where(task_owners.c.id == owner).values(until=until)
            if not (await connection.execute(mine)).rowcount:
                await connection.execute(sa.insert(task_owners).values(id=owner, until=until))
            if not known:
                return set(), []
            own = tasks.c.id.in_(list(known)) & (_process(tasks.c.owner) == owner)
            stored = await connection.execute(sa.select(tasks.c.id, tasks.c.updated_at).where(own))
            held: dict[str, float] = {id_: at for id_, at in stored}  # noqa: C416  # pyright does not see rows as pairs
            changed = [id_ for id_, at in held.items() if at != known[id_]]
            if not changed:
                return set(held), []
            found = await connection.execute(sa.select(tasks).where(tasks.c.id.in_(changed)))
            return set(held), [_from_row(item) for item in found.mappings()]

    async def any_orphans(self, *, owner: str) -> bool:
        """Return whether there are unfinished tasks that the process `owner` may take over, because their process stopped or died."""
        async with self._database.begin() as connection:
            return (await connection.execute(sa.select(tasks.c.id).where(self._orphaned(owner, connection)).limit(1))).first() is not None

    async def take_over(self, *, owner: str, limit: int) -> list[TaskRow]:
        """Assign at most `limit` tasks of processes that stopped or died to the process `owner`, and return them.

        Attempts and deaths of the tasks are counted. A process that died leaves an expired lease; a process that stopped has deleted its
        lease. The tasks of `owner` itself are left out, even if its lease has expired.
        """
        async with self._database.begin() as connection:
            query = sa.select(tasks).where(self._orphaned(owner, connection)).order_by(tasks.c.created_at).limit(limit)
            query = query.with_for_update(skip_locked=True)
            found = [_from_row(item) for item in (await connection.execute(query)).mappings()]
            owners = sa.select(task_owners.c.id).where(task_owners.c.id.in_([row.owner[:PROCESS_CHARS] for row in found]))
            died = set((await connection.execute(owners)).scalars())
            for row in found:
                if row.admitted_at:
                    row.attempts += 1
                    await _count_death(connection, row, has_died=row.owner[:PROCESS_CHARS] in died)
                await _give(connection, row, owner)
            return found

    async def claim(self, task_id: str, *, owner: str, kept: str, lease_seconds: float, expired_at: float) -> ClaimedTask | None:
        """Assign a task to the attempt `owner`, whatever process runs the task; return `None` if it has ended or is unknown.

        Attempts and deaths of the task are counted. A process died if its lease is stored and was not renewed for half of `lease_seconds`.
        The task keeps its owner if it is queued, if its owner is `kept` or belongs to another process that lives by its lease, or if it is
        `PARKED` and none of its questions was asked before `expired_at`.
        """
        async with self._database.begin() as connection:
            row = await _locked(connection, task_id)
            if row is None or row.gone_at or (self._gateway and row.gateway not in (self._gateway, "")):
                return None
            before = row.owner
            waits = [item for item in row.asked.values() if is_open(item)]
            is_waiting = before == PARKED and not row.is_cancelled and all(item.get("at", 0.0) > expired_at for item in waits)
            if not row.admitted_at or is_waiting or (before == kept and kept):
                return ClaimedTask(row, before)
            if before:
                lease = sa.select(task_owners.c.until - database_clock(connection)).where(task_owners.c.id == before[:PROCESS_CHARS])
                left = (await connection.execute(lease)).scalar_one_or_none()
                is_same = before[:PROCESS_CHARS] == owner[:PROCESS_CHARS]
                if left is not None and left > 0 and not is_same:
                    return ClaimedTask(row, before)
                row.attempts += 1
                await _count_death(connection, row, has_died=left is not None and left < lease_seconds / 2 and not is_same)
            else:
                row.message = ""
                await connection.execute(sa.update(tasks).where(tasks.c.id == task_id).values(message=""))
            await _give(connection, row, owner)
            return ClaimedTask(row, before)

    async def park(self, row: TaskRow) -> bool:
        """Release a task that waits for a person, so that no process runs it until an answer comes or a question expires.

        Returns `False` if the process that calls this has lost the task, or has not read an answer or a cancellation yet.
        """
        async with self._database.begin() as connection:
            found = await _locked(connection, row.id)
            if found is None or found.gone_at or found.owner != row.owner or found.is_cancelled or found.status != "input_required":
                return False
            if any(is_open(item) and not is_open(found.asked.get(key, {})) for key, item in row.asked.items()):
                return False
            await connection.execute(sa.update(tasks).where(tasks.c.id == row.id).values(owner=PARKED))
            return True

    async def stranded(self) -> list[StrandedTask]:
        """Return the unfinished tasks that an engine should have run again, the oldest first, at most 500.

        They belong to no living process and do not wait for a person. A task that was stored less than a second ago is left out, because
        the process that stored it is about to have it run. A time in the future comes from a process whose clock is ahead, and is ignored.
        """
        async with self._database.begin() as connection:
            now = shared_now()
            is_new = (tasks.c.owner == "") & (tasks.c.updated_at > now - 1) & (tasks.c.updated_at < now + 1)
            left = of_gateway(tasks, self._gateway) & (tasks.c.gone_at == 0) & (tasks.c.owner != PARKED) & ~is_new & ~_has_owner(connection)
            columns = sa.select(tasks.c.id, tasks.c.principal, tasks.c.tool, tasks.c.admitted_at)
            found = await connection.execute(columns.where(left).order_by(tasks.c.created_at).limit(500))
            return [StrandedTask(id_, principal, tool, not admitted_at) for id_, principal, tool, admitted_at in found]

    async def note(self, task_id: str, message: str) -> None:
        """Store the status message of a task that may start and that no process has run yet, or not since its last answer."""
        is_free = (tasks.c.id == task_id) & tasks.c.owner.in_(("", WOKEN)) & (tasks.c.gone_at == 0) & (tasks.c.admitted_at > 0)
        await self._database.change(sa.update(tasks).where(is_free).values(message=message))

    def _orphaned(self, owner: str, connection: Any) -> sa.ColumnElement[bool]:
        return of_gateway(tasks, self._gateway) & (tasks.c.gone_at == 0) & (tasks.c.owner != owner) & ~_has_owner(connection)

    async def release(self, *, owner: str) -> None:
        """Delete the lease of the process `owner` (its right to run tasks), so that other processes can take its tasks over at once."""
        await self._database.change(sa.delete(task_owners).where(task_owners.c.id == owner))

    # -- steps -------------------------------------------------------------------------------------------------

    async def steps(self, task_id: str) -> Steps:
        """Return the recorded steps of a task."""
        async with self._database.begin() as connection:
            return await _steps(connection, task_id)

    async def listed(self, task_id: str | None = None) -> dict[str, list[str]]:
        """Return the ids of the tasks' questions that are on the pending list, which `moongate approvals` shows to persons.

        The result maps each task id to ids of questions, for one task or for all tasks.
        """
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
        """Record the start (`is_done` is false) or the result of a step. Return `False` if the task has ended or another process has it."""
        row: JsonObject = {"task": task_id, "key": key, "is_done": int(is_done), "value": json.dumps(value), "owner": owner}
        async with self._database.begin() as connection:
            return bool((await connection.execute(_PUT_STEP, row)).rowcount)

    async def drop_step(self, task_id: str, key: str) -> None:
        """Delete the record of the start of a step, because the step failed without effect and may run again."""
        await self._database.change(sa.delete(task_steps).where((task_steps.c.task == task_id) & (task_steps.c.key == key)))


def _process(owner: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    """Return an SQL expression for the id of the process in the owner of a task."""
    return sa.func.substr(owner, 1, PROCESS_CHARS)


def _has_owner(connection: Any) -> sa.ColumnElement[bool]:
    """Return the SQL condition that the process that runs a task is alive: its right to run its tasks (lease) has not expired."""
    lives = (task_owners.c.id == _process(tasks.c.owner)) & (task_owners.c.until >= database_clock(connection))
    return sa.exists().where(lives).correlate(tasks)


async def _count_death(connection: Any, row: TaskRow, *, has_died: bool) -> None:
    """Count a death of the process that ran a task, unless the task only waited for a person."""
    if has_died and not _waits_for_person(row, await _steps(connection, row.id)):
        row.deaths += 1


async def _give(connection: Any, row: TaskRow, owner: str) -> None:
    """Assign a locked task to `owner`, and store its counted attempts and deaths."""
    row.owner = owner
    values: JsonObject = {"owner": owner, "attempts": row.attempts, "deaths": row.deaths}
    await connection.execute(sa.update(tasks).where(tasks.c.id == row.id).values(values))


async def _steps(connection: Any, task_id: str) -> Steps:
    query = sa.select(task_steps.c.key, task_steps.c.is_done, task_steps.c.value).where(task_steps.c.task == task_id)
    return {key: (bool(done), json.loads(value)) for key, done, value in await connection.execute(query)}


def _is_failure(value: JsonValue) -> bool:
    """Return whether the recorded result of a step is a tool result with `isError`, so that a retry of the task repeats the step."""
    return bool(members_of(members_of(value).get("result")).get("isError"))


def _waits_for_person(row: TaskRow, steps: Steps) -> bool:
    """Return whether a task waits for a person, and so does each of its in-flight steps. If so, it cannot have killed its process.

    The person answers at the client, or with `moongate approvals` if the question is on the pending list.
    """
    waits = [str(item.get("step", "")) for item in row.asked.values() if is_open(item)]
    for key, (_, value) in steps.items():
        if key.startswith(KEPT) and key.endswith("/listed") and "taken" not in cast("JsonObject", value):
            waits.append(key.removeprefix(KEPT))
    in_flight = [key for key, (is_done, value) in steps.items() if not is_done and not isinstance(value, dict)]
    # A question without a durable key belongs to an unknown in-flight call.
    return bool(waits) and ("" in waits or all(any(wait.startswith((f"{key}/", f"{key}!")) for wait in waits) for key in in_flight))


async def _locked(connection: Any, task_id: str) -> TaskRow | None:
    found = (await connection.execute(sa.select(tasks).where(tasks.c.id == task_id).with_for_update())).mappings().first()
    return _from_row(found) if found is not None else None


def _from_row(found: Mapping[Any, Any]) -> TaskRow:
    values: dict[str, Any] = {name: found[name] for name in TaskRow.__dataclass_fields__}
    values.update((name, json.loads(values[name])) for name in JSON_COLUMNS)
    values["is_cancelled"] = bool(values["is_cancelled"])
    return TaskRow(**values)
