"""The configuration in use, with the sources of tools that were built from it (`ConfiguredSources`), and its changes.

`app` prepares the sources when the gateway starts. `ConfigurationChanges` applies a change first to the sources, then to the catalog.
`config.reload` decides when the configuration is applied again, `local_files` when changed files are, and `shared_skills` when changed
skills are. `inspection` reports the state of the sources.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from gateway.access.decisions import AccessRules
from gateway.access.principal_rights import Access, compile_access
from gateway.catalog import Catalog
from gateway.catalog.gateway_source import SOURCE_ID, UNLIMITED_BYTES, GatewaySource
from gateway.catalog.local_sources import LocalSource, LocalSources
from gateway.catalog.remote_servers import Server, Servers
from gateway.catalog.rule_findings import log_faults, log_own_faults, server_remarks
from gateway.catalog.shared_skills import SharedSkills
from gateway.catalog.source_host import Changes
from gateway.catalog.source_listing import CatalogEntry
from gateway.config.load import LoadedConfig
from gateway.config.reload import Reloader, fixed_changes, with_fixed
from gateway.gate.acceptance import Acceptance
from gateway.gate.concurrency import ActiveCalls
from gateway.policy.approval_policy import may_need_approval, with_script_approval
from gateway.telemetry.gateway_events import EventStream
from gateway.telemetry.logging import SecretMask
from gateway.tools.base import Source, ToolSource
from gateway.upstream.lock_file import LockFile
from gateway.upstream.pins import Pins
from gateway.upstream.readiness import Readiness
from gateway.upstream.source import UpstreamSource

if TYPE_CHECKING:
    from gateway.catalog.remote_skills import RemoteSkills

logger = logging.getLogger(__name__)

Plan = tuple[Pins, Changes[Server], Changes[LocalSource], AccessRules | None]
"""What `ConfiguredSources.plan` prepares: accepted tool definitions, changes of servers and local sources, and the rules of `access`."""


@dataclass(eq=False)
class ConfiguredSources:
    """The configuration in use, and the sources of tools that were built from it: remote servers, local sources, and the gateway's own.

    To apply a configuration, call `plan` and `take`, start the new servers, and call `offer_own`, in this order.
    """

    loaded: LoadedConfig
    """The configuration in use. `take` replaces it."""
    acceptance: Acceptance
    """Decides which commands of the configuration may run."""
    local: LocalSources
    """The sources of skills, functions, agents and workflows."""
    servers: Servers
    """The remote MCP servers."""
    own: GatewaySource
    """The tools and resources about the gateway itself."""
    mask: SecretMask
    """Masks the secrets of the configuration and of agents in all output."""
    reloader: Reloader | None = None
    """Reads the configuration file again after changes; `None` if the gateway does not follow its file."""
    access: Access = field(default_factory=Access)
    """Gives callers their rights by the section `access` of the configuration."""
    lock: LockFile = field(init=False)
    """The lock file of the configuration, which contains the accepted tool definitions (pins).

    The gateway runs the method `run` of this object in a task, which reads the file again after each change."""

    def __post_init__(self) -> None:
        self.lock = LockFile(self._pin_again)

    async def plan(self, loaded: LoadedConfig, remote: RemoteSkills | None = None) -> Plan:
        """Build the sources that are new or changed in the configuration `loaded`, and start the local sources among them.

        `remote` has the skills of remote servers. Returns what `take` applies.

        Raises:
            ConfigError: The lock file of the configuration, or a Cedar file, cannot be read, or the section `access` has an error.
        """
        rules = await anyio.to_thread.run_sync(compile_access, loaded.config.access, loaded.base_dir)
        pins = await self.lock.read(loaded)
        return pins, await self.servers.plan(loaded, pins), await self.local.prepare(loaded, remote), rules

    def take(
        self, loaded: LoadedConfig, pins: Pins, servers: Changes[Server], local: Changes[LocalSource], rules: AccessRules | None
    ) -> None:
        """Make the configuration `loaded`, with the sources and rules that `plan` returned, current."""
        self.loaded = loaded
        self.access.renew(rules)
        self.local.take(local)
        self.register_secrets()
        self.servers.take(servers)
        self.servers.pin(pins)

    def register_secrets(self) -> None:
        """Mask the secrets of the configuration and of its agents from now on."""
        for secret in (*self.loaded.secrets, *self.local.secrets()):
            self.mask.register_secret(secret)

    def offer_own(self) -> None:
        """Set the optional tools of the gateway itself that the configuration and its agents need."""
        config = self.loaded.config
        is_on_demand = any(config.policy(name).disclosure == "on-demand" for name in (*config.mcp_servers, *self.local.table))
        self.own.offer(on_demand=is_on_demand, with_sessions=self.local.has_sessions, with_reviews=may_need_approval(config))

    def entries(self) -> list[CatalogEntry]:
        """Return one catalog entry per source of tools: built-in tools, local sources, then servers in the order of the configuration."""
        unlimited = {"max_result_bytes": UNLIMITED_BYTES, "max_kept_bytes": UNLIMITED_BYTES}
        own = self.loaded.config.policy(SOURCE_ID).model_copy(update=unlimited)
        entries = [CatalogEntry(self.own, own, "", self.own, is_local=True)]
        entries += [self._entry(local.source, local.active, is_local=True) for local in self.local.table.values()]
        entries += [self._entry(server.source, server.active, is_local=False) for server in self.servers.table.values()]
        return entries

    def _entry(self, source: ToolSource, active: ActiveCalls, *, is_local: bool) -> CatalogEntry:
        policy = self.loaded.config.policy(source.id)
        if source.id == "skill":
            policy = with_script_approval(policy, self.loaded.config.skills.scripts)
        full: Source | None = source if hasattr(source, "read") else None  # pyright: ignore[reportAssignmentType]  # `read` makes it a `Source`
        return CatalogEntry(source, policy, self.loaded.config.prefix_of(source.id), full, is_local=is_local, active=active)

    def _pin_again(self, pins: Pins) -> None:
        self.servers.pin(pins)
        if self.reloader is not None:
            self.reloader.try_again()


@dataclass(eq=False)
class ConfigurationChanges:
    """Applies a changed configuration, changed files and changed skills of servers to one running gateway, one change at a time."""

    sources: ConfiguredSources
    """The sources, to which a change is applied first."""
    catalog: Catalog
    """The catalog, in which the changed sources are published."""
    readiness: Readiness
    """Lets listings wait for servers that are still connecting."""
    events: EventStream
    """Receives an event for each command that began to wait until a person accepts it, or was accepted."""
    tasks: TaskGroup
    """Runs the work that a change starts in the background."""
    describe: Callable[[], None]
    """Updates the instructions that new clients receive."""
    shared: SharedSkills = field(init=False)
    """Lists the skills of remote servers. The gateway runs the method `run` of this object in a task, so that changes are noticed."""
    _lock: anyio.Lock = field(default_factory=anyio.Lock, init=False)

    def __post_init__(self) -> None:
        self.shared = SharedSkills(self.catalog, self._serve_remote)

    async def apply(self, written: LoadedConfig) -> bool:
        """Apply `written`, a new version of the configuration, to the running gateway.

        Servers whose entry and policy did not change keep their connection. Removed and changed servers finish their in-flight calls.
        Returns the setting `server.reload` of `written`: whether the gateway reacts to further changes of the configuration file.

        Raises:
            ConfigError: The configuration cannot be used. The gateway was not changed, but commands that wait for a person's acceptance may
                have been recorded.
            StorageError: The record of accepted commands is damaged; nothing was changed.
        """
        sources = self.sources
        async with self._lock:
            running = sources.loaded
            for path in fixed_changes(running.config, written.config):
                logger.warning("setting changed, restart the gateway to apply it path=%s", path)
            loaded = await anyio.to_thread.run_sync(sources.acceptance.admit, with_fixed(running, written), running)
            pins, servers, local, rules = await sources.plan(loaded, self.shared.remote)
            sources.acceptance.emit_events(self.events)
            sources.take(loaded, pins, servers, local, rules)
            await sources.servers.start(servers.joining)
            sources.offer_own()
            await self.catalog.arrange(sources.entries())
            if rules is not None or running.config.access is not None:
                self.catalog.announce_rights()
            sources.servers.release(servers.leaving)
            sources.local.release(local.leaving)
            self.shared.wake()
            self.describe()
            self.tasks.start_soon(log_own_faults, sources.loaded, sources.local.sources)
            for server in servers.joining:
                self.tasks.start_soon(self.note_ready, server.source)
            for note in (*loaded.problems, *loaded.notes):
                logger.info("configuration note text=%s", note)
            joining, leaving = [*local.joining, *servers.joining], [*local.leaving, *servers.leaving]
            came, went = (",".join(s.source.id for s in hosted) or "none" for hosted in (joining, leaving))
            logger.info("configuration reloaded started=%s stopped=%s", came, went)
            return loaded.config.server.reload

    async def apply_files(self) -> None:
        """Reload the agents, workflows and Python functions whose files have changed, and update the catalog of tools."""
        sources = self.sources
        async with self._lock:
            local = await sources.local.prepare(sources.loaded, self.shared.remote)
            sources.acceptance.emit_events(self.events)
            sources.local.take(local)
            sources.register_secrets()
            sources.offer_own()
            await self.catalog.arrange(sources.entries())
            sources.local.release(local.leaving)
        self.describe()
        self.tasks.start_soon(log_own_faults, sources.loaded, sources.local.sources)
        logger.info("changed files loaded sources=%s", ",".join(joined.source.id for joined in local.joining))

    async def _serve_remote(self, remote: RemoteSkills) -> None:
        """Publish changed skills of remote servers in the source `skill`, which contains all skills, local and remote.

        Without local skills this source exists only while a remote server has skills. If it is added or removed, the catalog is updated.
        """
        async with self._lock:
            changes = await self.sources.local.share(self.sources.loaded, remote)
            if changes is not None:
                await self.catalog.arrange(self.sources.entries())
                self.sources.local.release(changes.leaving)
        self.describe()

    async def note_ready(self, upstream: UpstreamSource) -> None:
        """Wait until a server has connected or failed to connect, then publish its skills, and log the faults of its policy."""
        await self.shared.read_server(upstream)
        log_faults(server_remarks(self.sources.loaded, upstream))
        self.describe()
        self.readiness.skip(upstream.id)
