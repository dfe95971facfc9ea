"""`SourceHost`: starts and stops sources of tools while others run, each in its own asyncio task.

A released source first finishes its in-flight calls, up to its timeout. `remote_servers` and `local_sources` decide which sources exist.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup, TaskStatus

from gateway.gate.concurrency import ActiveCalls

logger = logging.getLogger(__name__)


class HostableSource(AbstractAsyncContextManager[object], Protocol):
    """A source that starts when it is entered as an async context manager, and stops when it is left."""

    @property
    def id(self) -> str:
        """The source's name."""
        ...


SourceT = TypeVar("SourceT", bound=HostableSource, covariant=True)
MadeFromT = TypeVar("MadeFromT", covariant=True)


@dataclass(eq=False, frozen=True, slots=True)
class HostedSource(Generic[SourceT, MadeFromT]):
    """One source with what it was built from, its in-flight calls and its stop signal."""

    source: SourceT
    timeout_seconds: float
    """Grace period for in-flight calls after the release."""
    made_from: MadeFromT
    """The settings from which the source was built; another source replaces it when they change."""
    active: ActiveCalls = field(default_factory=ActiveCalls)
    """The in-flight calls of the source."""
    stop: anyio.Event = field(default_factory=anyio.Event)
    running: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Cancelled when the grace period for in-flight calls ends."""


AnySource = HostedSource[HostableSource, object]
EntryT = TypeVar("EntryT", bound=AnySource)


@dataclass(frozen=True, slots=True)
class Changes(Generic[EntryT]):
    """The sources of a new configuration, compared with the current ones. `table` has all of them, in catalog order."""

    table: Mapping[str, EntryT]
    joining: list[EntryT]
    leaving: list[EntryT]


class HostedTable(Generic[EntryT]):
    """The current sources of one kind. Subclasses compare them with a configuration; `take` and `release` apply the changes."""

    def __init__(self, hosts: SourceHost) -> None:
        """`hosts` runs the sources."""
        self._hosts = hosts
        self._table: Mapping[str, EntryT] = {}

    @property
    def table(self) -> Mapping[str, EntryT]:
        """The current sources by id, in catalog order."""
        return self._table

    def changes(self, table: Mapping[str, EntryT]) -> Changes[EntryT]:
        """Return the difference between `table` and the current sources."""
        joining = [entry for name, entry in table.items() if self._table.get(name) is not entry]
        return Changes(table, joining, [entry for name, entry in self._table.items() if table.get(name) is not entry])

    def take(self, changes: Changes[EntryT]) -> None:
        """Make `changes.table` the current sources."""
        self._table = changes.table

    def release(self, entries: Iterable[EntryT]) -> None:
        """Stop sources when their in-flight calls have ended, at the latest after their `timeoutSeconds`."""
        for entry in entries:
            entry.stop.set()


class SourceHost:
    """Async context manager: enter it before `start`. Leaving it stops every source at once."""

    def __init__(self) -> None:
        self._entered: set[AnySource] = set()
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup

    async def __aenter__(self) -> SourceHost:
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(self, *exc: object) -> None:
        for hosted in self._entered:
            hosted.running.cancel()
        await self._stack.aclose()

    async def start(self, hosted: AnySource) -> None:
        """Start a source and return when it has started. Raises what the source raises on entering."""
        await self._tasks.start(self._hold, hosted)

    async def _hold(self, hosted: AnySource, *, task_status: TaskStatus[None]) -> None:
        self._entered.add(hosted)
        try:
            async with hosted.source:
                task_status.started()
                with hosted.running:
                    await hosted.stop.wait()
                    hosted.running.deadline = anyio.current_time() + hosted.timeout_seconds
                    await hosted.active.over()
        finally:
            self._entered.discard(hosted)
        if hosted.stop.is_set():
            logger.info("source stopped source=%s", hosted.source.id)
