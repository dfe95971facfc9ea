"""`TaskRunner`: runs calls behind their requests, keeps them, and takes over those of processes that died.

It is given the way to make a call, and keeps status, questions and outcome. A process that runs tasks holds a lease; a tick renews it
and reads answers and cancels that other processes stored. Beside it turns are given and orphans looked for.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread

from gateway.auth.principal import Principal
from gateway.config.models import TaskSettings
from gateway.errors import GatewayError, NotFound, PolicyDenied, StorageError, TaskError, UpstreamRefused, text_for_caller
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.turns import choose_next
from gateway.storage.entries import Choose, Steps, TaskRow, is_answer_to
from gateway.storage.records import Records
from gateway.storage.retry import RETRY_SECONDS, until_stored
from gateway.tasks.answers import OpenQuestion, await_verdicts, open_questions, usable_answers
from gateway.tasks.attending import Attended, Work
from gateway.tasks.caller import TaskCaller
from gateway.tasks.port import STEPS_VERSION, StepLog
from gateway.tasks.rights import KEY_GONE, CallerNow, known_caller, refuse_unadmitted, unjudged
from gateway.tasks.stored import INTERNAL, ended, error_outcome, from_stored, request_key, to_stored
from gateway.tasks.task import Task, TaskKind
from gateway.tools.base import Complete, TaskStarted, ToolOutcome
from gateway.tools.context import CallContext, Caller, ClientProfile

logger = logging.getLogger(__name__)

MAX_TTL_SECONDS = 24 * 3600.0
"""Longest time a client may have a finished task kept, where the configuration's own is not longer."""

MAX_KEPT_PER_PRINCIPAL = 256
"""Finished tasks of one principal that are kept; the oldest give way."""

LEASE_SECONDS = 2.5
"""How long a process may be silent before others take its tasks over."""

LATE_FACTOR = 3.0
"""How much longer the lease is than it would be, for each second that it is renewed late."""

MAX_LATE_SECONDS = 5.0
"""Most that counts as late, also after a machine's sleep."""

MAX_DEATHS = 20
"""Processes that may die while one task works; then the task is taken for their cause (`TaskRow.deaths`)."""

ADOPT_AT_ONCE = 16
"""Orphans taken over in one look."""

SOURCE_WAIT_SECONDS = 60.0
"""How long a task that was taken over waits for its tool to be there: servers connect after a start."""

SWEEP_SECONDS = 60.0
"""How often tasks past their time are removed."""

DRAIN_LOOK_SECONDS = 0.02
"""How often a runner that stops looks whether the last step has ended."""

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
        settings: TaskSettings | None = None,
        ask_timeout_seconds: float = 3600.0,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """`records` is opened with the first task, or when there is an orphan. The lease is the same in all processes.

        `ask_timeout_seconds` is how long a client that waits for its call has to answer.
        """
        self._group = group
        self._records = records
        self._call = call
        self.settings = settings or TaskSettings()
        self._live_timeout = ask_timeout_seconds
        self._lease = lease_seconds
        self._tick_seconds = lease_seconds / 5
        self._owner = secrets.token_hex(12)
        self._here: dict[str, Task] = {}
        self._wake = anyio.Event()
        self._renewing = anyio.Lock()
        self._renewed_at = float("-inf")
        self._late = 0.0
        self._adopts_from = float("-inf")
        self._doubtful: set[str] = set()
        self._is_stopping = False
        self._logs: dict[str, StepLog] = {}
        """Of what runs here, by task."""
        self._is_draining = False
        self._caller_now: CallerNow = unjudged

    def judge_callers_by(self, caller_now: CallerNow) -> None:
        """Have `caller_now` judge the caller of a task before the task is taken up, and before each of its steps."""
        self._caller_now = caller_now

    # -- what the server asks for ------------------------------------------------------------------------------

    async def start(
        self, tool: str, arguments: JsonObject, ctx: CallContext, *, ttl_seconds: float | None = None, kind: TaskKind | None = None
    ) -> Task:
        """Run a call in the background, when its turn comes; the task is on disk before this returns.

        A request that its caller sends again under the same idempotency key gives the task that it made the first time.

        Raises:
            TaskError: The principal has too many unfinished tasks, or uses the key for another call.
            StorageError: It cannot be kept.
        """
        row = self._new_row(tool, arguments, ctx, ttl_seconds, kind or TaskKind())
        row.message = "Waiting for its turn"
        if known := await self._add(row, choose_next):
            return await self._same(known, row)
        if row.admitted_at:
            row.message = ""
        return self._launch(row, ctx)

    async def attend(
        self, tool: str, arguments: JsonObject, ctx: CallContext, work: Work, *, kind: TaskKind | None = None
    ) -> ToolOutcome | Task:
        """Run a call whose client waits for it and has no tasks: its outcome, or the task it became because it took too long.

        Within `tasks.inlineSeconds` it is a plain call: it costs no storage, its questions go to the client, it ends when the
        client cancels it. Raises what `work` raises. Where it cannot be stored the client goes on waiting.
        """
        row = self._new_row(tool, arguments, ctx, None, kind or TaskKind())
        if row.request_key and (known := await (await self._records.tasks()).made_by(row.principal, row.request_key)):
            return await self._same(known, row)
        task = Task(row)
        log = StepLog.noting(row.id, self._records, self._owner, lambda: self._lose(task), lambda: self._goes_on(task))
        caller = self._caller(task, ctx.client, live=ctx.caller)
        inner = dataclasses.replace(
            ctx, caller=caller, takes_tasks=False, durable=log.port(), ask_timeout_seconds=self.settings.ask_timeout_seconds
        )
        log.ask, log.standing = dataclasses.replace(inner, durable=None), caller
        log.before_step = partial(self._admit_step, task, ctx.principal)
        call = Attended(task, log, caller)
        self._group.start_soon(self._run_attended, call, work, inner)
        seconds = self.settings.inline_seconds
        try:
            became_task = await call.wait(float("inf") if seconds is None else seconds, lambda: self._hand_over(call))
        except anyio.get_cancelled_exc_class():
            task.scope.cancel()
            raise
        return task if became_task else call.result()

    async def find(self, task_id: str, principal: str) -> Task:
        """A task of `principal`.

        Raises:
            NotFound: Unknown, expired, or somebody else's: the three are never told apart.
        """
        task = self._here.get(task_id)
        if task is None or task.is_lost:  # another process runs it now
            task = Task(row) if (row := await (await self._records.tasks()).get(task_id)) is not None else None
        if task is None or task.principal != principal:
            raise NotFound("task", "")
        return task

    async def all_of(self, principal: str) -> list[Task]:
        """The tasks of `principal`, oldest first."""
        here = {task.id: task for task in self._here.values() if not task.is_lost}
        return [here.get(row.id) or Task(row) for row in await (await self._records.tasks()).all_of(principal)]

    async def moved(self, task: Task) -> Task:
        """The task after its next change, or after a moment where another process runs it."""
        if task.is_here and not task.is_over:
            await task.moved.wait()
            return task
        await anyio.sleep(self._tick_seconds / 2)
        return await self.find(task.id, task.principal)

    async def answer(self, task: Task, responses: Mapping[str, JsonValue]) -> None:
        """Hand over answers to open questions; answers under other keys are ignored.

        The task gets an answer once it is stored. If one does not fit its form or cannot be stored, all questions stay open.

        Raises:
            AnswerRefused: An answer does not fit its question, or the task's work refused it, which leaves that question open.
            StorageError: They cannot be stored.
        """
        rows = await self._records.tasks()
        stored = await rows.get(task.id)  # another process may run the task, and have asked since
        usable = usable_answers(Task(stored), responses) if stored is not None else {}
        row = await rows.answer(task.id, usable) if usable else None
        if row is not None and (here := self._here.get(task.id)) is not None:  # `task` may be a copy from before this process ran it
            self._hear(here, row)
        await await_verdicts(rows, row, usable)

    async def questions(self, task: Task) -> list[OpenQuestion]:
        """What the task waits for, in its client and on the list of approvals. Raises `StorageError`."""
        return await open_questions(self._records, task)

    async def cancel(self, task: Task) -> Task:
        """Stop a task and wait until it stopped; one that is over stays as it is."""
        await (await self._records.tasks()).cancel(task.id)
        task.scope.cancel()
        while not task.is_over:
            task = await self.moved(task)
        return task

    def callers(self) -> set[str]:
        """For whom something runs here."""
        return {task.principal for task in self._here.values() if not task.is_over}

    def end(self, principals: Collection[str]) -> None:
        """End the tasks that run here for callers whose API keys are gone. They fail as soon as their work has stopped."""
        for task in [task for task in self._here.values() if task.principal in principals and not task.is_over]:
            task.refuse(KEY_GONE)

    async def end_unadmitted(self) -> None:
        """End the tasks here whose callers lost the right to them (`refuse_unadmitted`), but for those that must end a step first."""
        idle = [name for name, log in self._logs.items() if not self._must_end(name, log)]
        await refuse_unadmitted([self._here[name] for name in idle if name in self._here], self._caller_now)

    async def drain(self, seconds: float) -> None:
        """The process is about to stop: begin nothing more, and let what must not be done twice end, for so long at most.

        What waits for a person is not waited for.
        """
        self._is_draining = True
        for log in self._logs.values():
            log.begins_none = True
        with anyio.move_on_after(seconds):
            while any(self._must_end(name, log) for name, log in self._logs.items()):  # noqa: ASYNC110
                await anyio.sleep(DRAIN_LOOK_SECONDS)

    def _must_end(self, task_id: str, log: StepLog) -> bool:
        """Whether a step is under way that must not be done twice, unless it waits for a person."""
        return log.holds_up() and not ((task := self._here.get(task_id)) and task.is_asking)

    async def run(self) -> None:
        """Keep the lease, hear what came in elsewhere, give turns, take over orphans and forget what is old, until cancelled."""
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._keep_lease)  # nothing that waits for its turn at the database may hold this up
                both.start_soon(self._notice_stop)
                await self._keep_house()
        finally:
            await self._let_go()

    async def _notice_stop(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self._is_stopping = True

    async def _keep_lease(self) -> None:
        while True:
            try:
                await self._tick()
            except StorageError as error:
                self._adopts_from = float("inf")
                logger.warning("tasks: the database did not answer: %s", error)
            await anyio.sleep(self._tick_seconds)

    async def _keep_house(self) -> None:
        looked_at, swept_at = float("-inf"), anyio.current_time()
        while True:
            try:
                self._wake = anyio.Event()
                if self._is_draining:
                    await anyio.sleep_forever()
                await self._give_turns()
                if anyio.current_time() - looked_at >= 2 * self._tick_seconds:
                    looked_at = anyio.current_time()
                    await self._discard()
                    await self._adopt()
                if self._records.is_open and anyio.current_time() - swept_at >= SWEEP_SECONDS:
                    swept_at = anyio.current_time()
                    await (await self._records.tasks()).sweep()
            except StorageError as error:
                self._adopts_from = float("inf")
                logger.warning("tasks: the database did not answer: %s", error)
                await anyio.sleep(self._tick_seconds)
            with anyio.move_on_after(self._tick_seconds):
                await self._wake.wait()

    # -- inside ------------------------------------------------------------------------------------------------

    def _new_row(self, tool: str, arguments: JsonObject, ctx: CallContext, ttl_seconds: float | None, kind: TaskKind) -> TaskRow:
        call = {**to_stored(arguments, ctx, resumes=kind.resumes), "steps": STEPS_VERSION}
        longest = max(MAX_TTL_SECONDS, self.settings.ttl_seconds)
        row = TaskRow(secrets.token_hex(16), ctx.principal.id, tool, call, min(ttl_seconds or self.settings.ttl_seconds, longest))
        row.owner, row.request_key = self._owner, request_key(ctx)
        settings = self.settings
        mine: JsonObject = {"scope": f"caller:{ctx.principal.id}", "running": settings.max_running_per_caller}
        row.limits = [{**mine, "perMinute": settings.starts_per_minute_per_caller}, *kind.limits]
        return row

    async def _same(self, task_id: str, row: TaskRow) -> Task:
        """The task that a request made, for the same request sent again."""
        task = await self.find(task_id, row.principal)
        if (task.tool, task.row.call["arguments"]) != (row.tool, row.call["arguments"]):
            raise TaskError(f"The idempotency key of this call was used for another call before, of {task.tool!r}; use a new one.")
        return task

    async def _add(self, row: TaskRow, choose: Choose | None, steps: Steps | None = None) -> str:
        rows = await self._records.tasks()
        if anyio.current_time() - self._renewed_at > self._lease / 2:
            await self._renew()
        try:
            return await rows.add(
                row, max_open=self.settings.max_per_caller, max_kept=MAX_KEPT_PER_PRINCIPAL, choose=choose, steps=steps
            )
        except StorageError:
            self._doubtful.add(row.id)  # it may have been committed all the same, and nobody will ever ask for it
            raise

    def _caller(self, task: Task, client: ClientProfile, *, live: Caller | None = None) -> TaskCaller:
        seconds = self.settings.ask_timeout_seconds
        return TaskCaller(
            task, client, self._save, ask_timeout_seconds=seconds, live=live, live_timeout_seconds=self._live_timeout
        )

    def _launch(self, row: TaskRow, ctx: CallContext) -> Task:
        task = self._here[row.id] = Task(row, is_here=True)
        self._group.start_soon(self._run, task, ctx)
        return task

    async def _run(self, task: Task, ctx: CallContext) -> None:
        """The task-runner boundary: whatever happens becomes the task's end."""
        try:
            await self._run_to_end(task, ctx)
        finally:
            self._logs.pop(task.id, None)

    async def _run_to_end(self, task: Task, ctx: CallContext) -> None:
        result: ToolOutcome | None = None
        problem: Exception | None = None
        try:
            with task.scope:
                try:
                    result = await self._work(task, ctx)
                except Exception as error:  # the task-runner boundary
                    problem = error
        except BaseException:
            self._here.pop(task.id, None)  # the process ends: others may go on with it
            raise
        await self._conclude(task, result, problem)

    async def _run_attended(self, call: Attended, work: Work, ctx: CallContext) -> None:
        try:
            await call.run(work, ctx)
        except BaseException:
            self._here.pop(call.task.id, None)
            raise
        finally:
            self._logs.pop(call.task.id, None)
        if call.is_task:
            await self._conclude(call.task, call.outcome, call.error)

    async def _hand_over(self, call: Attended) -> bool:
        """Make a task of a call that still runs; False where it goes on as it is, or has just ended."""
        task, live = call.task, call.caller.leave()

        async def store(steps: Steps) -> None:
            if await self._add(task.row, None, steps):
                raise TaskError("The same request made a task meanwhile.")

        try:
            with anyio.CancelScope(shield=True):
                await call.log.write(store)
        except (StorageError, TaskError) as error:
            logger.warning("%s takes long, and cannot go on as a task: %s", task.tool, error)
            call.caller.come_back(live)
            return False
        task.is_here = call.is_task = True
        if call.done.is_set():
            await self._conclude(task, call.outcome, call.error)
            return False
        self._here[task.id], self._logs[task.id] = task, call.log
        if task.is_asking:
            await self._save(task)
        return True

    async def _conclude(self, task: Task, result: ToolOutcome | None, problem: Exception | None) -> None:
        if task.is_lost:
            self._here.pop(task.id, None)
            task.is_here = False
            task.touch()
            return
        match problem:
            case None if isinstance(result, Complete):
                await self._end(task, {"result": result.result}, "completed")
            case None if result is None and task.refusal:
                await self._end(task, error_outcome(INTERNAL, task.refusal), "failed")
            case None if result is None:
                await self._end(task, {}, "cancelled")
            case None:
                await self._end(task, error_outcome(INTERNAL, "The call became a task of another server."), "failed")
            case UpstreamRefused():
                await self._end(task, error_outcome(problem.code, str(problem)), "failed")
            case GatewayError():
                await self._end(task, error_outcome(INTERNAL, text_for_caller(problem)), "failed")
            case _:
                logger.error("task of %s failed", task.tool, exc_info=problem)
                await self._end(task, error_outcome(INTERNAL, "Internal error"), "failed")

    async def _work(self, task: Task, ctx: CallContext) -> Complete | TaskStarted:
        row = task.row
        while not row.admitted_at:
            await task.moved.wait()
        steps = await until_stored(lambda: self._steps(row.id)) if row.attempts > 1 else {}
        if row.deaths >= MAX_DEATHS:
            raise GatewayError(f"The gateway died {MAX_DEATHS} times while this ran, so it is not tried again.")
        log = StepLog(row.id, steps, self._records, self._owner, lambda: self._lose(task), lambda: self._goes_on(task))
        log.version = row.call.get("steps", 1)
        self._logs[row.id], log.begins_none = log, self._is_draining
        settled: dict[str, Any] = {"takes_tasks": False, "in_task": True, "log_level": None, "durable": log.port()}
        seconds = self.settings.ask_timeout_seconds
        caller = self._caller(task, ctx.client)
        if row.attempts > 1 and caller.resume(log.version):
            await self._save(task)
        inner = dataclasses.replace(ctx, caller=caller, wants_progress=True, ask_timeout_seconds=seconds, **settled)
        log.ask, log.standing = dataclasses.replace(inner, durable=None), caller
        deadline = anyio.current_time() + (SOURCE_WAIT_SECONDS if row.attempts > 1 else 0)
        while True:
            try:
                now = await known_caller(self._caller_now, row.tool, ctx.principal)
                log.before_step = partial(self._admit_step, task, now)
                return await self._call(row.tool, row.call["arguments"], dataclasses.replace(inner, principal=now))
            except NotFound as error:
                if error.kind != "tool" or anyio.current_time() >= deadline:
                    raise
            await anyio.sleep(RETRY_SECONDS)

    async def _admit_step(self, task: Task, principal: Principal) -> None:
        """Return if the task's caller still has the right to the task, and end the task otherwise."""
        try:
            await known_caller(self._caller_now, task.tool, principal)
        except (PolicyDenied, NotFound) as error:
            logger.warning("task %s of %s is ended: %s", task.id[:6], task.tool, error)
            task.refuse(str(error))
            await anyio.sleep_forever()

    async def _steps(self, task_id: str) -> Steps:
        return await (await self._records.tasks()).steps(task_id)

    async def _end(self, task: Task, outcome: JsonObject, status: str) -> None:
        """Store how it ended; only then it is told. Where the process stops first, the next start finds the steps and ends it again."""
        for item in task.row.asked.values():
            item.setdefault("answer", {})
        try:
            try:
                await self._store_end(task, outcome, status)
            except (StorageError, TypeError, ValueError) as error:
                logger.error("task %s of %s ended, and its outcome cannot be stored: %s", task.id[:6], task.tool, error)
                await self._store_end(task, error_outcome(INTERNAL, "The outcome could not be stored."), "failed")
        finally:
            self._here.pop(task.id, None)
            self._wake.set()
            task.touch()

    async def _store_end(self, task: Task, outcome: JsonObject, status: str) -> None:
        row = dataclasses.replace(task.row, **ended(task.row, outcome, status))
        # What a call did that failed is kept with it: `moongate tasks retry` goes on from there.
        worked = status == "completed" and not Complete(outcome["result"]).is_error
        if await until_stored(lambda: self._write(row, drop_results=worked)):
            task.row = row
        else:
            task.is_here, task.is_lost = False, True

    async def _write(self, row: TaskRow, *, drop_results: bool = False) -> bool:
        return await (await self._records.tasks()).save(row, owner=self._owner, drop_results=drop_results)

    async def _save(self, task: Task) -> None:
        if task.id not in self._here:
            return  # it is being made a task of just now
        task.row.updated_at = time.time()
        self._wake.set()
        saved = set(task.unsaved)
        if not await until_stored(lambda: self._write(task.row)):
            self._lose(task)
        else:
            task.unsaved -= saved
            if task.row.is_cancelled:  # through another process, while this was on its way: the tick will not see it any more
                task.scope.cancel()
        task.touch()

    def _lose(self, task: Task) -> None:
        if task.is_lost:
            return
        logger.warning("task %s is run by another process now", task.id[:6])
        task.is_lost = True
        task.scope.cancel()

    def _goes_on(self, task: Task) -> bool:
        """Of a task whose work was cancelled: whether another process has it or will have it."""
        is_left = task.is_lost or (self._is_stopping and not task.scope.cancel_called)
        return is_left and task.row.call.get("resumes") is not False

    def _hear(self, task: Task, row: TaskRow) -> None:
        """Take what came in through the database."""
        task.row.updated_at = max(row.updated_at, task.row.updated_at)
        changed = bool(row.admitted_at) and not task.row.admitted_at
        if changed:
            task.row.admitted_at, task.row.message = row.admitted_at, ""
        for key, item in row.asked.items():
            if (mine := task.row.asked.get(key)) is not None and "answer" not in mine and is_answer_to(item, mine):
                mine["answer"] = item["answer"]
                changed = True
        if row.is_cancelled and not task.is_over:
            task.row.is_cancelled = True
            task.scope.cancel()
        if changed:
            task.settle()
            task.touch()

    async def _tick(self) -> None:
        known = {name: task.row.updated_at for name, task in self._here.items()}
        if not known:
            return
        held, changed = await self._renew(known)
        for row in changed:
            if row.id in self._here:
                self._hear(self._here[row.id], row)
        for task in [task for name, task in self._here.items() if name in known and name not in held]:
            self._lose(task)

    async def _renew(self, known: Mapping[str, float] | None = None) -> tuple[set[str], list[TaskRow]]:
        """Renew the lease. A process that has little of its machine gets to it late, so it asks for more time."""
        async with self._renewing:
            began = anyio.current_time()
            late = began - self._renewed_at - self._tick_seconds if known else 0.0
            self._late = min(max(late, self._late * 0.9), MAX_LATE_SECONDS)
            seconds = self._lease + LATE_FACTOR * self._late
            found = await (await self._records.tasks()).renew(known or {}, owner=self._owner, lease_seconds=seconds)
            self._renewed_at = began
            return found

    async def _discard(self) -> None:
        """Forget what was refused to its caller because of an error after which nobody knew whether it was stored."""
        if doubtful := list(self._doubtful):
            await (await self._records.tasks()).discard(doubtful, owner=self._owner)
            self._doubtful.difference_update(doubtful)

    async def _give_turns(self) -> None:
        """Let tasks begin whose turn it is; those of other processes hear of it at their next tick."""
        if not any(not task.row.admitted_at for task in self._here.values()):
            return
        for task_id in await (await self._records.tasks()).admit(choose_next):
            if (task := self._here.get(task_id)) is not None:
                task.row.admitted_at, task.row.message = time.time(), ""
                task.touch()

    async def _adopt(self) -> None:
        if not await anyio.to_thread.run_sync(self._records.has_orphans, time.time()):
            return
        rows = await self._records.tasks()
        are_there = await rows.any_orphans(owner=self._owner)
        if self._adopts_from == float("inf"):
            # The database is there again: who could not renew gets the time for it before what it runs counts as orphaned.
            self._adopts_from = anyio.current_time() + self._lease
        if not are_there or anyio.current_time() < self._adopts_from:
            return
        await self._renew()
        for row in await rows.take_over(owner=self._owner, limit=ADOPT_AT_ONCE):
            if row.is_cancelled:
                await self._end(Task(row), {}, "cancelled")
                continue
            if row.admitted_at and row.call.get("resumes") is False:
                text = "The gateway stopped while this ran, and its tasks are not resumed (`tasks.resume` of its source)."
                await self._end(Task(row), error_outcome(INTERNAL, text), "failed")
                continue
            logger.info("task %s of %s is taken up again", row.id[:6], row.tool)
            self._launch(row, from_stored(row))

    async def _let_go(self) -> None:
        """Others may take over at once what this process leaves behind."""
        if not self._records.is_open:
            return
        with anyio.move_on_after(2, shield=True):
            while self._here:  # noqa: ASYNC110  # what was cancelled with this still puts down what it did
                await anyio.sleep(0.01)
        with anyio.move_on_after(2, shield=True):
            try:
                await (await self._records.tasks()).release(owner=self._owner)
            except StorageError as error:
                logger.warning("tasks could not be let go of: %s", error)
