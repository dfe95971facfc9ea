"""Names of a task at Temporal: workflow, activities, signal, attributes, and the page in the web interface. Imports no Temporal package."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from gateway.config.temporal_settings import TemporalSettings

WORKFLOW = "moongate-task"
"""Name of the workflow type. One workflow runs for each task."""

RUN_TASK = "run_task"
"""Name of the activity that runs a task in a gateway."""

CANCEL_TASK = "cancel_task"
"""Name of the activity that cancels a task, after a person cancelled its workflow at Temporal."""

WAKE = "wake"
"""Name of the signal that an answer or a cancellation was stored."""

PRINCIPAL, SOURCE, TOOL, STATE = "MoongatePrincipal", "MoongateSource", "MoongateTool", "MoongateState"
"""Names of the search attributes of a workflow, all of the type keyword."""

QUEUED, OVER, WAITING = "queued", "over", "input_required"
"""States that `RUN_TASK` returns besides the final statuses of tasks: not allowed to start yet; ended before; waits for a person."""


SCHEDULE_WORKFLOW = "moongate-schedule"
"""Name of the workflow type that starts one call of a schedule (`tasks.schedules`)."""

START_SCHEDULED = "start_scheduled"
"""Name of the activity that stores and starts the task of a scheduled call."""


def schedule_id(queue: str, name: str) -> str:
    """Return the id of a schedule at Temporal. `queue` is the task queue of the gateway, which only its own installation uses."""
    return f"{SCHEDULE_WORKFLOW}-{queue}.{name}"


def is_schedule_of(queue: str, found: str) -> bool:
    """Return whether `found` is the id of a schedule of this installation. Names of schedules have no dot, but task queues may."""
    return found.rpartition(".")[0] == f"{SCHEDULE_WORKFLOW}-{queue}"


def workflow_id(task_id: str) -> str:
    """Return the id of a task's workflow. It is the same at every start, so that a second start has no effect."""
    return f"{WORKFLOW}-{task_id}"


def page(settings: TemporalSettings, task_id: str) -> str:
    """Return the URL of a task's page in Temporal's web interface, or an empty string if `tasks.temporal.ui` is not set."""
    if settings.ui is None:
        return ""
    return f"{settings.ui.rstrip('/')}/namespaces/{quote(settings.namespace, safe='')}/workflows/{workflow_id(task_id)}"
