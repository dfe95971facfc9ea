"""`TaskRunner`: runs calls behind their requests, keeps them, and takes over those of processes that died.

Knows no wire and no tool: it is given the way to make a call, and keeps status, questions and outcome. The process that runs
a task holds its lease; a tick renews leases, hears answers and cancels that came in through other processes, and looks for
orphans. See the room's docstring for what a task is.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import cast

import anyio
import anyio.abc
import anyio.to_thread

from gateway.auth.principal import Principal
from gateway.errors import GatewayError, NotFound, StorageError, UpstreamRefused
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.entries import TaskRow
from gateway.storage.records import Records
from gateway.tasks.caller import TaskCaller
from gateway.tasks.port import StepLog
from gateway.tasks.task import Task
from gateway.tools.base import Complete, TaskStarted
from gateway.tools.context import CallContext, ClientProfile

logger = logging.getLogger(__name__)

DEFAULT_TTL_SECONDS = 3600.0
"""How long a finished task is readable where nobody says otherwise."""

MAX_TTL_SECONDS = 24 * 3600.0
"""Longest time a client may have a finished task kept."""

MAX_TASKS_PER_PRINCIPAL = 64
"""Tasks of one principal that may be unfinished at once."""

MAX_KEPT_PER_PRINCIPAL = 256
"""Finished tasks of one principal that are kept; the oldest give way."""

LEASE_SECONDS = 2.5
"""How long a process may be silent before others take its tasks over."""

RETRY_SECONDS = 0.5
"""Pause before something is tried again that the database refused, or that is not there yet."""

MAX_ATTEMPTS = 20
"""Processes that may die over one task; then it is taken for what kills them."""

ADOPT_AT_ONCE = 16
"""Orphans taken over in one look."""

SOURCE_WAIT_SECONDS = 60.0
"""How long a task that was taken over waits for its tool to be there: servers connect after a start."""

CallTool = Callable[[str, JsonObject, CallContext], Awaitable[Complete | TaskStarted]]
"""Makes the call of a tool by its exposed name, to the end."""


class TaskRunner:
    """Runs and keeps tasks. `group` outlives the requests."""

    def __init__(
        self,
        group: anyio.abc.TaskGroup,
        records: Records,
        call: CallTool,
        *,
        ask_timeout_seconds: float = 3600.0,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """`records` is opened with the first task, or when there is an orphan. The lease is the same in all processes."""
        self._group = group
        self._records = records
        self._call = call
        self._ask_timeout = ask_timeout_seconds
        self._lease = lease_seconds
        self._tick_seconds = lease_seconds / 5
        self._owner = secrets.token_hex(12)
        self._here: dict[str, Task] = {}

    # -- what the server asks for ------------------------------------------------------------------------------

    async def start(self, tool: str, arguments: JsonObject, ctx: CallContext, *, ttl_seconds: float | None = None) -> Task:
        """Run a call in the background; the task is on disk before this returns.

        Raises:
            TaskError: The principal has too many unfinished tasks.
            StorageError: It cannot be kept.
        """
        call: JsonObject = {"arguments": arguments, "meta": dict(ctx.meta), "name": ctx.principal.name, "client": _profile(ctx.client)}
        ttl = min(ttl_seconds or DEFAULT_TTL_SECONDS, MAX_TTL_SECONDS)
        row = TaskRow(secrets.token_urlsafe(24), ctx.principal.id, tool, call, ttl)
        row.owner, row.lease_until = self._owner, time.time() + self._lease
        rows = await self._records.tasks()
        await rows.add(row, max_open=MAX_TASKS_PER_PRINCIPAL, max_kept=MAX_KEPT_PER_PRINCIPAL)
        return self._launch(row, ctx)

    async def find(self, task_id: str, principal: str) -> Task:
        """A task of `principal`.

        Raises:
            NotFound: Unknown, expired, or somebody else's: the three are never told apart.
        """
        task = self._here.get(task_id)
        if task is None:
            row = await (await self._records.tasks()).get(task_id)
            task = Task(row) if row is not None else None
        if task is None or task.principal != principal:
            raise NotFound("task", "")
        return task

    async def all_of(self, principal: str) -> list[Task]:
        """The tasks of `principal`, oldest first."""
        return [self._here.get(row.id) or Task(row) for row in await (await self._records.tasks()).all_of(principal)]

    async def moved(self, task: Task) -> Task:
        """The task after its next change, or after a moment where another process runs it."""
        if task.is_here and not task.is_over:
            await task.moved.wait()
            return task
        await anyio.sleep(self._tick_seconds / 2)
        return await self.find(task.id, task.principal)

    async def answer(self, task: Task, responses: Mapping[str, JsonValue]) -> None:
        """Hand over answers to open questions; other keys are ignored."""
        rows = await self._records.tasks()
        await rows.answer(task.id, responses)
        if task.is_here:
            row = await rows.get(task.id)
            if row is not None:
                self._hear(task, row)

    async def cancel(self, task: Task) -> Task:
        """Stop a task and wait until it stopped; one that is over stays as it is."""
        await (await self._records.tasks()).cancel(task.id)
        task.scope.cancel()
        while not task.is_over:
            task = await self.moved(task)
        return task

    async def stop_all_but(self, may_call: Callable[[str], bool]) -> None:
        """Cancel what runs here for callers that `may_call` no longer lets; it may block."""
        running = {task.principal for task in self._here.values() if not task.is_over}
        if not running:
            return
        gone = await anyio.to_thread.run_sync(lambda: {principal for principal in running if not may_call(principal)})
        for task in [task for task in self._here.values() if task.principal in gone]:
            logger.warning("task of %s is stopped: the API key of %s is revoked or expired", task.tool, task.principal)
            await self.cancel(task)

    async def run(self) -> None:
        """Renew leases, hear what came in elsewhere and take over orphans, until cancelled."""
        looked_at = float("-inf")
        try:
            while True:
                try:
                    await self._tick()
                    if anyio.current_time() - looked_at >= 2 * self._tick_seconds:
                        looked_at = anyio.current_time()
                        await self._adopt()
                except StorageError as error:
                    logger.warning("tasks: the database did not answer: %s", error)
                await anyio.sleep(self._tick_seconds)
        finally:
            await self._let_go()

    # -- inside ------------------------------------------------------------------------------------------------

    def _launch(self, row: TaskRow, ctx: CallContext) -> Task:
        task = self._here[row.id] = Task(row, is_here=True)
        self._group.start_soon(self._run, task, ctx)
        return task

    async def _run(self, task: Task, ctx: CallContext) -> None:
        """The task-runner boundary: whatever happens becomes the task's end."""
        outcome: JsonObject = {}
        status = "cancelled"
        try:
            with task.scope:
                try:
                    result = await self._work(task, ctx)
                    if isinstance(result, Complete):
                        outcome, status = {"result": result.result}, "completed"
                    else:
                        outcome, status = _error(-32603, "The call became a task of another server."), "failed"
                except UpstreamRefused as error:
                    outcome, status = _error(error.code, str(error)), "failed"
                except GatewayError as error:
                    outcome, status = _error(-32603, str(error)), "failed"
                except Exception:  # the task-runner boundary
                    logger.exception("task of %s failed", task.tool)
                    outcome, status = _error(-32603, "Internal error"), "failed"
        except BaseException:
            self._here.pop(task.id, None)  # the process ends: others may go on with it
            raise
        if task.is_lost:
            self._here.pop(task.id, None)
            task.touch()
            return
        await self._end(task, outcome, status)

    async def _work(self, task: Task, ctx: CallContext) -> Complete | TaskStarted:
        row = task.row
        steps = await (await self._records.tasks()).steps(row.id) if row.attempts > 1 else {}
        if row.attempts > MAX_ATTEMPTS:
            raise GatewayError(f"The gateway stopped {MAX_ATTEMPTS} times while this ran, so it is not tried again.")
        log = StepLog(row.id, steps, self._records, self._owner, lambda: self._lose(task))
        caller = TaskCaller(task, ctx.client, self._save)
        inner = dataclasses.replace(
            ctx, caller=caller, wants_progress=True, takes_tasks=False, in_task=True, log_level=None, durable=log.port()
        )
        log.ask = inner
        deadline = anyio.current_time() + (SOURCE_WAIT_SECONDS if row.attempts > 1 else 0)
        while True:
            try:
                return await self._call(row.tool, row.call["arguments"], inner)
            except NotFound as error:
                if error.kind != "tool" or anyio.current_time() >= deadline:
                    raise
            await anyio.sleep(RETRY_SECONDS)

    async def _end(self, task: Task, outcome: JsonObject, status: str) -> None:
        row = task.row
        with anyio.CancelScope(shield=True):
            row.outcome, row.status = outcome, status
            row.updated_at = time.time()
            row.gone_at = row.updated_at + row.ttl_seconds
            for item in row.asked.values():
                item.setdefault("answer", {})
            while True:
                try:
                    await (await self._records.tasks()).save(row, owner=self._owner)
                    break
                except StorageError as error:
                    logger.warning("task %s ended and cannot be stored yet: %s", row.id[:6], error)
                    await anyio.sleep(RETRY_SECONDS)
            self._here.pop(task.id, None)
            task.touch()

    async def _save(self, task: Task) -> None:
        task.row.updated_at = time.time()
        if not await (await self._records.tasks()).save(task.row, owner=self._owner):
            self._lose(task)
        task.touch()

    def _lose(self, task: Task) -> None:
        logger.warning("task %s is run by another process now", task.id[:6])
        task.is_lost = True
        task.scope.cancel()

    def _hear(self, task: Task, row: TaskRow) -> None:
        """Take what came in through the database."""
        changed = False
        for key, item in row.asked.items():
            if "answer" in item and key in task.row.asked and "answer" not in task.row.asked[key]:
                task.row.asked[key]["answer"] = item["answer"]
                changed = True
        if changed and task.status == "input_required" and not task.asks:
            task.row.status = "working"
        if row.is_cancelled and not task.is_over:
            task.row.is_cancelled = True
            task.scope.cancel()
        if changed:
            task.touch()

    async def _tick(self) -> None:
        ids = list(self._here)
        if not ids:
            return
        until = time.time() + self._lease
        stored = await (await self._records.tasks()).renew(ids, owner=self._owner, until=until)
        for row in stored:
            if row.id in self._here:
                self._hear(self._here[row.id], row)
        held = {row.id for row in stored}
        for task in [task for name, task in self._here.items() if name in ids and name not in held]:
            self._lose(task)

    async def _adopt(self) -> None:
        if not await anyio.to_thread.run_sync(self._records.has_orphans, time.time()):
            return
        rows = await self._records.tasks()
        for row in await rows.take_over(owner=self._owner, until=time.time() + self._lease, limit=ADOPT_AT_ONCE):
            if row.is_cancelled:
                await self._end(Task(row), {}, "cancelled")
                continue
            logger.info("task %s of %s is taken up again", row.id[:6], row.tool)
            call = row.call
            client = ClientProfile(**cast("dict[str, JsonValue]", call["client"]))
            principal = Principal(row.principal, str(call.get("name") or ""))
            self._launch(row, CallContext(principal=principal, client=client, meta=call["meta"], ask_timeout_seconds=self._ask_timeout))

    async def _let_go(self) -> None:
        """Others may take over at once what this process leaves behind."""
        if not self._records.is_open:
            return
        with anyio.move_on_after(2, shield=True):
            try:
                await (await self._records.tasks()).release(owner=self._owner)
            except StorageError as error:
                logger.warning("tasks could not be let go of: %s", error)


def _profile(client: ClientProfile) -> JsonObject:
    return {**asdict(client), "capabilities": dict(client.capabilities)}


def _error(code: int, message: str) -> JsonObject:
    return {"error": {"code": code, "message": message}}
