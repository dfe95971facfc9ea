"""`TaskRunner`: starts, finds, answers and cancels tasks (calls that run in the background). The server uses this class."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping

import anyio
import anyio.abc

from gateway.auth.principal import Principal
from gateway.config.models import TaskSettings
from gateway.errors import NotFound, TaskError
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.task_scheduling import choose_next
from gateway.storage.record_types import PARKED, WOKEN, TaskRow
from gateway.storage.records import Records
from gateway.tasks.inline_call import Work
from gateway.tasks.lease import Lease
from gateway.tasks.local_engine import LocalEngine
from gateway.tasks.rights import KEY_GONE, CallerNow, refuse_unadmitted, unchanged_caller
from gateway.tasks.step_log import STEPS_VERSION
from gateway.tasks.stored_call import request_key, to_stored
from gateway.tasks.task import Task, TaskKind
from gateway.tasks.task_engine import MakeEngine
from gateway.tasks.task_executor import CallTool, TaskExecutor
from gateway.tasks.task_questions import OpenQuestion, await_verdicts, open_questions, usable_answers
from gateway.tasks.upkeep import Upkeep
from gateway.tools.base import ToolOutcome
from gateway.tools.context import CallContext

MAX_TTL_SECONDS = 24 * 3600.0
"""Maximum seconds for which a client may request that a finished task stays stored. A longer `tasks.ttlSeconds` replaces this maximum."""

LEASE_SECONDS = 2.5
"""Seconds that a lease (the right of a process to run its tasks) lasts. Without a renewal, other processes then take the tasks over."""

_DRAIN_POLL_SECONDS = 0.02


class TaskRunner:
    """Runs tool calls as background tasks whose state and results are stored in the database."""

    def __init__(
        self,
        group: anyio.abc.TaskGroup,
        records: Records,
        call: CallTool,
        caller_now: CallerNow = unchanged_caller,
        *,
        settings: TaskSettings | None = None,
        ask_timeout_seconds: float = 3600.0,
        lease_seconds: float = LEASE_SECONDS,
        make_engine: MakeEngine = LocalEngine,
    ) -> None:
        """Store the arguments. `make_engine` creates the engine, which decides in which process a task runs.

        `group` runs the tasks and must outlive the requests. The database `records` is opened when it is first needed: for the first task,
        for a request about a task or with an idempotency key, or to take over tasks of a dead process. `call` calls a tool. `caller_now`
        checks whether the caller of a task may still call the tool, before the task starts and before each of its steps. `lease_seconds`
        (see `LEASE_SECONDS`) must be the same in all processes that share the database.

        There are two time limits for answers to requests for input. While a client waits for the result of a call (`run_inline`), it must
        answer within `ask_timeout_seconds`; requests of tasks in the background stay open for `settings.ask_timeout_seconds`.
        """
        self.settings = settings or TaskSettings()
        self._records = records
        self._lease = Lease(records, lease_seconds)
        self._executor = TaskExecutor(
            group, records, call, caller_now, lease=self._lease, settings=self.settings, live_timeout_seconds=ask_timeout_seconds
        )
        self._engine = make_engine(self._executor, records)
        self._upkeep = Upkeep(records, self._executor, self._engine)

    async def run(self) -> None:
        """Until cancelled, renew the lease, start queued tasks, take over tasks of dead processes, and delete expired tasks.

        The lease is the right of this process to run its tasks.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._engine.run)
            await self._upkeep.run()

    async def start(
        self, tool: str, arguments: JsonObject, ctx: CallContext, *, ttl_seconds: float | None = None, kind: TaskKind | None = None
    ) -> Task:
        """Store a call of `tool` as a task, return the task, and run it in the background as soon as its limits allow.

        If the principal has used the same idempotency key before, the task of that earlier call is returned.

        Raises:
            TaskError: The principal has too many unfinished tasks, or has used the idempotency key for a different call.
            StorageError: The task cannot be stored.
        """
        row = self._new_row(tool, arguments, ctx, ttl_seconds, kind or TaskKind())
        row.message, row.owner = "Queued", self._engine.new_owner
        if known := await self._executor.add(row, choose_next):
            return await self._find_same(known, row)
        if row.admitted_at:
            row.message = ""
        return self._engine.dispatch(row, ctx)

    async def run_inline(
        self, tool: str, arguments: JsonObject, ctx: CallContext, work: Work, *, kind: TaskKind | None = None
    ) -> ToolOutcome | Task:
        """Run a call for a client that has no task support and waits for the result. Return the outcome, or the task that the call became.

        During the first `tasks.inlineSeconds`, nothing is stored, requests for input are sent to the client, and the call ends if the
        client cancels it. After that time, the call becomes a task. If the task cannot be stored, the call continues as before. If an
        earlier call with the same idempotency key became a task, return this task without running the call.

        Raises:
            TaskError: The principal has used the idempotency key for a different call, or the gateway stopped the call.
            Exception: `work` raised it.
        """
        row = self._new_row(tool, arguments, ctx, None, kind or TaskKind())
        if row.request_key and (known := await (await self._records.tasks()).made_by(row.principal, row.request_key)):
            return await self._find_same(known, row)
        call = self._executor.launch_inline(row, ctx, work)
        seconds = self.settings.inline_seconds
        try:
            became_task = await call.wait(float("inf") if seconds is None else seconds, lambda: self._executor.hand_over(call))
        except anyio.get_cancelled_exc_class():
            call.task.scope.cancel()
            raise
        return call.task if became_task else call.result()

    async def find(self, task_id: str, principal: str) -> Task:
        """Return the task with this id, if it belongs to the principal with the id `principal`.

        Raises:
            NotFound: The task is unknown, expired, or belongs to another principal; the error does not say which.
        """
        task = self._executor.running.get(task_id)
        if task is None or task.is_lost:  # it may run in another process
            task = Task(row) if (row := await (await self._records.tasks()).get(task_id)) is not None else None
        if task is None or task.principal != principal:
            raise NotFound("task", "")
        return task

    async def admit(self, task: Task, principal: Principal) -> None:
        """Check that a principal with its current rights may still use the tool of its task. Raises the errors of `CallerNow`."""
        await self._executor.caller_now(task.tool, principal)

    async def all_of(self, principal: str) -> list[Task]:
        """Return all stored tasks of the principal with the id `principal`, oldest first."""
        here = {task.id: task for task in self._executor.running.values() if not task.is_lost}
        return [here.get(row.id) or Task(row) for row in await (await self._records.tasks()).all_of(principal)]

    async def wait_for_change(self, task: Task) -> Task:
        """Wait for the next change of a task, and return it. If another process runs the task, return its state after a short pause."""
        if task.is_here and not task.is_over:
            await task.changed.wait()
            return task
        await anyio.sleep(self._lease.tick_seconds / 2)
        return await self.find(task.id, task.principal)

    async def answer(self, task: Task, responses: Mapping[str, JsonValue]) -> None:
        """Store answers to the open questions of a task, and pass them to the task. Answers with unknown keys are ignored.

        If an answer does not match the schema of its question or cannot be stored, all questions stay open. If the code inside the task
        checks the answers, this method returns when the code has accepted them, or after a few seconds.

        Raises:
            AnswerRefused: An answer does not match its question, or the code inside the task refused it. The question stays open.
            StorageError: The answers cannot be stored.
        """
        rows = await self._records.tasks()
        stored = await rows.get(task.id)  # another process may run the task, and have asked since
        usable = usable_answers(Task(stored), responses) if stored is not None else {}
        row = await rows.answer(task.id, usable) if usable else None
        if row is not None and row.owner == WOKEN:
            await self._engine.wake(task.id)
        if row is not None and (here := self._executor.running.get(task.id)) is not None:  # `task` may be an older copy of `here`
            self._executor.apply(here, row)
        await await_verdicts(rows, row, usable)

    async def questions(self, task: Task) -> list[OpenQuestion]:
        """Return all open questions of a task: those that its client can answer, and those in `moongate approvals list`.

        Raises:
            StorageError: The questions cannot be read.
        """
        return await open_questions(self._records, task)

    async def cancel(self, task: Task) -> Task:
        """Cancel a task, wait until it has ended, and return it. A finished task does not change."""
        rows = await self._records.tasks()
        was_parked = (row := await rows.get(task.id)) is not None and row.owner == PARKED
        await rows.cancel(task.id)
        if was_parked:
            await self._engine.wake(task.id)
        task.scope.cancel()
        while not task.is_over:
            task = await self.wait_for_change(task)
        return task

    @property
    def running(self) -> int:
        """Number of unfinished tasks in this process."""
        return sum(not task.is_over for task in self._executor.running.values())

    def callers(self) -> set[str]:
        """Return the ids of all principals that have unfinished tasks in this process."""
        return {task.principal for task in self._executor.running.values() if not task.is_over}

    def end(self, principals: Collection[str]) -> None:
        """End all tasks of the given principals (ids) in this process, because their API keys were revoked or have expired.

        The tasks are cancelled, and get the status `failed`.
        """
        for task in [task for task in self._executor.running.values() if task.principal in principals and not task.is_over]:
            task.refuse(KEY_GONE)

    async def end_unadmitted(self) -> None:
        """End the running tasks of this process whose caller may no longer call the task's tool.

        Two kinds of tasks are not ended now: tasks with an in-flight step that must not run twice, unless they wait for a person, and tasks
        whose tool is unavailable. The caller's right is checked before the task's next step. Raises `StorageError` if the API keys cannot
        be read.
        """
        await refuse_unadmitted(self._executor.interruptible(), self._executor.caller_now)

    async def drain(self, seconds: float) -> None:
        """Stop all tasks from beginning further steps, because the process stops.

        Wait at most `seconds` for in-flight steps that must not run twice, except in tasks that wait for a person.
        """
        self._executor.drain()
        with anyio.move_on_after(seconds):
            while self._executor.must_finish():  # noqa: ASYNC110
                await anyio.sleep(_DRAIN_POLL_SECONDS)

    def _new_row(self, tool: str, arguments: JsonObject, ctx: CallContext, ttl_seconds: float | None, kind: TaskKind) -> TaskRow:
        settings = self.settings
        call = {**to_stored(arguments, ctx, resumes=kind.resumes, queue=kind.queue), "steps": STEPS_VERSION}
        longest = max(MAX_TTL_SECONDS, settings.ttl_seconds)
        row = TaskRow(secrets.token_hex(16), ctx.facts.principal.id, tool, call, min(ttl_seconds or settings.ttl_seconds, longest))
        row.owner, row.request_key = self._lease.owner, request_key(ctx)
        own: JsonObject = {"scope": f"caller:{ctx.facts.principal.id}", "running": settings.max_running_per_caller}
        row.limits = [{**own, "perMinute": settings.starts_per_minute_per_caller}, *kind.limits]
        return row

    async def _find_same(self, task_id: str, row: TaskRow) -> Task:
        """Return the task `task_id`, which an earlier call with the same idempotency key created.

        `row` is the row of the new call. Raises `TaskError` if the two calls have different tools or arguments.
        """
        task = await self.find(task_id, row.principal)
        if (task.tool, task.row.call["arguments"]) != (row.tool, row.call["arguments"]):
            raise TaskError(f"The idempotency key of this call was used for another call before, of {task.tool!r}; use a new one.")
        return task
