"""`Hosts`: enters and leaves sources while others work, each in a task of its own.

A source that is released finishes its running calls first, for a while. Which sources there are to be is `servers`' and
`local`'s to say.
"""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from gateway.tools.slot import Usage

logger = logging.getLogger(__name__)


class Holdable(AbstractAsyncContextManager[object], Protocol):
    """A source that is entered and left."""

    @property
    def id(self) -> str:
        """Its name."""
        ...


@dataclass(eq=False, slots=True)
class Held:
    """One source, its running calls and its end."""

    source: Holdable
    timeout_seconds: float
    """How long its running calls are waited for."""
    usage: Usage = field(default_factory=Usage)
    """Its running calls."""
    stop: anyio.Event = field(default_factory=anyio.Event)
    patience: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Ends when its running calls are waited for no longer."""


class Hosts:
    """Enter it before `start`; leaving it leaves every source, all at once."""

    def __init__(self) -> None:
        self._entered: set[Held] = set()
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup

    async def __aenter__(self) -> Hosts:
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(self, *exc: object) -> None:
        for held in self._entered:
            held.patience.cancel()
        await self._stack.aclose()

    async def start(self, held: Held) -> None:
        """Enter a source; returns when it is. What it raises then is the caller's."""
        await self._tasks.start(self._hold, held)

    def release(self, held: Held) -> None:
        """Let a source go as soon as its running calls are over, at the latest after its time."""
        held.stop.set()

    async def _hold(self, held: Held, *, task_status: TaskStatus[None]) -> None:
        self._entered.add(held)
        try:
            async with held.source:
                task_status.started()
                with held.patience:
                    await held.stop.wait()
                    held.patience.deadline = anyio.current_time() + held.timeout_seconds
                    await held.usage.over()
        finally:
            self._entered.discard(held)
        if held.stop.is_set():
            logger.info("source stopped source=%s", held.source.id)
