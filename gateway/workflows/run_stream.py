"""`stream_run`: an async generator that does a workflow run and yields the run's events while the run continues.

Decided: the run is a separate asyncio task (this file is exempt from the rule "anyio only"). Because: the consumer may stop at any event,
and close the generator from another task. A task group that is open across the `yield`s of a generator breaks the consumer's cancel scopes.
Instead of: yielding the events of each superstep together. Revisit when: anyio has tasks that belong to an object.

The task lives as long as the generator: closing or dropping the generator, or cancelling its consumer, cancels the run and waits for its
end. Events are not buffered: the run waits until each event is consumed, so a consumer that pauses also pauses the run.
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
    """Passes events from the task of a workflow run to the consumer of its event stream. `send` waits until the event is received."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[WorkflowEvent[Any], asyncio.Future[None]]] = deque()
        self._ready: asyncio.Future[None] | None = None

    async def send(self, event: WorkflowEvent[Any]) -> None:
        """Send an event to the consumer, and return when the consumer has received it."""
        taken: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((event, taken))
        self.wake()
        await taken

    def wake(self, _: object = None) -> None:
        """Wake the consumer that waits in `receive`, because an event was sent or the run has ended."""
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    async def receive(self, task: asyncio.Task[None]) -> WorkflowEvent[Any] | None:
        """Wait for the next event and return it; return `None` when `task`, which does the run, has ended."""
        while True:
            while self._waiting:
                event, taken = self._waiting.popleft()
                if not taken.done():  # `taken` is done already if the sender was cancelled
                    taken.set_result(None)
                    return event
            if task.done():
                return None
            self._ready = self._loop.create_future()
            await self._ready


async def stream_run(
    workflow: Runnable, request: RunRequest, log: EventLog, *, slot: RunSlot | None = None
) -> AsyncGenerator[WorkflowEvent[Any], None]:
    """Do a run of the workflow and yield its events, which are also added to `log`. At the end, raise the exception of the run, if any.

    `slot` is the permission for this run, if the caller already has it; a workflow permits one run at a time.
    """
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
            task.exception()  # marks the exception as retrieved, so that asyncio does not log "exception was never retrieved"


def start_run(
    workflow: Runnable, request: RunRequest, slot: RunSlot, *, stream: bool, include_status_events: bool
) -> Awaitable[WorkflowRunResult] | EventStream:
    """Return an awaitable with the result of a workflow run, or a stream of the run's events if `stream` is true.

    The run begins when the result is awaited, or the stream is first read. `slot` is the permission for this run; a workflow permits one
    run at a time.
    """
    log = EventLog()

    def result() -> WorkflowRunResult:
        return WorkflowRunResult.of(log.events, include_status_events=include_status_events)

    async def collect() -> WorkflowRunResult:
        await workflow.perform(request, log, slot=slot)
        return result()

    return ResponseStream(stream_run(workflow, request, log, slot=slot), lambda _: result()) if stream else collect()
