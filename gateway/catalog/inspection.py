"""`Inspection`: finds the problems of a running gateway for its operator: files that did not load, faulty policies, missing tools.

The commands `doctor`, `lock`, `policy` and `list`, the status page and warnings in the log use it. It reads the local sources, the servers
and the catalog of one gateway; the modules `needs` and `rule_findings` and the package `policy` decide what is a problem.
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
    """Reports problems of one gateway: files that did not load, faulty policies, missing tools. Each method reads the current state.

    It owns no resources.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        local: LocalSources,
        servers: Servers,
        catalog: Catalog,
        statuses: Callable[[], Sequence[SourceStatus]],
        models: Callable[[], ModelResolver],
    ) -> None:
        """Store the parts of the gateway that are inspected.

        `local` has the sources that run in the gateway (skills, functions, agents, workflows); `servers` has the remote MCP servers.
        `statuses` returns the current status of every source; `models` returns the resolver that turns model specs into chat clients.
        """
        self._loaded = loaded
        self._local = local
        self._servers = servers
        self._catalog = catalog
        self._statuses = statuses
        self._models = models

    def local_problems(self) -> list[tuple[str, SourceProblem]]:
        """Return the problems of files that define functions, agents and workflows and did not load, each with the id of its source."""
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
        """Return the facts about the gateway for its status page: configuration, process id, name prefixes, files that did not load."""
        return {
            "configuration": str(self._loaded.path) if self._loaded.path is not None else None,
            "pid": os.getpid(),
            "prefixes": {name: policy.prefix for name, policy in self._loaded.config.policies.items() if policy.prefix is not None},
            "notLoaded": self.not_loaded(),
        }

    def local_remarks(self) -> list[tuple[str, SourceProblem]]:
        """Return warnings about files of functions, agents and workflows that are served nevertheless, each with the id of its source."""
        return self._local.noted("remarks")

    def skill_problems(self) -> list[SkillReport]:
        """Return the reports of skills that are rejected, and of skills that are served with a warning."""
        return self._local.skills.problems if self._local.skills is not None else []

    def definitions(self) -> dict[str, Sequence[JsonObject]]:
        """Return the tool definitions of each connected server by server name, as the server lists them, before any policy applies."""
        return {u.id: u.lists.entries["tools"] for u in self._servers.sources if u.status().state == "ready"}

    async def judge_definitions(self) -> None:
        """Search the tool definitions of every server for text that gives a model instructions, and wait until the search is done.

        A gateway that serves clients does this in the background.
        """
        for upstream in self._servers.sources:
            await upstream.lists.suspicions.judge()

    async def remarks(self) -> list[str]:
        """Return one line for each fault in a policy, and for each tool that looks like, or mentions, a tool of another source.

        Policies of servers that are not connected are left out, because their tools are unknown.
        """
        found = remarks_of(await own_findings(self._loaded, self._local.sources))
        found += [remark for upstream in self._servers.sources for remark in self._remarks_on(upstream)]
        patterns = [f"{upstream.id}/*" for upstream in self._servers.sources]
        tools = await self._catalog.tools(patterns) if patterns else ()
        named = [Named(t.source, t.definition.name, t.exposed_name, t.definition.description or "") for t in tools]
        return [*found, *shadowing_remarks(named)]

    async def findings(self) -> dict[str, tuple[Finding, ...]]:
        """Return the findings of `moongate policy lint` (mistakes and notes), by the key of the policy under `policies`.

        These are findings on policies of connected servers and of the gateway's own sources, and on policies whose key names no source.
        """
        return await own_findings(self._loaded, self._local.sources) | server_findings(self._loaded, self.definitions())

    async def unmet_needs(self) -> list[UnmetNeed]:
        """Return the tools, agents and skills that files of agents and workflows name although no source serves them."""
        return await unmet_needs(self._local.sources, self._catalog, self._statuses(), idle=self._loaded.idle)

    def models_used(self) -> dict[str, list[str]]:
        """Return each model spec (such as `openai:NAME`) in use, with the names of the agents and policies that use it."""
        return models_used(self._local.sources, self._loaded.config)

    async def unreachable_agents(self) -> dict[str, str]:
        """Send a request to every remote agent, and return the files of the agents that did not respond, each with the reason."""
        return await unreachable_agents(self._local.sources)

    async def check_model(self, spec: str) -> ModelCheck | None:
        """Check a model spec (such as `openai:NAME`) by requesting the list of models from its endpoint. Raises `ModelError`."""
        return await self._models().check(spec)

    async def note_own_rules(self) -> None:
        """Log a warning for each fault in the policies of local sources (skills, functions, agents, workflows)."""
        for remark in remarks_of(await own_findings(self._loaded, self._local.sources)):
            logger.warning("policy needs repair finding=%s", remark)

    def note_rules_of(self, upstream: UpstreamSource) -> None:
        """Log a warning for each fault in the policy of one server, if the server is connected."""
        for remark in self._remarks_on(upstream):
            logger.warning("policy needs repair finding=%s", remark)

    def _remarks_on(self, upstream: UpstreamSource) -> list[str]:
        if upstream.status().state != "ready":
            return []
        return remarks_of(server_findings(self._loaded, {upstream.id: upstream.lists.entries["tools"]})) + upstream.lists.pins.remarks()
