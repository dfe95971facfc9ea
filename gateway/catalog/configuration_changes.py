"""`ConfigurationChanges`: applies a changed configuration, changed files and changed skills of servers to a running gateway.

Each change is applied first to the sources (`configured_sources`), then to the catalog. `app` creates the object; `config.reload` decides
when the configuration is applied again, `local_files` when changed files are, and `shared_skills` when changed skills are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from gateway.catalog import Catalog
from gateway.catalog.configured_sources import ConfiguredSources
from gateway.catalog.inspection import Inspection
from gateway.catalog.shared_skills import SharedSkills
from gateway.config.load import LoadedConfig
from gateway.config.reload import fixed_changes, with_fixed
from gateway.telemetry.gateway_events import EventStream
from gateway.upstream.readiness import Readiness
from gateway.upstream.source import UpstreamSource

if TYPE_CHECKING:
    from gateway.catalog.remote_skills import RemoteSkills

logger = logging.getLogger(__name__)


class ConfigurationChanges:
    """Applies changes to the sources and the catalog of one gateway, one change at a time."""

    def __init__(
        self,
        sources: ConfiguredSources,
        inspection: Inspection,
        catalog: Catalog,
        readiness: Readiness,
        events: EventStream,
        tasks: TaskGroup,
        describe: Callable[[], None],
    ) -> None:
        """Store the arguments.

        `describe` updates the instructions that new clients receive. `events` receives an event for each command that waits until a person
        accepts it, or was accepted. `tasks` runs the work that a change starts in the background.
        """
        self._sources = sources
        self._inspection = inspection
        self._catalog = catalog
        self._readiness = readiness
        self._events = events
        self._tasks = tasks
        self._describe = describe
        self._lock = anyio.Lock()
        self.shared = SharedSkills(catalog, self._serve_remote)
        """Lists the skills of remote servers, also again after changes. Its `run` must be running."""

    async def apply(self, written: LoadedConfig) -> bool:
        """Apply `written`, a new version of the configuration, to the running gateway.

        Servers whose entry and policy did not change keep their connection. Removed and changed servers finish their in-flight calls.
        Returns the setting `server.reload` of `written`: whether the gateway reacts to further changes of the configuration file.

        Raises:
            ConfigError: The configuration cannot be used; nothing was changed.
        """
        async with self._lock:
            return await self._apply(written)

    async def _apply(self, written: LoadedConfig) -> bool:
        sources, running = self._sources, self._sources.loaded
        for path in fixed_changes(running.config, written.config):
            logger.warning("setting changed, restart the gateway to apply it path=%s", path)
        loaded = await anyio.to_thread.run_sync(sources.acceptance.admit, with_fixed(running, written), running)
        planned = await sources.plan(loaded, self.shared.remote)
        servers, local = planned.servers, planned.local
        sources.acceptance.emit_events(self._events)
        sources.take(planned)
        await sources.servers.start(servers.joining)
        sources.offer_own()
        await self._catalog.arrange(sources.entries())
        sources.release(planned)
        self.shared.wake()
        self._describe()
        self._tasks.start_soon(self._inspection.note_own_rules)
        for server in servers.joining:
            self._tasks.start_soon(self.note_ready, server.source)
        for note in (*loaded.problems, *loaded.notes):
            logger.info("configuration note text=%s", note)
        joining, leaving = [*local.joining, *servers.joining], [*local.leaving, *servers.leaving]
        came, went = (",".join(s.source.id for s in hosted) or "none" for hosted in (joining, leaving))
        logger.info("configuration reloaded started=%s stopped=%s", came, went)
        return loaded.config.server.reload

    async def apply_files(self) -> None:
        """Reload the agents, workflows and Python functions whose files have changed, and update the catalog of tools."""
        sources = self._sources
        async with self._lock:
            local = await sources.local.prepare(sources.loaded, self.shared.remote)
            sources.acceptance.emit_events(self._events)
            sources.local.take(local)
            sources.register_secrets()
            sources.offer_own()
            await self._catalog.arrange(sources.entries())
            sources.local.release(local.leaving)
        self._describe()
        self._tasks.start_soon(self._inspection.note_own_rules)
        logger.info("changed files loaded sources=%s", ",".join(joined.source.id for joined in local.joining))

    async def _serve_remote(self, remote: RemoteSkills) -> None:
        """Publish changed skills of remote servers in the source `skill`, which contains all skills, local and remote.

        Without local skills this source exists only while a remote server has skills. If it is added or removed, the catalog is updated.
        """
        sources = self._sources
        async with self._lock:
            changes = await sources.local.share(sources.loaded, remote)
            if changes is not None:
                await self._catalog.arrange(sources.entries())
                sources.local.release(changes.leaving)
        self._describe()

    async def note_ready(self, upstream: UpstreamSource) -> None:
        """Wait until a server has connected or failed to connect, then publish its skills, and log the faults of its policy."""
        await upstream.settled()
        await self.shared.read_server(upstream)
        self._inspection.note_rules_of(upstream)
        self._describe()
        self._readiness.skip(upstream.id)
