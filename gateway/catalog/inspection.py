"""`Inspection`: reports the state of a running gateway, and its problems: files that did not load, faulty policies, missing tools.

The commands `doctor`, `lock`, `policy` and `list`, the tool `gateway_status`, the status page, warnings in the log and the instructions for
clients use it. It reads the sources and the catalog of one gateway; the modules `needs` and `rule_findings` and the package `policy` decide
what is a problem.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gateway.auth.api_keys import KeyInfo
from gateway.auth.principal import Principal
from gateway.catalog import Catalog
from gateway.catalog.configured_sources import ConfiguredSources
from gateway.catalog.instructions import build_instructions
from gateway.catalog.needs import UnmetNeed, models_used, unmet_needs, unreachable_agents
from gateway.catalog.rule_findings import own_findings, remarks_of, server_findings, server_remarks
from gateway.catalog.source_statuses import local_status, seen_status, server_status, switched_off_status, unused_status
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.lint import Finding
from gateway.policy.shadowing import Named, shadowing_remarks
from gateway.telemetry.gateway_load import Load
from gateway.tools.base import SourceStatus

if TYPE_CHECKING:
    from gateway.chat.model_resolver import ModelCheck, ModelResolver
    from gateway.skills.model import SkillReport
    from gateway.tools.functions_source import SourceProblem


class Inspection:
    """Reports the state and the problems of one gateway. Each method reads the current state.

    It owns no resources.
    """

    def __init__(self, sources: ConfiguredSources, catalog: Catalog, models: Callable[[], ModelResolver]) -> None:
        """Store the parts of the gateway that are inspected. `models` returns the resolver that turns model specs into chat clients."""
        self._sources = sources
        self._local = sources.local
        self._servers = sources.servers
        self._catalog = catalog
        self._models = models
        self.endpoint_problems: Callable[[], list[str]] = list
        """Returns the problems of the HTTP endpoint, such as a TLS certificate that expires soon."""

    def sources(self) -> list[SourceStatus]:
        """Return the status of every source of tools, in the order of the catalog, with disabled servers last. Secrets are masked.

        The tools of the gateway itself, such as `gateway_status`, have no status.
        """
        count, loaded = self._catalog.count, self._sources.loaded
        statuses = [local_status(name, local.source, count(name)) for name, local in self._local.table.items()]
        for upstream in self._servers.sources:
            withheld, kept = len(self._catalog.withheld(upstream.id)), self._sources.acceptance.kept.get(upstream.id)
            statuses.append(server_status(upstream.status(), tools=count(upstream.id), withheld=withheld, waits_for=kept))
        statuses += [switched_off_status(name, entry) for name, entry in loaded.config.mcp_servers.items() if entry.disabled]
        statuses += [unused_status(server) for server in loaded.disabled]
        mask = self._sources.mask.mask
        return [dataclasses.replace(status, error=mask(status.error)) if status.error else status for status in statuses]

    def load(self) -> Load:
        """Return the numbers of running and waiting calls of each source, and whether the gateway can use it."""
        limits = [(listing.entry.source.id, listing.gate.limiter) for listing in self._catalog.listings]
        states = [status for status in self.sources() if status.state != "disabled"]
        return {
            "moongate.source.ready": [(int(s.state in ("ready", "idle")), {"source": s.name}) for s in states],
            "moongate.calls.running": [(limit.held, {"source": source}) for source, limit in limits if limit is not None],
            "moongate.calls.queued": [(limit.waiting, {"source": source}) for source, limit in limits if limit is not None],
        }

    def seen(self, viewer: Principal) -> tuple[list[SourceStatus], list[str]]:
        """Return the status of each source, and the problems of the gateway, as far as a principal may see them.

        Roles and Cedar policies hide sources, tools, and the problems of the gateway, which name sources. Scopes do not.
        """
        statuses = [status.seen_by(viewer) for status in self.sources()]
        rights = viewer.rights
        if rights is None or not rights.hides_items:
            return statuses, self.problems()
        count = self._catalog.count
        shown = [seen_status(status, rights, count(status.name, viewer)) for status in statuses if not rights.hides(status.name)]
        return shown, self.problems() if rights.is_operator else []

    def problems(self) -> list[str]:
        """Return a text for each problem that keeps the gateway from using its configuration or lock file as written, secrets masked."""
        sources, loaded = self._sources, self._sources.loaded
        problems = (sources.reloader.problem if sources.reloader is not None else None, sources.lock.problem, self._local.problem)
        # A server whose command waits for acceptance is left out, because the server's status shows this.
        waiting = [entry for key, entry in sources.acceptance.held.items() if key not in loaded.config.mcp_servers]
        waiting = [entry for entry in waiting if not any(entry.key == server.name for server in loaded.disabled)]
        held = [f"{e.place} is new or changed and waits: `moongate lock --accept {e.key}` shows it and accepts it." for e in waiting]
        return [sources.mask.mask(problem) for problem in (*problems, *held, *self.endpoint_problems()) if problem]

    def instructions(self, caller: Principal) -> str:
        """Return the MCP instructions for a caller, which describe only the sources that the caller may use."""
        notes = {u.id: text for u in self._servers.sources if (text := u.instructions)}
        count = len(self._local.skills.index.for_models) if self._local.skills is not None else 0
        settings = self._sources.loaded.config.server
        return build_instructions(settings.instructions, self.seen(caller)[0], notes, count, caller.rights)

    def local_problems(self) -> list[tuple[str, SourceProblem]]:
        """Return the problems of files that define functions, agents and workflows and did not load, each with the id of its source."""
        return self._local.noted("problems")

    def not_loaded(self) -> list[JsonObject]:
        """Return the problems because of which agents, workflows, functions and skills could not be loaded.

        Each has the members `source` (id of the source), `where` (the file or setting) and `message`. A file may have several problems.
        """
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
            "configuration": str(self._sources.loaded.path) if self._sources.loaded.path is not None else None,
            "pid": os.getpid(),
            "prefixes": {name: policy.prefix for name, policy in self._sources.loaded.config.policies.items() if policy.prefix is not None},
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
        """Return one line for each fault in a policy, and for each server's tool that looks like, or mentions, a tool of another server.

        Tools in the lock file that their server no longer lists get a line, too. Policies of servers that are not connected are left out,
        because their tools are unknown.
        """
        found = remarks_of(await own_findings(self._sources.loaded, self._local.sources))
        found += [remark for upstream in self._servers.sources for remark in server_remarks(self._sources.loaded, upstream)]
        patterns = [f"{upstream.id}/*" for upstream in self._servers.sources]
        tools = await self._catalog.tools(patterns) if patterns else ()
        named = [Named(t.source, t.definition.name, t.exposed_name, t.definition.description or "") for t in tools]
        by_access = [f"{finding.path}: {finding.text}" for finding in await self.access_findings() if finding.kind != "note"]
        return [*found, *by_access, *shadowing_remarks(named)]

    async def findings(self) -> dict[str, tuple[Finding, ...]]:
        """Return the findings of `moongate policy lint` (mistakes and notes), by the key of the policy under `policies`.

        These are findings on policies of connected servers and of the gateway's own sources, and on policies whose key names no source.
        """
        return await own_findings(self._sources.loaded, self._local.sources) | server_findings(self._sources.loaded, self.definitions())

    async def access_findings(self, keys: Sequence[KeyInfo] | None = None) -> list[Finding]:
        """Return the findings about the section `access`: mistakes in roles and Cedar policies. `keys` are all API keys, if known.

        Patterns for tools of servers that are not connected are compared with the names of sources only.
        """
        settings, access = self._sources.loaded.config.access, self._sources.access
        if settings is None:
            return []
        from gateway.access.role_findings import lint_access

        policies = access.rules.cedar.policies if access.rules is not None and access.rules.cedar is not None else ()
        names = None if keys is None else [name for key in keys for name in (key.id, key.name)]
        ids = [status.name for status in self.sources()]
        return lint_access(settings, policies, ids, await self._known_tools(), names)

    async def _known_tools(self) -> dict[str, dict[str, JsonValue]]:
        """Return the input schemas of the tools of connected servers and local sources, by source and native name."""
        known: dict[str, dict[str, JsonValue]] = {}
        for source, listed in self.definitions().items():
            known[source] = {str(wire["name"]): wire.get("inputSchema") for wire in listed}
        local = [*self._local.table, "gateway"]
        for tool in await self._catalog.tools([f"{source}/*" for source in local]):
            known.setdefault(tool.source, {})[tool.definition.name] = tool.definition.input_schema
        return {**{source: {} for source in self._local.table}, **known}

    async def unmet_needs(self) -> list[UnmetNeed]:
        """Return the tools, agents and skills that files of agents and workflows name although no source serves them."""
        return await unmet_needs(self._local.sources, self._catalog, self.sources(), idle=self._sources.loaded.idle)

    def models_used(self) -> dict[str, list[str]]:
        """Return each model spec (such as `openai:NAME`) in use, with the names of the agents and policies that use it."""
        return models_used(self._local.sources, self._sources.loaded.config)

    async def unreachable_agents(self) -> dict[str, str]:
        """Send a request to every remote agent, and return the files of the agents that did not respond, each with the reason."""
        return await unreachable_agents(self._local.sources)

    async def check_model(self, spec: str) -> ModelCheck | None:
        """Check a model spec (such as `openai:NAME`) by requesting the list of models from its endpoint. Raises `ModelError`."""
        return await self._models().check(spec)
