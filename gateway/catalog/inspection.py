"""`Inspection`: what an operator should know about a running gateway: files that did not load, faulty policies, missing tools.

The commands `doctor`, `lock`, `policy` and `list` use it, and so do the status page and warnings in the log. It reads the local sources,
servers and catalog of one gateway; `needs`, `rule_findings` and `policy` decide.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gateway.catalog import Catalog
from gateway.catalog.local_sources import LocalSources
from gateway.catalog.needs import UnmetNeed, models_used, unmet_needs, unreachable_agents
from gateway.catalog.remote_servers import Servers
from gateway.catalog.rule_findings import own_findings, remarks_of, server_findings
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
    """Reads the state of one gateway at the moment of each call; owns no resources."""

    def __init__(
        self,
        loaded: LoadedConfig,
        local: LocalSources,
        servers: Servers,
        catalog: Catalog,
        statuses: Callable[[], Sequence[SourceStatus]],
        models: Callable[[], ModelResolver],
    ) -> None:
        """`statuses` returns the current status of every source; `models` returns the gateway's model resolver."""
        self._loaded = loaded
        self._local = local
        self._servers = servers
        self._catalog = catalog
        self._statuses = statuses
        self._models = models

    def local_problems(self) -> list[tuple[str, SourceProblem]]:
        """Return the files of functions, agents and workflows that did not load, each with the name of its source in the catalog."""
        return self._local.noted("problems")

    def not_loaded(self) -> list[JsonObject]:
        """Return the files of agents, workflows, functions and skills that could not be loaded: `source`, `where` and `message` of each."""
        found: list[JsonObject] = [
            {"source": source, "where": problem.where, "message": problem.message} for source, problem in self.local_problems()
        ]
        if reports := self.skill_problems():
            from gateway.skills.model import rejected_skills  # not loaded without skills

            found += rejected_skills(reports)
        return found

    def facts(self) -> JsonObject:
        """Return what the status page shows of the gateway itself: configuration, process id, name prefixes, files that did not load."""
        return {
            "configuration": str(self._loaded.path) if self._loaded.path is not None else None,
            "pid": os.getpid(),
            "prefixes": {name: policy.prefix for name, policy in self._loaded.config.policies.items() if policy.prefix is not None},
            "notLoaded": self.not_loaded(),
        }

    def local_remarks(self) -> list[tuple[str, SourceProblem]]:
        """Return warnings about functions, agents and workflows that are served, each with its source."""
        return self._local.noted("remarks")

    def skill_problems(self) -> list[SkillReport]:
        """Return the reports of skills that are rejected, or served with a warning."""
        return self._local.skills.problems if self._local.skills is not None else []

    def definitions(self) -> dict[str, Sequence[JsonObject]]:
        """Return the tool definitions that each connected server lists, by server, before any policy applies."""
        return {u.id: u.lists.entries["tools"] for u in self._servers.sources if u.status().state == "ready"}

    async def judge_definitions(self) -> None:
        """Search the tool definitions of every server for instructions to a model. A served gateway does this in the background."""
        for upstream in self._servers.sources:
            await upstream.lists.suspicions.judge()

    async def remarks(self) -> list[str]:
        """Return faults of the policies of all connected sources, and tools that imitate tools of other sources, one line each."""
        found = remarks_of(await own_findings(self._loaded, self._local.sources))
        found += [remark for upstream in self._servers.sources for remark in self._remarks_on(upstream)]
        patterns = [f"{upstream.id}/*" for upstream in self._servers.sources]
        tools = await self._catalog.tools(patterns) if patterns else ()
        named = [Named(t.source, t.definition.name, t.exposed_name, t.definition.description or "") for t in tools]
        return [*found, *shadowing_remarks(named)]

    async def findings(self) -> dict[str, tuple[Finding, ...]]:
        """Return `policy lint` findings by key of `policies`: on connected sources, and on policies of unknown sources."""
        return await own_findings(self._loaded, self._local.sources) | server_findings(self._loaded, self.definitions())

    async def unmet_needs(self) -> list[UnmetNeed]:
        """Return the tools, agents and skills that files of agents and workflows name, but that no source serves."""
        return await unmet_needs(self._local.sources, self._catalog, self._statuses(), idle=self._loaded.idle)

    def models_used(self) -> dict[str, list[str]]:
        """Return each model spec (such as `openai:NAME`) in use, with the names of the agents and policies that use it."""
        return models_used(self._local.sources, self._loaded.config)

    async def unreachable_agents(self) -> dict[str, str]:
        """Return the files of remote agents that do not respond, each with the reason. Sends requests."""
        return await unreachable_agents(self._local.sources)

    async def check_model(self, spec: str) -> ModelCheck | None:
        """Request the list of models from the endpoint of a model spec; see `ModelResolver.check`. Raises `ModelError`."""
        return await self._models().check(spec)

    async def note_own_rules(self) -> None:
        """Log a warning for each fault of the policies of local sources."""
        for remark in remarks_of(await own_findings(self._loaded, self._local.sources)):
            logger.warning("policy needs repair finding=%s", remark)

    def note_rules_of(self, upstream: UpstreamSource) -> None:
        """Log a warning for each fault of the policy of one server."""
        for remark in self._remarks_on(upstream):
            logger.warning("policy needs repair finding=%s", remark)

    def _remarks_on(self, upstream: UpstreamSource) -> list[str]:
        if upstream.status().state != "ready":
            return []
        return remarks_of(server_findings(self._loaded, {upstream.id: upstream.lists.entries["tools"]})) + upstream.lists.pins.remarks()
