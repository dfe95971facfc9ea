"""`SourceHost`: starts and stops sources of tools, each in its own asyncio task, while other sources keep running.

A source that is stopped first finishes its in-flight calls, for at most its timeout. The modules `remote_servers` and `local_sources`
decide which sources exist.
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
    """Protocol: a source of tools that starts when it is entered as an async context manager, and stops when it is left."""

    @property
    def id(self) -> str:
        """Id of the source, for example the name of its server in the configuration."""
        ...


SourceT = TypeVar("SourceT", bound=HostableSource, covariant=True)
MadeFromT = TypeVar("MadeFromT", covariant=True)


@dataclass(eq=False, frozen=True, slots=True)
class HostedSource(Generic[SourceT, MadeFromT]):
    """A source of tools together with the settings from which it was built, its in-flight calls and its stop signal."""

    source: SourceT
    timeout_seconds: float
    """Seconds for which in-flight calls may continue after `stop` is set."""
    made_from: MadeFromT
    """The settings from which the source was built. A new source replaces this source when the settings change."""
    active: ActiveCalls = field(default_factory=ActiveCalls)
    """Counts the in-flight calls of the source."""
    stop: anyio.Event = field(default_factory=anyio.Event)
    running: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Cancel scope in which the source runs. Cancelling the scope stops the source; its deadline is set when `stop` is set."""


AnySource = HostedSource[HostableSource, object]
EntryT = TypeVar("EntryT", bound=AnySource)


@dataclass(frozen=True, slots=True)
class Changes(Generic[EntryT]):
    """The difference between the sources of a new configuration and the current sources.

    `table` maps ids to all sources of the new configuration, in catalog order; `joining` are the new sources among them; `leaving` are the
    current sources that are removed or replaced.
    """

    table: Mapping[str, EntryT]
    joining: list[EntryT]
    leaving: list[EntryT]


class HostedTable(Generic[EntryT]):
    """Base class of tables of current sources: the remote servers, or the local sources (skills, functions, agents, workflows).

    Subclasses compare the current sources with a configuration; `take` and `release` apply the changes.
    """

    def __init__(self, hosts: SourceHost) -> None:
        """Create an empty table. `hosts` starts and stops the sources."""
        self._hosts = hosts
        self._table: Mapping[str, EntryT] = {}

    @property
    def table(self) -> Mapping[str, EntryT]:
        """The current sources by id, in catalog order."""
        return self._table

    def changes(self, table: Mapping[str, EntryT]) -> Changes[EntryT]:
        """Return the difference between `table`, the sources of a new configuration by id, and the current sources."""
        joining = [entry for name, entry in table.items() if self._table.get(name) is not entry]
        return Changes(table, joining, [entry for name, entry in self._table.items() if table.get(name) is not entry])

    def take(self, changes: Changes[EntryT]) -> None:
        """Replace the current sources with `changes.table`. No source is started or stopped."""
        self._table = changes.table

    def release(self, entries: Iterable[EntryT]) -> None:
        """Signal sources to stop. Each source stops when its in-flight calls have ended, at the latest after its `timeout_seconds`."""
        for entry in entries:
            entry.stop.set()


class SourceHost:
    """Runs sources of tools, each in its own task, inside an async context manager. Leaving the context stops all sources at once."""

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
        """Start a source in a task, and return when it has started. Raises the exceptions of the source's `__aenter__`."""
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
