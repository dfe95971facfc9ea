"""`BackgroundWork`: agent runs in the background, which continue after the tool call that started them has returned.

The runs are asyncio tasks outside of any task group, because a task group would wait until its runs have ended. `BackgroundAgentsProvider`
owns the runs; closing the provider cancels the runs that have not ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from gateway.errors import CODE_ERRORS, AgentError, GatewayError, without_exit
from gateway.types.responses import AgentResponse

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""Time limit, in seconds, for background runs to end after they were cancelled."""


class BackgroundWork:
    """The background runs of agents that one session started, by task number."""

    def __init__(self) -> None:
        self._tasks: dict[int, asyncio.Task[AgentResponse]] = {}

    @property
    def running(self) -> int:
        """The number of background runs that have not ended."""
        return sum(not task.done() for task in self._tasks.values())

    def start(self, number: int, run: Callable[[], Awaitable[AgentResponse]]) -> None:
        """Start an agent's run in the background under a task number. It runs until it ends, or until `drop` or `aclose` cancels it."""
        self._tasks[number] = asyncio.create_task(_made_and_awaited(run))

    def has_run(self, number: int) -> bool:
        """Return whether this process has started a run with this task number and not dropped it."""
        return number in self._tasks

    def outcome(self, number: int) -> AgentResponse | str | None:
        """Return the response of the run with this task number, or its error as text; `None` while the run has not ended."""
        task = self._tasks[number]
        if not task.done():
            return None
        if task.cancelled():
            return "Task was canceled."
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, GatewayError):
            return str(error)
        logger.warning("background agent failed error=%s", type(error).__name__, exc_info=error)
        return type(error).__name__

    async def first_of(self, numbers: Collection[int]) -> None:
        """Wait until one of the runs with these task numbers has ended. Cancelling the wait does not cancel the runs."""
        waited = [self._tasks[number] for number in numbers if number in self._tasks]
        if waited:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)

    def drop(self, number: int) -> None:
        """Remove the run with this task number, and cancel it if it has not ended."""
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()

    async def aclose(self) -> None:
        """Cancel all background runs that have not ended, and wait until they end, at most `CLOSE_SECONDS`."""
        tasks = [task for task in self._tasks.values() if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)


async def _made_and_awaited(run: Callable[[], Awaitable[AgentResponse]]) -> AgentResponse:
    try:
        return await run()
    except CODE_ERRORS as error:
        raise without_exit(error, lambda text: AgentError(f"The agent failed: {text}")) from error.__cause__
