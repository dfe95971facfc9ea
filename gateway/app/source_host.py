"""`SourceHost`: enters and leaves sources while others run, each in a task of its own.

A released source first finishes its running calls, up to its timeout. `remote_servers` and `local_sources` decide which sources exist.
"""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from gateway.gate.slot import Usage

logger = logging.getLogger(__name__)


class HostableSource(AbstractAsyncContextManager[object], Protocol):
    """A source that can be entered and left."""

    @property
    def id(self) -> str:
        """The source's name."""
        ...


@dataclass(eq=False, slots=True)
class HostedSource:
    """One source, its running calls and its end."""

    source: HostableSource
    timeout_seconds: float
    """Grace period of its running calls after its release."""
    usage: Usage = field(default_factory=Usage)
    """Its running calls."""
    stop: anyio.Event = field(default_factory=anyio.Event)
    patience: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Cancelled when the grace period of its running calls ends."""


class SourceHost:
    """Enter it before `start`; leaving it leaves every source at once."""

    def __init__(self) -> None:
        self._entered: set[HostedSource] = set()
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup

    async def __aenter__(self) -> SourceHost:
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(self, *exc: object) -> None:
        for held in self._entered:
            held.patience.cancel()
        await self._stack.aclose()

    async def start(self, held: HostedSource) -> None:
        """Enter a source and wait until it is entered. An exception of the source is raised here."""
        await self._tasks.start(self._hold, held)

    def release(self, held: HostedSource) -> None:
        """Leave a source when its running calls have finished, at the latest after its timeout."""
        held.stop.set()

    async def _hold(self, held: HostedSource, *, task_status: TaskStatus[None]) -> None:
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
