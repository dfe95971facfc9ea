"""`live`: what a run reports, as a stream of events that arrive while it goes on.

Decided: the run is a task of its own, made with plain asyncio (the file is exempt from "anyio only"). Because: a stream
is iterated by code that may stop anywhere and close it from another task, and executors run concurrently behind it; a
task group held open across the `yield`s of a generator breaks the cancel scopes of whoever iterates. Instead of: events
handed out a round at a time. Revisit when: anyio offers a task that belongs to an object.

The task lives as long as the generator: closing it, cancelling its consumer or dropping it cancels the run and waits for
its end. Nothing is buffered: a run waits until its event is taken, so a consumer that stops has stopped the run there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import anyio

from gateway.workflows.events import WorkflowEvent
from gateway.workflows.runner import OnEvent


class _Handover:
    """Events on their way from the run to its consumer: one future for each that waits, and one for the consumer."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[WorkflowEvent[Any], asyncio.Future[None]]] = deque()
        self._ready: asyncio.Future[None] | None = None

    async def give(self, event: WorkflowEvent[Any]) -> None:
        """Return when the consumer has it."""
        taken: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((event, taken))
        self.wake()
        await taken

    def wake(self, _: object = None) -> None:
        """Let the consumer look."""
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    async def take(self, task: asyncio.Task[None]) -> WorkflowEvent[Any] | None:
        """The next event; `None` when the run is over."""
        while True:
            while self._waiting:
                event, taken = self._waiting.popleft()
                if not taken.done():  # otherwise whoever gave it was cancelled meanwhile
                    taken.set_result(None)
                    return event
            if task.done():
                return None
            self._ready = self._loop.create_future()
            await self._ready


async def live(run: Callable[[OnEvent], Awaitable[None]]) -> AsyncGenerator[WorkflowEvent[Any], None]:
    """The events that `run` reports to the function it is given; then whatever it raises."""
    handover = _Handover()

    async def work() -> None:
        await run(handover.give)

    task = asyncio.create_task(work())
    task.add_done_callback(handover.wake)
    try:
        while (event := await handover.take(task)) is not None:
            yield event
        await task
    finally:
        if not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # taken note of: where it matters, it was raised above
