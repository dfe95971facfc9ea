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
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import anyio

from gateway.workflows.events import WorkflowEvent
from gateway.workflows.runner import OnEvent


async def live(run: Callable[[OnEvent], Awaitable[None]]) -> AsyncGenerator[WorkflowEvent[Any], None]:
    """The events that `run` reports to the function it is given; then whatever it raises."""
    send, receive = anyio.create_memory_object_stream[WorkflowEvent[Any]](0)

    async def work() -> None:
        async with send:
            await run(send.send)

    task = asyncio.create_task(work())
    try:
        async with receive:
            async for event in receive:
                yield event
        await task
    finally:
        if not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # taken note of: where it matters, it was raised above
