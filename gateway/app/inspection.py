"""`Inspection`: what an operator should repair in a running gateway. Used by `doctor`, `policy lint` and the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gateway.app.local import LocalSources
from gateway.app.needs import UnmetNeed, models_used, unmet_needs, unreachable_agents
from gateway.app.rule_findings import own_findings, remarks_of, server_findings
from gateway.app.servers import Servers
from gateway.catalog import Catalog
from gateway.config.load import LoadedConfig
from gateway.policy.lint import Finding
from gateway.policy.shadowing import Named, shadowing_remarks
from gateway.tools.base import SourceStatus
from gateway.upstream.source import UpstreamSource

if TYPE_CHECKING:
    from gateway.chat.resolve import ModelCheck, ModelResolver

logger = logging.getLogger(__name__)


class Inspection:
    """Looks at one gateway as it is now. Owns nothing."""

    def __init__(
        self,
        loaded: LoadedConfig,
        local: LocalSources,
        servers: Servers,
        catalog: Catalog,
        statuses: Callable[[], Sequence[SourceStatus]],
        models: Callable[[], ModelResolver],
    ) -> None:
        """`statuses` returns every source's status now, `models` the gateway's resolver, made when first needed. No side effects."""
        self._loaded = loaded
        self._local = local
        self._servers = servers
        self._catalog = catalog
        self._statuses = statuses
        self._models = models

    async def remarks(self) -> list[str]:
        """Return what an operator should repair in the rules, and tools that look like another's, for every source that is ready."""
        found = remarks_of(await own_findings(self._loaded, self._local.table))
        found += [remark for upstream in self._servers.sources for remark in self._remarks_on(upstream)]
        patterns = [f"{upstream.id}/*" for upstream in self._servers.sources]
        tools = await self._catalog.tools(patterns) if patterns else ()
        named = [Named(t.source, t.definition.name, t.exposed_name, t.definition.description or "") for t in tools]
        return [*found, *shadowing_remarks(named)]

    async def findings(self) -> dict[str, tuple[Finding, ...]]:
        """Return what lint says about the rules of every source that is ready, and about policies of unknown sources."""
        definitions = {u.id: u.definitions() for u in self._servers.sources if u.status().state == "ready"}
        return await own_findings(self._loaded, self._local.table) | server_findings(self._loaded, definitions)

    async def unmet_needs(self) -> list[UnmetNeed]:
        """Return what agents and workflows name and nothing serves."""
        return await unmet_needs(self._local.table, self._catalog, self._statuses(), idle=self._loaded.idle)

    def models_used(self) -> dict[str, list[str]]:
        """Return the model specs of agents and of sampling policies, each with the agents and policies that use it."""
        return models_used(self._local.table, self._loaded.config)

    async def unreachable_agents(self) -> dict[str, str]:
        """Return the files of remote agents that cannot be used, each with the reason."""
        return await unreachable_agents(self._local.table)

    async def check_model(self, spec: str) -> ModelCheck | None:
        """Ask the endpoint of a model spec for its models, as `ModelResolver.check`. Raises `ModelError`."""
        return await self._models().check(spec)

    async def note_own_rules(self) -> None:
        """Log what is to be repaired in the rules of our own sources."""
        for remark in remarks_of(await own_findings(self._loaded, self._local.table)):
            logger.warning("%s", remark)

    def note_rules_of(self, upstream: UpstreamSource) -> None:
        """Log what is to be repaired in the rules of one server."""
        for remark in self._remarks_on(upstream):
            logger.warning("%s", remark)

    def _remarks_on(self, upstream: UpstreamSource) -> list[str]:
        if upstream.status().state != "ready":
            return []
        return remarks_of(server_findings(self._loaded, {upstream.id: upstream.definitions()})) + upstream.pin_remarks()
