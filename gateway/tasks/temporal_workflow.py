"""`TaskWorkflow`: the Temporal workflow of one task. It decides when an activity runs the task, and knows nothing else about the task.

Temporal replays this code, possibly in another version of Moongate, so it must stay deterministic and compatible with stored histories. It
imports only Temporal and the names of activities and signals. Its history has the id of the task and names of states, and no other data of
the task.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from gateway.tasks.temporal_names import CANCEL_TASK, OVER, QUEUED, RUN_TASK, STATE, WAITING, WAKE, WORKFLOW

HEARTBEAT_TIMEOUT = timedelta(seconds=2.5)
"""Time without a heartbeat after which Temporal has another gateway run the task."""

LONGEST_ATTEMPT = timedelta(days=3650)
"""Temporal requires a limit for an activity; a task may run for any time."""

LONGEST_WAIT = timedelta(hours=1)
"""Longest wait for a signal. Then an activity checks whether the task still waits, because a command line cannot send signals."""

RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=100), backoff_coefficient=2, maximum_interval=timedelta(seconds=2))
"""Attempts of an activity are unlimited: the gateway counts the deaths of a task, and ends it."""


class Attempt(TypedDict):
    """The result of the activity `RUN_TASK`."""

    state: str
    """Final status of the task, or one of the states `QUEUED`, `OVER` and `WAITING` of `temporal_names`."""
    seconds: float
    """For `WAITING`: seconds until the first question of the task expires, so that the task must run again."""


@workflow.defn(name=WORKFLOW)
class TaskWorkflow:
    """Runs a task by an activity, and waits for signals while the task waits for a person."""

    def __init__(self) -> None:
        self._is_due = False
        """Whether the activity must run again, because a signal came since its start."""

    @workflow.signal(name=WAKE)
    def wake(self) -> None:
        """Run the task again after an answer or a cancellation was stored."""
        self._is_due = True

    @workflow.run
    async def run(self, task_id: str) -> str:
        """Run the task with this id until it has ended, and return its final state."""
        try:
            while True:
                self._is_due = False
                attempt = await self._attempt(task_id)
                self._show(attempt["state"])
                if attempt["state"] not in (QUEUED, WAITING):
                    return attempt["state"]
                await self._wait(attempt)
                if workflow.info().is_continue_as_new_suggested():
                    workflow.continue_as_new(task_id)
        except BaseException as error:
            if not is_cancelled_exception(error):
                raise
        # A person cancelled the workflow at Temporal.
        state: str = await workflow.execute_activity(
            CANCEL_TASK, task_id, result_type=str, start_to_close_timeout=timedelta(seconds=30), retry_policy=RETRIES
        )
        self._show(state)
        return state

    async def _attempt(self, task_id: str) -> Attempt:
        self._show("working")
        return await workflow.execute_activity(
            RUN_TASK,
            task_id,
            result_type=Attempt,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            start_to_close_timeout=LONGEST_ATTEMPT,
            retry_policy=RETRIES,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )

    async def _wait(self, attempt: Attempt) -> None:
        seconds = attempt["seconds"] if attempt["state"] == WAITING else LONGEST_WAIT.total_seconds()
        timeout = min(timedelta(seconds=max(seconds, 1.0)), LONGEST_WAIT)
        try:
            await workflow.wait_condition(lambda: self._is_due, timeout=timeout)
        except TimeoutError:
            return

    def _show(self, state: str) -> None:
        """Store the state of the task as a search attribute, if the workflow was started with it."""
        key = SearchAttributeKey.for_keyword(STATE)
        stored = workflow.info().typed_search_attributes.get(key)
        if stored is not None and stored != state and state != OVER:
            changes: list[SearchAttributeUpdate[str]] = [key.value_set(state)]
            workflow.upsert_search_attributes(changes)  # pyright: ignore[reportUnknownMemberType]
