"""`stream_run`: the events of a run as an async generator that yields them while the run continues.

Decided: the run is a task of its own, made with plain asyncio (the file is exempt from "anyio only"). Because: the consumer may stop
anywhere, and close the generator from another task. A task group held open across the `yield`s of a generator breaks the consumer's
cancel scopes. Instead of: yielding the events of each round together. Revisit when: anyio has tasks that belong to an object.

The task lives as long as the generator: closing or dropping the generator, or cancelling its consumer, cancels the run and waits for its
end. Events are not buffered: a run waits until its event is consumed, so a consumer that stops also stops the run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable
from typing import Any

import anyio

from gateway.types.streams import ResponseStream
from gateway.workflows.events import EventLog, WorkflowEvent, WorkflowRunResult
from gateway.workflows.run_lock import RunSlot
from gateway.workflows.run_request import RunRequest
from gateway.workflows.runnable import Runnable

EventStream = ResponseStream[WorkflowEvent[Any], WorkflowRunResult]


class _EventChannel:
    """Passes events from the run to its consumer without a buffer."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[WorkflowEvent[Any], asyncio.Future[None]]] = deque()
        self._ready: asyncio.Future[None] | None = None

    async def send(self, event: WorkflowEvent[Any]) -> None:
        """Hand an event to the consumer, and return when the consumer has received it."""
        taken: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((event, taken))
        self.wake()
        await taken

    def wake(self, _: object = None) -> None:
        """Wake the consumer, because an event or the end of the run has arrived."""
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    async def receive(self, task: asyncio.Task[None]) -> WorkflowEvent[Any] | None:
        """Return the next event, or `None` when `task`, the run, has ended."""
        while True:
            while self._waiting:
                event, taken = self._waiting.popleft()
                if not taken.done():  # it is done if the sender was cancelled
                    taken.set_result(None)
                    return event
            if task.done():
                return None
            self._ready = self._loop.create_future()
            await self._ready


async def stream_run(
    workflow: Runnable, request: RunRequest, log: EventLog, *, slot: RunSlot | None = None
) -> AsyncGenerator[WorkflowEvent[Any], None]:
    """Do a run and yield its events, which are also added to `log`; then raise what the run raised."""
    channel = _EventChannel()
    log.emit = channel.send
    task = asyncio.create_task(workflow.perform(request, log, is_streaming=True, slot=slot))
    task.add_done_callback(channel.wake)
    try:
        while (event := await channel.receive(task)) is not None:
            yield event
        await task
    finally:
        if not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # marks it as retrieved, so that asyncio does not log it


def start_run(
    workflow: Runnable, request: RunRequest, slot: RunSlot, *, stream: bool, include_status_events: bool
) -> Awaitable[WorkflowRunResult] | EventStream:
    """Return the awaitable result of a run that holds `slot`; with `stream`, a stream of its events.

    The run begins with the first await.
    """
    log = EventLog()

    def result() -> WorkflowRunResult:
        return WorkflowRunResult.of(log.events, include_status_events=include_status_events)

    async def collect() -> WorkflowRunResult:
        await workflow.perform(request, log, slot=slot)
        return result()

    return ResponseStream(stream_run(workflow, request, log, slot=slot), lambda _: result()) if stream else collect()
