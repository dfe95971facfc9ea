"""`Inspection`: a view of a running gateway for operators: files that did not load, rules to repair, unmet needs, server definitions.

Used by `doctor`, `lock`, `policy` and `list`, by the status page, and for warnings in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gateway.app.local_sources import LocalSources
from gateway.app.needs import UnmetNeed, models_used, unmet_needs, unreachable_agents
from gateway.app.remote_servers import Servers
from gateway.app.rule_findings import own_findings, remarks_of, server_findings
from gateway.catalog import Catalog
from gateway.config.load import LoadedConfig
from gateway.json_types import JsonObject
from gateway.policy.lint import Finding
from gateway.policy.shadowing import Named, shadowing_remarks
from gateway.tools.base import SourceStatus
from gateway.upstream.source import UpstreamSource

if TYPE_CHECKING:
    from gateway.chat.model_resolver import ModelCheck, ModelResolver
    from gateway.skills.model import SkillReport
    from gateway.tools.functions_source import SourceProblem

logger = logging.getLogger(__name__)


class Inspection:
    """Reads the state of one gateway; owns nothing."""

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

    def local_problems(self) -> list[tuple[str, SourceProblem]]:
        """Return the files of functions, agents and workflows that did not load, each with its source."""
        return self._local.noted("problems")

    def local_remarks(self) -> list[tuple[str, SourceProblem]]:
        """Return warnings about files that did load, each with its source."""
        return self._local.noted("remarks")

    def skill_problems(self) -> list[SkillReport]:
        """Return the reports of skills that are rejected, or served with a warning."""
        return self._local.skills.problems if self._local.skills is not None else []

    def definitions(self) -> dict[str, Sequence[JsonObject]]:
        """Return the tools of every server that is ready as it lists them: before policy, quarantined tools included."""
        return {u.id: u.lists.definitions() for u in self._servers.sources if u.status().state == "ready"}

    async def judge_definitions(self) -> None:
        """Search the definitions of every server for instructions to a model now; a running gateway does so in the background."""
        for upstream in self._servers.sources:
            await upstream.lists.suspicions.judge()

    async def remarks(self) -> list[str]:
        """Return what to repair in the rules of every source that is ready, and tools that imitate tools of other sources."""
        found = remarks_of(await own_findings(self._loaded, self._local.table))
        found += [remark for upstream in self._servers.sources for remark in self._remarks_on(upstream)]
        patterns = [f"{upstream.id}/*" for upstream in self._servers.sources]
        tools = await self._catalog.tools(patterns) if patterns else ()
        named = [Named(t.source, t.definition.name, t.exposed_name, t.definition.description or "") for t in tools]
        return [*found, *shadowing_remarks(named)]

    async def findings(self) -> dict[str, tuple[Finding, ...]]:
        """Return lint findings on the rules of every source that is ready, and on policies of unknown sources."""
        return await own_findings(self._loaded, self._local.table) | server_findings(self._loaded, self.definitions())

    async def unmet_needs(self) -> list[UnmetNeed]:
        """Return the tools, agents and skills that agents and workflows name and no source serves."""
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
        """Log warnings about the rules of local sources."""
        for remark in remarks_of(await own_findings(self._loaded, self._local.table)):
            logger.warning("%s", remark)

    def note_rules_of(self, upstream: UpstreamSource) -> None:
        """Log warnings about the rules of one server."""
        for remark in self._remarks_on(upstream):
            logger.warning("%s", remark)

    def _remarks_on(self, upstream: UpstreamSource) -> list[str]:
        if upstream.status().state != "ready":
            return []
        return remarks_of(server_findings(self._loaded, {upstream.id: upstream.lists.definitions()})) + upstream.lists.pin_remarks()
