"""`StartScheduled`: the function by which a task engine starts the calls of `tasks.schedules`. The package `server` provides it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.errors import GatewayError

LATEST_START_SECONDS = 3600.0
"""Seconds after the scheduled time within which the call of a schedule may start. If it cannot start until then, it is left out."""

StartScheduled = Callable[[str, str], Awaitable[str]]
"""Async function that stores and starts the task of a scheduled call, and returns the id of the task.

Its arguments are the name of the schedule, and the id of this run of the schedule. With the same id, it returns the same task.

Raises:
    UnknownSchedule: The configuration of this gateway has no such schedule.
    NotFound: The tool is unknown, perhaps because its server is starting.
    ScheduleRefused: The call may not be made.
    StorageError: The task cannot be stored, or the API keys cannot be read.
"""


class UnknownSchedule(GatewayError):
    """The configuration of this gateway does not have a schedule that Temporal started. Another gateway may have it."""


class ScheduleRefused(GatewayError):
    """The call of a schedule may not be made. The message names the reason and the fix, for the log; `reason` has no data of the call."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


async def no_schedules(schedule: str, run: str) -> str:
    """Raise `UnknownSchedule`: the `StartScheduled` function of a process without schedules."""
    raise UnknownSchedule(f"Unknown schedule {schedule!r}.")
