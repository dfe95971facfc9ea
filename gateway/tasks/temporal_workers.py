"""The Temporal workers of a gateway, one for each task queue that it polls (`TemporalWorkers`), and what their activities share.

`temporal_engine` runs them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import anyio
from anyio.abc import TaskGroup
from temporalio import activity
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from gateway.config.temporal_settings import TemporalSettings
from gateway.tasks.temporal_schedule_workflow import ScheduleWorkflow
from gateway.tasks.temporal_workflow import TaskWorkflow

logger = logging.getLogger(__name__)

MAX_ACTIVITIES = 1000
"""Maximum number of tasks of one task queue that one gateway runs at the same time. Limits of callers and sources are checked before."""

CALL_TIMEOUT = timedelta(seconds=5)
"""Maximum time of one request to Temporal."""

WORKFLOW_TASK_TIMEOUT = timedelta(seconds=3)
"""Time after which Temporal gives a step of a workflow to another gateway. The steps take milliseconds."""

HEARTBEAT_SECONDS = 0.5
"""Seconds between two heartbeats of an activity."""

STICKY_TIMEOUT = timedelta(seconds=1)
"""Time after which Temporal stops waiting for the gateway that ran the workflow before, which may be dead."""

RESTART_SECONDS = 5.0
"""Seconds until a worker that failed is started again."""

STOP_SECONDS = 5.0
"""Maximum seconds for which a stopping gateway waits until its worker has reported to Temporal."""

LOOK_SECONDS = 1.0
"""Seconds until the workers follow a change of the configuration that adds or removes a task queue."""


@dataclass(frozen=True, slots=True)
class TaskQueues:
    """The task queues of a gateway."""

    own: str
    """Task queue of tasks whose source names none."""
    of_sources: Callable[[], Set[str]]
    """Returns the task queues that the gateway's sources name now."""

    def polled(self) -> set[str]:
        """Return the task queues whose tasks this gateway runs now."""
        return {self.own, *self.of_sources()}


class TemporalWorkers:
    """Polls the task queues of a gateway. Each task queue has a worker, which is restarted if it fails."""

    def __init__(self, client: Client, settings: TemporalSettings, queues: TaskQueues, activities: Sequence[Callable[..., Any]]) -> None:
        """Store the arguments. `client` is connected, and `activities` are what Temporal may run in this process."""
        self._client = client
        self._settings = settings
        self._queues = queues
        self._activities = activities
        self._running: dict[str, anyio.CancelScope] = {}

    async def run(self) -> None:
        """Run a worker for each task queue until cancelled, and follow changes of the configuration."""
        async with anyio.create_task_group() as group:
            while True:
                self._follow(group, self._queues.polled())
                await anyio.sleep(LOOK_SECONDS)

    def _follow(self, group: TaskGroup, polled: Set[str]) -> None:
        for queue in polled - self._running.keys():
            scope = self._running[queue] = anyio.CancelScope()
            group.start_soon(self._poll, queue, scope)
        for queue in self._running.keys() - polled:
            self._running[queue].cancel()

    async def _poll(self, queue: str, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                while True:
                    try:
                        await self._work(queue)
                    except Exception as error:  # the worker gives up after errors that it takes for permanent, such as a removed namespace
                        address = self._settings.address
                        logger.error("worker of Temporal failed and is started again address=%s queue=%s error=%s", address, queue, error)
                    await anyio.sleep(RESTART_SECONDS)
        finally:
            del self._running[queue]

    async def _work(self, queue: str) -> None:
        """Run a worker until cancelled, or until it fails. Then let it report its activities, at most for `STOP_SECONDS`."""
        worker = Worker(
            self._client,
            task_queue=queue,
            workflows=[TaskWorkflow, ScheduleWorkflow],
            activities=self._activities,
            workflow_runner=UnsandboxedWorkflowRunner(),  # the sandbox loads the workflow's modules again for each workflow
            max_concurrent_activities=MAX_ACTIVITIES,
            max_heartbeat_throttle_interval=timedelta(seconds=HEARTBEAT_SECONDS),
            default_heartbeat_throttle_interval=timedelta(seconds=HEARTBEAT_SECONDS),
            sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
            deployment_config=self._versioning(),
        )
        shield = anyio.CancelScope(shield=True)

        async def work() -> None:
            with shield:
                await worker.run()

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.move_on_after(STOP_SECONDS, shield=True):
                    await worker.shutdown()
                shield.cancel()

    def _versioning(self) -> WorkerDeploymentConfig | None:
        versioning = self._settings.versioning
        if versioning is None:
            return None
        version = WorkerDeploymentVersion(versioning.deployment, versioning.build_id)
        # A task continues in a newer build, because its steps are recorded in the database and not in the workflow.
        return WorkerDeploymentConfig(version, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE)


async def send_heartbeats() -> None:
    """Send heartbeats of the current activity until cancelled. Without them, Temporal gives the activity to another gateway."""
    while True:
        activity.heartbeat()
        await anyio.sleep(HEARTBEAT_SECONDS)


def try_again(text: str) -> ApplicationError:
    """Return an error that lets Temporal repeat an activity. Its text is stored at Temporal, so it must not contain data of a call."""
    return ApplicationError(text, category=ApplicationErrorCategory.BENIGN)
