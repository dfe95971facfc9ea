"""Chooses the task engine of `tasks.engine`. `app` calls this at the start of the gateway."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial

from gateway.config.models import TaskSettings
from gateway.errors import ConfigError
from gateway.tasks.local_engine import LocalEngine
from gateway.tasks.scheduled_start import StartScheduled, no_schedules
from gateway.tasks.task_engine import MakeEngine

INSTALL = 'tasks.engine: "temporal" needs the package `temporalio`: pip install "moongate[temporal]"'


def no_queues() -> set[str]:
    """Return the empty set: no source has a task queue of its own."""
    return set()


async def choose_engine(
    settings: TaskSettings,
    gateway: str,
    *,
    queues: Callable[[], Set[str]] = no_queues,
    start_scheduled: StartScheduled = no_schedules,
    dispatches: bool = True,
) -> MakeEngine:
    """Return the function that creates the engine of a process. For `temporal`, connect to the server first.

    `gateway` is the id of the gateway, from which the default task queue has its name. `queues` returns the task queues at Temporal of the
    sources that the gateway has now, and `start_scheduled` starts the call of a schedule (`tasks.schedules`). If `dispatches` is false, a
    process with the engine `temporal` does not connect. It runs the tasks of its own calls, and leaves all other tasks to the gateways.

    Raises:
        ConfigError: The package of Temporal is not installed, or the server cannot be used.
    """
    if settings.engine == "local":
        return LocalEngine
    if not dispatches:
        return partial(LocalEngine, takes_over=False)
    try:
        from gateway.tasks.temporal_connection import connect
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "temporalio":
            raise
        raise ConfigError(INSTALL, path="tasks.engine") from None
    connection = await connect(settings, settings.temporal.task_queue or f"moongate-{gateway}", queues, start_scheduled)
    return connection.make_engine
