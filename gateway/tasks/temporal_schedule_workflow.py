"""`ScheduleWorkflow`: the Temporal workflow that starts one call of `tasks.schedules`. It knows only the name of the schedule.

Temporal replays this code, possibly in another version of Moongate, so it must stay deterministic and compatible with stored histories. Its
history has the name of the schedule and the id of the task, and no data of the call.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from gateway.tasks.temporal_names import SCHEDULE_WORKFLOW, START_SCHEDULED

START_TIMEOUT = timedelta(minutes=2)
"""Maximum time of one attempt. A gateway that has just started first waits for its servers, until it knows the tool."""

HEARTBEAT_TIMEOUT = timedelta(seconds=2.5)
"""Time without a heartbeat after which Temporal has another gateway start the call."""

RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=200), backoff_coefficient=2, maximum_interval=timedelta(seconds=30))
"""Attempts are repeated until the workflow ends by its time limit, which the schedule sets."""


@workflow.defn(name=SCHEDULE_WORKFLOW)
class ScheduleWorkflow:
    """Lets a gateway store and start the task of a scheduled call."""

    @workflow.run
    async def run(self, schedule: str) -> str:
        """Have the call of the schedule with this name started, and return the id of its task."""
        return await workflow.execute_activity(
            START_SCHEDULED,
            schedule,
            result_type=str,
            start_to_close_timeout=START_TIMEOUT,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES,
        )
