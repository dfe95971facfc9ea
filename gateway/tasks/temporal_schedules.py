"""`TemporalSchedules`: stores the schedules of `tasks.schedules` at Temporal, and starts their calls when Temporal asks for it.

Decided: a schedule starts a small workflow that knows only the name of the schedule, and its activity stores the task in a gateway.
Because: arguments and keys then stay in the configuration and the database, and the call passes the same policies as every other call.
Instead of: a schedule that starts the workflow of a task, which needs a task that is already stored. Revisit when: Temporal can start
activities by itself.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from datetime import timedelta

import anyio
from temporalio import activity
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from gateway.config.schedule_settings import ScheduledCall
from gateway.errors import NotFound, first_cause
from gateway.tasks.scheduled_start import LATEST_START_SECONDS, ScheduleRefused, StartScheduled, UnknownSchedule
from gateway.tasks.temporal_names import SCHEDULE_WORKFLOW, START_SCHEDULED, is_schedule_of, schedule_id
from gateway.tasks.temporal_workers import CALL_TIMEOUT, WORKFLOW_TASK_TIMEOUT, send_heartbeats, try_again

logger = logging.getLogger(__name__)

RETRY_SECONDS = (2.0, 60.0)
"""Seconds until the schedules are stored again if Temporal does not answer: at first, and at most."""

TOOL_WAIT_SECONDS = 60.0
"""Seconds for which a scheduled call waits for its tool, because servers connect after the gateway starts."""

LATEST_START = timedelta(seconds=LATEST_START_SECONDS)


class TemporalSchedules:
    """Keeps the schedules of one gateway at Temporal as they are configured, and has the activity that starts their calls."""

    def __init__(self, client: Client, address: str, queue: str, calls: Mapping[str, ScheduledCall], start: StartScheduled) -> None:
        """Store the arguments. `queue` is the task queue of the gateway. `start` starts the call of a schedule."""
        self._client = client
        self._address = address
        self._queue = queue
        self._calls = {name: call for name, call in calls.items() if call.enabled}
        self._start = start

    # -- storing the schedules ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Create, update and delete the schedules at Temporal, so that they are those of the configuration. Retry until that succeeded."""
        pause, is_logged = RETRY_SECONDS[0], False
        while True:
            try:
                return await self._apply()
            except Exception as error:  # the gateway serves calls without its schedules
                if not is_logged:
                    reason = error.status.name if isinstance(error, RPCError) else error
                    logger.warning("schedules not stored at Temporal, tried again address=%s reason=%s", self._address, reason)
                is_logged = True
            await anyio.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS[1])

    async def _apply(self) -> None:
        for name, call in self._calls.items():
            try:
                await self._store(name, call)
            except RPCError as error:
                if error.status != RPCStatusCode.INVALID_ARGUMENT:
                    raise
                place = f"tasks.schedules.{name}"
                logger.error("schedule refused by Temporal, correct its entry entry=%s reason=%s", place, error.message)
        wanted = {schedule_id(self._queue, name) for name in self._calls}
        async for found in await self._client.list_schedules(rpc_timeout=CALL_TIMEOUT):
            if is_schedule_of(self._queue, found.id) and found.id not in wanted:
                await self._delete(found.id)

    async def _store(self, name: str, call: ScheduledCall) -> None:
        schedule = self._schedule(name, call)
        try:
            await self._client.create_schedule(schedule_id(self._queue, name), schedule, rpc_timeout=CALL_TIMEOUT)
            logger.info("schedule created at Temporal schedule=%s", name)
        except ScheduleAlreadyRunningError:

            def changed(current: ScheduleUpdateInput) -> ScheduleUpdate:
                # A person may have paused the schedule at Temporal.
                return ScheduleUpdate(dataclasses.replace(schedule, state=current.description.schedule.state))

            await self._client.get_schedule_handle(schedule_id(self._queue, name)).update(changed, rpc_timeout=CALL_TIMEOUT)

    def _schedule(self, name: str, call: ScheduledCall) -> Schedule:
        every = [] if call.every_seconds is None else [ScheduleIntervalSpec(every=timedelta(seconds=call.every_seconds))]
        action = ScheduleActionStartWorkflow(
            SCHEDULE_WORKFLOW,
            name,
            id=schedule_id(self._queue, name),
            task_queue=self._queue,
            execution_timeout=LATEST_START,
            task_timeout=WORKFLOW_TASK_TIMEOUT,
            memo={"schedule": name},
        )
        spec = ScheduleSpec(cron_expressions=call.crons, intervals=every, time_zone_name=call.time_zone)
        return Schedule(action, spec, SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=LATEST_START))

    async def _delete(self, found: str) -> None:
        try:
            await self._client.get_schedule_handle(found).delete(rpc_timeout=CALL_TIMEOUT)
            logger.info("schedule deleted at Temporal, it is no longer configured id=%s", found)
        except RPCError as error:  # Temporal lists a deleted schedule for some time, and another gateway may have deleted it
            if error.status != RPCStatusCode.NOT_FOUND:
                raise

    # -- starting the calls ------------------------------------------------------------------------------------

    @activity.defn(name=START_SCHEDULED)
    async def start_scheduled(self, schedule: str) -> str:
        """Store and start the task of a scheduled call, and return its id. A repeated activity returns the same task."""
        info = activity.info()
        try:
            return await self._beating(schedule, info.workflow_run_id or info.workflow_id or "")
        except ScheduleRefused as error:
            logger.error("scheduled call refused schedule=%s reason=%s", schedule, error)
            raise ApplicationError(error.reason, non_retryable=True) from None
        except UnknownSchedule:
            if info.attempt == 1:
                logger.warning("scheduled call waits for a gateway whose configuration has it schedule=%s", schedule)
            raise try_again("The configuration of this gateway does not have the schedule.") from None
        except NotFound as error:
            if time.time() - info.scheduled_time.timestamp() < TOOL_WAIT_SECONDS:
                raise try_again("The tool is not available yet.") from None
            reason = f"{error}. Correct tasks.schedules.{schedule}.tool, or check that the server of the tool runs"
            logger.error("scheduled call refused schedule=%s reason=%s", schedule, reason)
            raise ApplicationError("The tool of the schedule does not exist; see the log of the gateway.", non_retryable=True) from None
        except Exception as error:  # its text may have data of the call, which Temporal must not store
            logger.warning("scheduled call not started, it is tried again schedule=%s error=%s", schedule, first_cause(error))
            raise try_again("The gateway could not start the call; see its log.") from None

    async def _beating(self, schedule: str, run: str) -> str:
        """Start the call of a schedule, and send heartbeats meanwhile. Raises the errors of `StartScheduled`."""
        started, problem = "", None
        async with anyio.create_task_group() as group:
            group.start_soon(send_heartbeats)
            try:
                started = await self._start(schedule, run)
            except Exception as error:
                problem = error
            group.cancel_scope.cancel()
        if problem is not None:
            raise problem
        logger.info("scheduled call started schedule=%s task=%s", schedule, started[:6])
        return started
