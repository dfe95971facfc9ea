"""`TaskExecutor`: runs the tool calls of tasks in this process, and stores the state of the tasks. `TaskRunner` owns it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import anyio.abc

from gateway.auth.principal import Principal
from gateway.config.models import TaskSettings
from gateway.errors import GatewayError, NotFound, PolicyDenied, StorageError, TaskError
from gateway.gate.rpc_errors import failed_call
from gateway.json_types import JsonObject
from gateway.storage.database_retry import RETRY_SECONDS, until_stored
from gateway.storage.record_types import Choose, Steps, TaskRow, is_answer_to, is_open
from gateway.storage.records import Records
from gateway.storage.shared_clock import shared_now
from gateway.tasks.caller import TaskCaller
from gateway.tasks.inline_call import InlineCall, Work
from gateway.tasks.lease import Lease
from gateway.tasks.rights import CallerNow, current_caller, refuse
from gateway.tasks.step_log import StepLog
from gateway.tasks.stored_call import ended, error_outcome, from_stored
from gateway.tasks.task import Task
from gateway.tools.base import Complete, TaskStarted, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.ports import Caller, ClientProfile

logger = logging.getLogger(__name__)

MAX_KEPT_PER_PRINCIPAL = 256
"""Maximum number of finished tasks that are stored for one principal. The oldest are deleted first."""

MAX_DEATHS = 20
"""Maximum number of processes that die while they run the same task. Then the task fails, because it probably kills them."""

SOURCE_WAIT_SECONDS = 60.0
"""Maximum seconds for which a resumed task waits for its tool to become available, because servers connect after the gateway starts."""

CallTool = Callable[[str, JsonObject, CallContext], Awaitable[Complete | TaskStarted]]
"""Async function that runs the tool call of a task to its end, and returns the outcome.

Its arguments are the name of the tool as clients see it, the arguments of the tool, and the context of the call. The function sends the
tool's requests for input to the caller in this context.
"""


class TaskExecutor:
    """Runs the tool calls of the tasks that belong to this process, and stores all changes of these tasks."""

    def __init__(
        self,
        group: anyio.abc.TaskGroup,
        records: Records,
        call: CallTool,
        caller_now: CallerNow,
        *,
        lease: Lease,
        settings: TaskSettings,
        live_timeout_seconds: float,
    ) -> None:
        """Store the arguments. `group` runs the tasks, and `call` calls a tool.

        `live_timeout_seconds` is the time limit for each answer of a client that still waits for the result of the call.
        """
        self.lease = lease
        self.running: dict[str, Task] = {}
        """The unfinished tasks that run in this process, by id."""
        self.work = anyio.Event()
        """Event that is set when a task was saved or ended, so that queued tasks may start. `Upkeep` replaces it by a new event."""
        self.is_stopping = False
        """Whether the process is stopping. Another process continues tasks that are cancelled from then on."""
        self.is_draining = False
        """Whether no further task or step may begin, because the process will stop."""
        self.doubtful: set[str] = set()
        """Ids of tasks that may be stored although the database reported an error on storing them. `Upkeep` deletes these tasks."""
        self.caller_now = caller_now
        self._group = group
        self._records = records
        self._call = call
        self.settings = settings
        self._live_timeout = live_timeout_seconds
        self._logs: dict[str, StepLog] = {}

    # -- starting ----------------------------------------------------------------------------------------------

    async def add(self, row: TaskRow, choose: Choose | None, steps: Steps | None = None) -> str:
        """Store a new task and return "", or return the id of the task that an earlier call with the same idempotency key created.

        Raises:
            TaskError: The principal has too many unfinished tasks.
            StorageError: The database failed.
        """
        rows = await self._records.tasks()
        await self.lease.refresh()
        try:
            return await rows.add(
                row, max_open=self.settings.max_per_caller, max_kept=MAX_KEPT_PER_PRINCIPAL, choose=choose, steps=steps
            )
        except StorageError:
            self.doubtful.add(row.id)  # the commit may have succeeded, and no client knows the task's id
            raise

    def launch(self, row: TaskRow, ctx: CallContext) -> Task:
        """Start running a stored task in this process, and return its state. An earlier attempt of the task in this process stops."""
        if (earlier := self.running.get(row.id)) is not None:
            self.lose(earlier)
        task = self.running[row.id] = Task(row, is_here=True)
        self._group.start_soon(self._run, task, ctx)
        return task

    async def resume(self, row: TaskRow) -> Task:
        """Continue a task that another process ran, and return its state.

        If the task was cancelled, or its source does not let another process continue it, the task ends.
        """
        if row.is_cancelled:
            await self.end(task := Task(row), {}, "cancelled")
            return task
        if row.admitted_at and row.call.get("resumes") is False:
            text = "The gateway stopped while this ran, and its tasks are not resumed (`tasks.resume` of its source)."
            await self.end(task := Task(row), error_outcome(text), "failed")
            return task
        logger.info("task taken over task=%s tool=%s attempt=%s", row.id[:6], row.tool, row.attempts)
        return self.launch(row, from_stored(row))

    def launch_inline(self, row: TaskRow, ctx: CallContext, work: Work) -> InlineCall:
        """Start a call for a client that waits for the result. The call is stored only if `hand_over` makes it a task."""
        task = Task(row)
        log = StepLog.in_memory(row.id, self._records, row.owner, lambda: self.lose(task), lambda: self._continues(task))
        caller = self._caller(task, ctx.facts.client, live=ctx.ports.caller)
        seconds = self.settings.ask_timeout_seconds
        facts = dataclasses.replace(ctx.facts, takes_tasks=False, ask_timeout_seconds=seconds)
        log.context, log.caller = ctx.with_facts(facts).with_caller(caller).with_durable(None), caller
        inner = log.context.with_durable(log.port())
        log.before_step = partial(self._admit_step, task, ctx.facts.principal)
        call = InlineCall(task, log, caller)
        self._group.start_soon(self._run_inline, call, work, inner)
        return call

    async def hand_over(self, call: InlineCall) -> bool:
        """Turn a running call whose client waits for the result into a stored task.

        Returns `False` if this failed or the call has just ended.
        """
        task, live = call.task, call.caller.detach()

        async def store(steps: Steps) -> None:
            if await self.add(task.row, None, steps):
                raise TaskError("The same request made a task meanwhile.")

        try:
            with anyio.CancelScope(shield=True):
                await call.log.write(store)
        except (StorageError, TaskError) as error:
            logger.warning("slow call did not become a task tool=%s error=%s", task.tool, error)
            call.caller.attach(live)
            return False
        task.is_here = call.is_task = True
        if call.done.is_set():
            await self._conclude(task, call.outcome, call.error)
            return False
        self.running[task.id], self._logs[task.id] = task, call.log
        if task.waits_for_input:
            await self._save(task)
        return True

    # -- running -----------------------------------------------------------------------------------------------

    def _caller(self, task: Task, client: ClientProfile, *, live: Caller | None = None) -> TaskCaller:
        seconds = self.settings.ask_timeout_seconds
        return TaskCaller(task, client, self._save, ask_timeout_seconds=seconds, live=live, live_timeout_seconds=self._live_timeout)

    async def _run(self, task: Task, ctx: CallContext) -> None:
        """Run the call of a task, and store its result or exception as the outcome of the task."""
        result: ToolOutcome | None = None
        problem: Exception | None = None
        try:
            with task.scope:
                try:
                    result = await self._work(task, ctx)
                except Exception as error:  # the called tool may raise any exception
                    problem = error
            await self._conclude(task, result, problem)
        finally:
            self._forget(task)
            task.notify()

    async def _run_inline(self, call: InlineCall, work: Work, ctx: CallContext) -> None:
        try:
            await call.run(work, ctx)
            if call.is_task:
                await self._conclude(call.task, call.outcome, call.error)
        finally:
            self._forget(call.task)

    def _forget(self, task: Task) -> None:
        """Remove the state of a task from memory, because it has ended, or another process continues it."""
        if self.running.get(task.id, task) is task:  # else a later attempt of the task runs in this process
            self.running.pop(task.id, None)
            self._logs.pop(task.id, None)

    async def _work(self, task: Task, ctx: CallContext) -> Complete | TaskStarted:
        row = task.row
        while not row.admitted_at:
            await task.changed.wait()
        steps = await until_stored(lambda: self._steps(row.id)) if row.attempts > 1 else {}
        if row.deaths >= MAX_DEATHS:
            raise GatewayError(f"The gateway died {MAX_DEATHS} times while this ran, so it is not tried again.")
        log = StepLog(row.id, steps, self._records, row.owner, lambda: self.lose(task), lambda: self._continues(task))
        log.version = row.call.get("steps", 1)
        self._logs[row.id], log.is_draining = log, self.is_draining
        caller = self._caller(task, ctx.facts.client)
        if row.attempts > 1 and caller.resume(log.version):
            await self._save(task)
        seconds = self.settings.ask_timeout_seconds
        facts = dataclasses.replace(
            ctx.facts, wants_progress=True, takes_tasks=False, in_task=True, log_level=None, ask_timeout_seconds=seconds
        )
        log.context, log.caller = ctx.with_facts(facts).with_caller(caller).with_durable(None), caller
        deadline = anyio.current_time() + (SOURCE_WAIT_SECONDS if row.attempts > 1 else 0)
        while True:
            try:
                principal = await current_caller(self.caller_now, row.tool, ctx.facts.principal)
                log.before_step = partial(self._admit_step, task, principal)
                inner = log.context.with_durable(log.port()).with_facts(dataclasses.replace(facts, principal=principal))
                return await self._call(row.tool, row.call["arguments"], inner)
            except NotFound as error:
                if error.kind != "tool" or anyio.current_time() >= deadline:
                    raise
            await anyio.sleep(RETRY_SECONDS)

    async def _admit_step(self, task: Task, principal: Principal) -> None:
        """Check that the principal may still call the tool of the task. If not, end the task and never return."""
        try:
            await current_caller(self.caller_now, task.tool, principal)
        except (PolicyDenied, NotFound) as error:
            refuse(task, error)
            await anyio.sleep_forever()

    async def _steps(self, task_id: str) -> Steps:
        return await (await self._records.tasks()).steps(task_id)

    # -- state changes -----------------------------------------------------------------------------------------

    def apply(self, task: Task, row: TaskRow) -> None:
        """Update a task of this process with the changes that other processes stored in `row`: answers, admission, cancellation."""
        task.row.updated_at = max(row.updated_at, task.row.updated_at)
        changed = bool(row.admitted_at) and not task.row.admitted_at
        if changed:
            task.row.admitted_at, task.row.message = row.admitted_at, ""
        for key, item in row.asked.items():
            if (open_request := task.row.asked.get(key)) is not None and "answer" not in open_request and is_answer_to(item, open_request):
                open_request["answer"] = item["answer"]
                changed = True
        if row.is_cancelled and not task.is_over:
            task.row.is_cancelled = True
            task.scope.cancel()
        if changed:
            task.settle()
            task.notify()

    def lose(self, task: Task) -> None:
        """Stop running a task in this process, because another process took the task over."""
        if task.is_lost:
            return
        logger.warning("task taken over by another process task=%s", task.id[:6])
        task.is_lost = True
        task.scope.cancel()

    def _continues(self, task: Task) -> bool:
        """Return whether another process, or a later start, will continue a task that was cancelled in this process."""
        is_left = task.is_lost or (self.is_stopping and not task.scope.cancel_called)
        return is_left and task.row.call.get("resumes") is not False

    def is_parkable(self, task: Task) -> bool:
        """Return whether a task only waits for a person, so that it can continue later in any process from its recorded steps."""
        log = self._logs.get(task.id)
        if log is None or task.is_lost or task.unsaved or task.row.status != "input_required" or task.row.call.get("resumes") is False:
            return False
        return log.only_waits([str(item.get("step", "")) for item in task.row.asked.values() if is_open(item)])

    async def park(self, task: Task) -> bool:
        """Release a task that waits for a person, and stop it in this process. Return `False` if it must go on, for example with an answer.

        Raises:
            StorageError: The database failed permanently.
        """
        if task.is_lost or not await until_stored(lambda: self._park(task)):
            return False
        task.is_lost = task.is_parked = True
        task.scope.cancel()
        return True

    async def _park(self, task: Task) -> bool:
        return await (await self._records.tasks()).park(task.row)

    def interruptible(self) -> list[Task]:
        """Return the running tasks that may be ended now: they wait for a person, or have no in-flight step that must not run twice."""
        return [self.running[name] for name, log in self._logs.items() if not self._must_finish(name, log) and name in self.running]

    def drain(self) -> None:
        """Stop all tasks from beginning further steps, because the process is stopping."""
        self.is_draining = True
        for log in self._logs.values():
            log.is_draining = True

    def must_finish(self) -> bool:
        """Return whether a step is in flight that must not run twice, in a task that does not wait for a person.

        If so, the process waits for the step, up to a deadline, before it stops.
        """
        return any(self._must_finish(name, log) for name, log in self._logs.items())

    def _must_finish(self, task_id: str, log: StepLog) -> bool:
        return log.has_unrepeatable_step() and not ((task := self.running.get(task_id)) and task.waits_for_input)

    # -- storing -----------------------------------------------------------------------------------------------

    async def _conclude(self, task: Task, result: ToolOutcome | None, problem: Exception | None) -> None:
        """Store the outcome of a task, unless another process has taken the task over.

        `problem` is the exception of the call, or `None`; `result` is `None` if the call raised or was cancelled.
        """
        if task.is_lost:
            self._forget(task)
            task.is_here = False
            task.notify()
            return
        match problem:
            case None if isinstance(result, Complete):
                await self.end(task, {"result": result.result}, "completed")
            case None if result is None and task.refusal:
                await self.end(task, error_outcome(task.refusal), "failed")
            case None if result is None:
                await self.end(task, {}, "cancelled")
            case None:
                await self.end(task, error_outcome("The call became a task of another server."), "failed")
            case _:
                error = failed_call(problem, from_stored(task.row).facts.client.era).error
                await self.end(task, error_outcome(error.message, error.code), "failed")

    async def end(self, task: Task, outcome: JsonObject, status: str) -> None:
        """Store the outcome and final status of a task, and then wake the coroutines that wait for a change of the task.

        If the outcome cannot be stored, the task fails. If the process stops before that, the process that takes the task over ends it.
        """
        for item in task.row.asked.values():
            item.setdefault("answer", {})
        try:
            try:
                await self._store_end(task, outcome, status)
            except (StorageError, TypeError, ValueError) as error:
                logger.error("task outcome could not be stored task=%s tool=%s error=%s", task.id[:6], task.tool, error)
                await self._store_end(task, error_outcome("The outcome could not be stored."), "failed")
        finally:
            self._forget(task)
            self.work.set()
            task.notify()

    async def _store_end(self, task: Task, outcome: JsonObject, status: str) -> None:
        row = dataclasses.replace(task.row, **ended(task.row, outcome, status))
        # The steps of a failed task stay stored, because `moongate tasks retry` continues after the last finished step.
        worked = status == "completed" and not Complete(outcome["result"]).is_error
        if await until_stored(lambda: self._write(row, drop_results=worked)):
            task.row = row
        else:
            task.is_here, task.is_lost = False, True

    async def _write(self, row: TaskRow, *, drop_results: bool = False) -> bool:
        return await (await self._records.tasks()).save(row, owner=row.owner, drop_results=drop_results)

    async def _save(self, task: Task) -> None:
        if self.running.get(task.id) is not task:
            return  # the call is not a stored task yet; `hand_over` stores it
        task.row.updated_at = shared_now()
        self.work.set()
        saved = set(task.unsaved)
        if not await until_stored(lambda: self._write(task.row)):
            self.lose(task)
        else:
            task.unsaved -= saved
            if task.row.is_cancelled:  # another process cancelled the task before this write, so the next lease renewal does not report it
                task.scope.cancel()
        task.notify()
