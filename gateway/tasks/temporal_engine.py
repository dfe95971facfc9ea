"""`TemporalEngine`: a task engine that lets a Temporal server decide which gateway runs a task.

Decided: one workflow for each task, with one activity at a time that runs the whole task in whichever gateway picks it up
(`temporal_workflow`). The activity sends heartbeats; without them, Temporal has another gateway run the task. Each attempt owns the task
under a name of its own (`TaskRow.owner`), so that an attempt which Temporal has given up cannot write to the task. Because: Temporal then
needs to know nothing but the id of the task, and a task that waits for a person occupies no gateway. Instead of: an activity for each step.
Revisit when: steps of one task must run on different machines.

The gateway also holds a lease in its database while it runs tasks (`Lease`). By the leases, any gateway finds tasks that no gateway runs
and that Temporal may not know, such as those of a gateway that died between storing a task and starting its workflow.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from temporalio import activity
from temporalio.client import Client
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from gateway.config.temporal_settings import TemporalSettings
from gateway.errors import StorageError, first_cause
from gateway.storage.record_types import PARKED, ClaimedTask, StrandedTask, TaskRow, is_open
from gateway.storage.records import Records
from gateway.storage.shared_clock import shared_now
from gateway.tasks.stored_call import from_stored, queue_of
from gateway.tasks.task import Task
from gateway.tasks.task_executor import TaskExecutor
from gateway.tasks.temporal_names import (
    CANCEL_TASK,
    OVER,
    PRINCIPAL,
    QUEUED,
    RUN_TASK,
    SOURCE,
    STATE,
    TOOL,
    WAITING,
    WAKE,
    WORKFLOW,
    workflow_id,
)
from gateway.tasks.temporal_schedules import TemporalSchedules
from gateway.tasks.temporal_workers import (
    CALL_TIMEOUT,
    HEARTBEAT_SECONDS,
    WORKFLOW_TASK_TIMEOUT,
    TaskQueues,
    TemporalWorkers,
    send_heartbeats,
    try_again,
)
from gateway.tasks.temporal_workflow import Attempt
from gateway.tools.context import CallContext

logger = logging.getLogger(__name__)

PARK_SECONDS = 2.0
"""Seconds for which a task must only wait for a person before its activity ends."""

REDISPATCH_SECONDS = (5.0, 60.0)
"""Seconds until a task that no gateway runs is dispatched again: at first, and at most after further attempts."""

RETRY_SECONDS = 2.0
"""Seconds until a task is dispatched again that Temporal did not take."""

MAX_CALLS = 100
"""Maximum number of concurrent requests to Temporal."""


class TemporalEngine:
    """Implements `TaskEngine` with a Temporal server."""

    def __init__(
        self,
        executor: TaskExecutor,
        records: Records,
        client: Client,
        settings: TemporalSettings,
        queues: TaskQueues,
        schedules: TemporalSchedules,
        *,
        has_attributes: bool,
    ) -> None:
        """Store the arguments. `client` is connected.

        With `has_attributes`, workflows get search attributes, which the namespace must have; else they get the same values as memo.
        """
        self._executor = executor
        self._records = records
        self._client = client
        self._settings = settings
        self._queues = queues
        self._schedules = schedules
        self._has_attributes = has_attributes
        self._outbox: dict[str, StrandedTask] = {}
        """Tasks whose workflows are to be started or woken now, by id. Without `tool`, the workflow is also woken."""
        self._calls = anyio.CapacityLimiter(MAX_CALLS)
        self._wake_outbox = anyio.Event()
        self._dispatched: dict[str, tuple[float, float]] = {}
        """Tasks that this process dispatched: time of the next attempt by the event loop's clock, and pause before the attempt after it."""
        self._are_queued = False
        self._is_unreachable = False

    @property
    def new_owner(self) -> str:
        """The empty text: a new task belongs to no process until an activity claims it."""
        return ""

    # -- dispatching -------------------------------------------------------------------------------------------

    def dispatch(self, row: TaskRow, ctx: CallContext) -> Task:
        """Have the workflow of a stored task started in the background, and return the state of the task."""
        self._put(StrandedTask(row.id, row.principal, row.tool, not row.admitted_at, queue_of(row)))
        return Task(row)

    def _put(self, task: StrandedTask) -> None:
        if task.is_queued:
            self._are_queued = True
            return
        self._outbox[task.id] = task
        self._wake_outbox.set()

    def has_queued(self) -> bool:
        """Return whether tasks of any process wait until they may start."""
        return self._are_queued

    def admit(self, ids: Sequence[str]) -> None:
        """Have the workflows of tasks started that were just allowed to start. `recover` finds them too, if this process dies now."""
        for task_id in ids:
            self._put(StrandedTask(task_id, "", "", is_queued=False))

    async def recover(self) -> None:
        """Start or wake the workflows of tasks that no living process runs and that do not wait for a person. Raises `StorageError`."""
        if not self._records.is_open and not await anyio.to_thread.run_sync(self._records.has_orphans, shared_now()):
            return
        found = await (await self._records.tasks()).stranded()
        self._are_queued = any(task.is_queued for task in found)
        now = anyio.current_time()
        stranded = {task.id for task in found}
        self._dispatched = {name: times for name, times in self._dispatched.items() if name in stranded or times[0] > now}
        for task in found:
            at, pause = self._dispatched.get(task.id, (0.0, REDISPATCH_SECONDS[0]))
            if not task.is_queued and now >= at:
                self._dispatched[task.id] = (now + pause, min(2 * pause, REDISPATCH_SECONDS[1]))
                await self.wake(task.id)

    def note_outage(self) -> None:
        """Do nothing: to dispatch a running task again has no effect."""

    async def wake(self, task_id: str) -> None:
        """Have the workflow of a task signalled in the background, and started if necessary. `recover` repeats a signal that is lost."""
        self._put(StrandedTask(task_id, "", "", is_queued=False))

    async def _start(self, task: StrandedTask, *, wakes: bool) -> None:
        """Start the workflow of a task, unless it runs already, and signal it if `wakes`. An unreachable server is noted in the task."""
        pairs = {PRINCIPAL: task.principal, SOURCE: task.tool.partition("__")[0], TOOL: task.tool, STATE: "working"}
        # An eager start runs the workflow in this process, although Temporal may have another build as the current one.
        is_eager = self._settings.versioning is None
        options: dict[str, Any] = {"start_signal": WAKE} if wakes else {"request_eager_start": is_eager}
        if self._has_attributes:
            keys = [SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in pairs.items()]
            options["search_attributes"] = TypedSearchAttributes(keys)
        else:
            options["memo"] = {name: value for name, value in pairs.items() if name != STATE}
        try:
            await self._client.start_workflow(
                WORKFLOW,
                task.id,
                id=workflow_id(task.id),
                task_queue=task.queue or self._queues.own,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                task_timeout=WORKFLOW_TASK_TIMEOUT,
                rpc_timeout=CALL_TIMEOUT,
                **options,
            )
        except RPCError as error:
            self._dispatched[task.id] = (anyio.current_time() + RETRY_SECONDS, REDISPATCH_SECONDS[0])
            await self._note_unreachable(task, error)
            return
        self._is_unreachable = False

    async def _note_unreachable(self, task: StrandedTask, error: RPCError) -> None:
        if not self._is_unreachable:
            logger.warning("task refused by Temporal address=%s status=%s", self._settings.address, error.status.name)
        self._is_unreachable = True
        message = f"Waiting for Temporal at {self._settings.address}, which does not take tasks now ({error.status.name})"
        await (await self._records.tasks()).note(task.id, message)

    # -- background work ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Start workflows of new tasks, and run the activities that Temporal gives to this process, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._empty_outbox, group)
            with suppress(StorageError):
                await self._records.tasks()  # to open the database takes a second at first, and the first task should not wait for it
            group.start_soon(self._schedules.run)
            activities = [self._run_task, self._cancel_task, self._schedules.start_scheduled]
            await TemporalWorkers(self._client, self._settings, self._queues, activities).run()

    async def _empty_outbox(self, group: TaskGroup) -> None:
        while True:
            await self._wake_outbox.wait()
            self._wake_outbox = anyio.Event()
            tasks, self._outbox = self._outbox, {}
            for task in tasks.values():
                group.start_soon(self._send, task)

    async def _send(self, task: StrandedTask) -> None:
        wakes = not task.tool
        self._dispatched.setdefault(task.id, (anyio.current_time() + REDISPATCH_SECONDS[0], REDISPATCH_SECONDS[0]))
        try:
            async with self._calls:
                if wakes and (row := await (await self._records.tasks()).get(task.id)) is not None:
                    task = StrandedTask(row.id, row.principal, row.tool, is_queued=False, queue=queue_of(row))
                await self._start(task, wakes=wakes)
        except Exception as error:  # `recover` dispatches the task again, and other tasks must not wait for this one
            logger.warning("task not dispatched, it is tried again task=%s error=%s", task.id[:6], error)

    # -- activities --------------------------------------------------------------------------------------------

    @activity.defn(name=RUN_TASK)
    async def _run_task(self, task_id: str) -> Attempt:
        """Run a task in this process, until it has ended or only waits for a person."""
        try:
            return await self._attempt(task_id)
        except ApplicationError:
            raise
        except Exception as error:  # its text may have data of the task, which Temporal must not store
            logger.warning("task not run, it is tried again task=%s error=%s", task_id[:6], first_cause(error))
            raise try_again("The gateway could not run the task; see its log.") from None

    @activity.defn(name=CANCEL_TASK)
    async def _cancel_task(self, task_id: str) -> str:
        """Cancel a task whose workflow a person cancelled at Temporal, and return its status."""
        try:
            rows = await self._records.tasks()
            await rows.cancel(task_id)
            row = await rows.get(task_id)
        except StorageError:
            raise try_again("The database of the gateway did not answer.") from None
        return OVER if row is None else row.status

    async def _attempt(self, task_id: str) -> Attempt:
        executor = self._executor
        if executor.is_draining or executor.is_stopping:
            raise try_again("The gateway is stopping.")
        running = executor.running.get(task_id)
        kept = running.row.owner if running is not None and not running.is_lost else ""
        claim: ClaimedTask | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(send_heartbeats)  # a busy database may need longer than the heartbeat timeout
            claim = await self._claim(task_id, kept)
            group.cancel_scope.cancel()
        if claim is None:
            ended = await (await self._records.tasks()).get(task_id)
            return Attempt(state=ended.status if ended is not None and ended.gone_at else OVER, seconds=0)
        row = claim.row
        if row.owner == PARKED:
            return self._waiting(row.asked)
        if not row.admitted_at:
            return Attempt(state=QUEUED, seconds=0)
        if row.owner == claim.before and row.owner != kept:
            # On a busy machine heartbeats are late although the task runs. To take it over would put its step in doubt.
            raise try_again("Another gateway still runs the task.")
        if row.owner == kept and running is not None:
            task = running  # Temporal gave up an attempt of this process, such as after an outage of its own, but the task still runs
        elif claim.before:
            task = await executor.resume(row)
        else:
            task = executor.launch(row, from_stored(row))
        return await self._follow(task)

    async def _claim(self, task_id: str, kept: str) -> ClaimedTask | None:
        """Make this attempt the owner of a task, unless its owner is `kept`, an earlier attempt that still runs in this process."""
        executor = self._executor
        await executor.lease.refresh()
        owner = f"{executor.lease.owner}.{secrets.token_hex(6)}"
        expired_at = shared_now() - executor.settings.ask_timeout_seconds
        rows = await self._records.tasks()
        return await rows.claim(task_id, owner=owner, kept=kept, lease_seconds=executor.lease.seconds, expired_at=expired_at)

    async def _follow(self, task: Task) -> Attempt:
        """Send heartbeats until a task no longer runs in this process. If it only waits for a person, release it."""
        executor, parkable_at, waiting = self._executor, float("inf"), Attempt(state=WAITING, seconds=0)
        try:
            while executor.running.get(task.id) is task:
                activity.heartbeat()
                with anyio.move_on_after(HEARTBEAT_SECONDS):
                    await task.changed.wait()
                parkable_at = min(parkable_at, anyio.current_time() + PARK_SECONDS) if executor.is_parkable(task) else float("inf")
                if anyio.current_time() >= parkable_at:
                    waiting = self._waiting(task.row.asked)  # before the task withdraws its questions because it stops
                    await executor.park(task)
        except anyio.get_cancelled_exc_class():
            details = activity.cancellation_details()
            if details is None or not (details.cancel_requested or details.worker_shutdown):
                raise  # Temporal gave up this attempt; the task goes on until another attempt claims it
            if details.cancel_requested:
                await self._cancel_running(task)
            while executor.running.get(task.id) is task:
                with anyio.move_on_after(HEARTBEAT_SECONDS):
                    await task.changed.wait()
        if task.is_parked:
            return waiting
        if not task.is_over:
            raise try_again("Another gateway continues the task.")
        return Attempt(state=task.status, seconds=0)

    async def _cancel_running(self, task: Task) -> None:
        """Cancel a task of this process, because a person cancelled its workflow at Temporal."""
        await (await self._records.tasks()).cancel(task.id)
        task.scope.cancel()

    def _waiting(self, asked: Mapping[str, Any]) -> Attempt:
        """Return the state of a task that waits for a person, with the seconds until its first question expires."""
        timeout = self._executor.settings.ask_timeout_seconds
        ends = [item.get("at", shared_now()) + timeout for item in asked.values() if is_open(item)]
        return Attempt(state=WAITING, seconds=max(min(ends, default=shared_now()) - shared_now(), 0.0))
