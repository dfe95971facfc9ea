"""`ConfiguredSources`: holds the configuration in use, and the sources of tools that were built from it.

`app` prepares the sources when the gateway starts. The module `configuration_changes` replaces them while it runs; `inspection` reports
their state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.catalog.gateway_source import SOURCE_ID, UNLIMITED_BYTES, GatewaySource
from gateway.catalog.local_sources import LocalSource, LocalSources
from gateway.catalog.remote_servers import Server, Servers
from gateway.catalog.source_host import Changes
from gateway.catalog.source_listing import CatalogEntry
from gateway.config.load import LoadedConfig
from gateway.config.reload import Reloader
from gateway.gate.acceptance import Acceptance
from gateway.gate.concurrency import ActiveCalls
from gateway.policy.approval_policy import may_need_approval, with_script_approval
from gateway.telemetry.logging import SecretMask
from gateway.tools.base import Source, ToolSource
from gateway.upstream.lock_file import LockFile
from gateway.upstream.pins import Pins

if TYPE_CHECKING:
    from gateway.catalog.remote_skills import RemoteSkills


@dataclass(frozen=True, slots=True)
class PlannedSources:
    """The sources of a new configuration, which `ConfiguredSources.take` makes current."""

    loaded: LoadedConfig
    pins: Pins
    servers: Changes[Server]
    local: Changes[LocalSource]


@dataclass(eq=False)
class ConfiguredSources:
    """The configuration in use, and the sources of tools that were built from it: remote servers, local sources, and the gateway's own.

    To apply a configuration, call `plan`, `take`, `offer_own` and `release`, in this order, and start the new servers after `take`.
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
    lock: LockFile = field(init=False)
    """The lock file of the configuration, with the accepted tool definitions (pins). Its `run` must be running."""

    def __post_init__(self) -> None:
        self.lock = LockFile(self._pin_again)

    async def plan(self, loaded: LoadedConfig, remote: RemoteSkills | None = None) -> PlannedSources:
        """Build the sources that are new or changed in the configuration `loaded`, and start the local sources among them.

        `remote` has the skills of remote servers.

        Raises:
            ConfigError: The lock file of the configuration cannot be read.
        """
        pins = await self.lock.read(loaded)
        servers = await self.servers.plan(loaded, pins)
        return PlannedSources(loaded, pins, servers, await self.local.prepare(loaded, remote))

    def take(self, planned: PlannedSources) -> None:
        """Make the planned configuration and its sources current."""
        self.loaded = planned.loaded
        self.local.take(planned.local)
        self.register_secrets()
        self.servers.take(planned.servers)
        self.servers.pin(planned.pins)

    def release(self, planned: PlannedSources) -> None:
        """Signal the sources that `take` removed to stop when their in-flight calls have ended."""
        self.servers.release(planned.servers.leaving)
        self.local.release(planned.local.leaving)

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
