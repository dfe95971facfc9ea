"""A real gateway with one alteration, which the variable `ALTERED` names: `python -m tests.tasks.altered_gateway` with its arguments.

`dies`: it kills itself between storing the task of a scheduled call and reporting the task to Temporal.
`hasty`: it waits one second for the tool of a scheduled call.
"""

from __future__ import annotations

import os

from gateway.__main__ import main
from gateway.server.scheduled_calls import ScheduledCalls
from gateway.tasks import temporal_schedules
from tests.tasks.dying import die

store = ScheduledCalls.start


async def store_and_die(self: ScheduledCalls, schedule: str, run: str) -> str:
    """Store the task, then die."""
    await store(self, schedule, run)
    die()
    return ""


if __name__ == "__main__":
    if os.environ["ALTERED"] == "dies":
        ScheduledCalls.start = store_and_die
    else:
        temporal_schedules.TOOL_WAIT_SECONDS = 1.0
    main()
