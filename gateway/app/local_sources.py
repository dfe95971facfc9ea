"""`LocalSources`: the sources of tools that run in the gateway itself: skills, functions, agents and workflows (`expose`).

A changed configuration or file rebuilds only the sources that it affects. The package of a source is imported only if the configuration
uses it. Remote servers are in `remote_servers`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import anyio.to_thread

from gateway.app.local_files import LocalFiles
from gateway.app.source_host import Changes, HostableSource, HostedSource, HostedTable, SourceHost
from gateway.config.load import LoadedConfig
from gateway.config.models import GatewayConfig
from gateway.config.policies import SkillFilter
from gateway.errors import SkillError
from gateway.gate.acceptance import Acceptance
from gateway.gate.function_rules import FunctionRules
from gateway.gate.root_rules import RootRules
from gateway.json_types import JsonValue
from gateway.policy.root_policy import Access
from gateway.policy.skill_policy import judge_skill
from gateway.storage.records import Records
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import Tool, ToolSource
from gateway.tools.toolbox import ToolBox
from gateway.types.messages import Message

if TYPE_CHECKING:
    from gateway.agents.source import AgentSource
    from gateway.catalog.remote_skills import RemoteSkills
    from gateway.chat.model_resolver import ModelResolver
    from gateway.skills.source import SkillSource
    from gateway.tools.functions_source import FunctionSource, SourceProblem

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalSource:
    """One local source and what it was built from."""

    made_from: tuple[object, ...]
    """The settings it was built from; it is rebuilt when they change."""
    source: ToolSource
    held: HostedSource
    files: object
    """The state of the files it was read from (`Files.of`)."""


class ServedSkills:
    """Implements `SkillTexts` for agents with the skills that the gateway serves at the time of each call.

    Raises `SkillError` without any.
    """

    def __init__(self, source: Callable[[], SkillSource | None]) -> None:
        self._source = source

    def instructions(self, names: Sequence[str]) -> str:
        """Return the instructions of the named skills as one text (see `SkillSource.instructions`)."""
        return self._served().instructions(names)

    def wishes(self, names: Sequence[str]) -> Sequence[JsonValue]:
        """Return the tools that the named skills request (see `SkillSource.wishes`)."""
        return self._served().wishes(names)

    def _served(self) -> SkillSource:
        source = self._source()
        if source is None:
            raise SkillError("No skills are served; set `expose.skills`.", code="unknown-skill")
        return source


class LocalSources(HostedTable[LocalSource]):
    """The local sources. `prepare` builds and starts new sources, `take` makes them current, `release` stops the sources they replace."""

    def __init__(
        self,
        hosts: SourceHost,
        toolbox: ToolBox,
        models: Callable[[], ModelResolver],
        records: Records,
        state_folder: Path,
        events: EventStream,
        acceptance: Acceptance,
    ) -> None:
        """`hosts` runs the sources; `toolbox` gives agents and workflows their tools; `models` returns the gateway's model resolver.

        `records` stores the sessions of agents. `acceptance` decides which files may import Python modules.
        """
        super().__init__(hosts)
        self._acceptance = acceptance
        self._records = records
        self._state_folder = state_folder
        self._events = events
        self._toolbox = toolbox
        self._models = models
        self.problem: str | None = None
        """Why some paths in `skills.scripts.readPaths` are ignored; `None` if all are used."""
        self._functions: FunctionSource | None = None
        self._files = LocalFiles()

    def names_of(self, objects: Sequence[object]) -> list[str]:
        """Return the names of the served functions that call one of these Python objects."""
        return self._functions.names_of(objects) if self._functions is not None else []

    @property
    def sources(self) -> dict[str, ToolSource]:
        """The sources themselves by id, in catalog order."""
        return {kind: local.source for kind, local in self._table.items()}

    @property
    def skills(self) -> SkillSource | None:
        """The source of skills; `None` if no skills are exposed."""
        local = self._table.get("skill")
        return cast("SkillSource", local.source) if local is not None else None

    @property
    def has_sessions(self) -> bool:
        """Whether some exposed agent keeps conversations between calls (sessions)."""
        local = self._table.get("agent")
        return local is not None and cast("AgentSource", local.source).has_sessions

    def conversation(self, name: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Tool | None:
        """Return a tool that continues a conversation with the agent `name`; `None` if there is no such agent.

        See `AgentSource.conversation`.
        """
        local = self._table.get("agent")
        return cast("AgentSource", local.source).conversation(name, messages, tools) if local is not None else None

    def secrets(self) -> set[str]:
        """Return the secret values that agents use; they must be masked in all output."""
        local = self._table.get("agent")
        return cast("AgentSource", local.source).secrets if local is not None else set()

    def noted(self, what: Literal["problems", "remarks"]) -> list[tuple[str, SourceProblem]]:
        """Return what functions, agents and workflows note about their files, each with the id of its source.

        `problems` selects files that are not served, `remarks` warnings.
        """
        return [(kind, item) for kind, local in self._table.items() if kind != "skill" for item in getattr(local.source, what, ())]

    async def share(self, loaded: LoadedConfig, remote: RemoteSkills) -> Changes[LocalSource] | None:
        """Add the skills of remote servers to the source `skill`.

        Return the changes of the table if the source `skill` is added or removed by this, else `None`. The caller passes them to `release`.
        """
        if (skills := self.skills) is not None:
            if not skills.library.has(remote):
                skills.library.add(remote)
            if remote.skills or loaded.config.expose.skills or loaded.config.skills.objects:
                return None
        changes = await self.prepare(loaded, remote)
        self.take(changes)
        return changes

    async def prepare(self, loaded: LoadedConfig, remote: RemoteSkills | None = None) -> Changes[LocalSource]:
        """Build and start the sources of `loaded` that are new or changed, and return all changes. `take` puts them in force.

        If remote servers have skills (`remote`), there is a source `skill` even without local skills.
        """
        with self._files.importing(loaded.base_dir):
            return await self._prepare(loaded, remote)

    @property
    def module_files(self) -> Collection[str]:
        """The files of Python modules that were imported for agents, workflows and functions."""
        return self._files.modules.keys()

    async def follow(self, loaded: Callable[[], LoadedConfig], take_up: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled, call `take_up` when files of agents, workflows or functions change.

        `loaded` returns the current configuration.
        """
        await self._files.follow(loaded, take_up)

    async def _prepare(self, loaded: LoadedConfig, remote: RemoteSkills | None) -> Changes[LocalSource]:
        table: dict[str, LocalSource] = {}
        if not loaded.config.expose.functions:
            self._functions = None
        roots = RootRules(loaded)
        if loaded.config.skills.scripts.read_paths:
            loaded = await anyio.to_thread.run_sync(self._with_readable, loaded, roots)
        wanted = dict(_wanted(loaded.config, has_remote=remote is not None and bool(remote.skills)))
        files = await self._files.take(loaded)
        roots.protect_files(self._files.modules)
        # Agents come last, because their folders may not contain modules that workflows and functions import.
        for kind in sorted(wanted, key=lambda kind: kind == "agent"):
            made_from, local = wanted[kind], self._table.get(kind)
            is_alike = local is not None and local.made_from == made_from
            if local is None or not is_alike or local.files != files.of(kind) or await self._is_judged_anew(local.source, roots):
                source = self._build(kind, loaded, roots)
                # Keep the last version of a file that is broken now, unless settings changed: with them that version might be invalid too.
                if local is not None and is_alike and kind in ("agent", "workflow"):
                    cast("AgentSource", source).go_on_from(cast("AgentSource", local.source))
                policy = loaded.config.policy(kind)
                local = LocalSource(made_from, source, HostedSource(cast("HostableSource", source), policy.timeout_seconds), files.of(kind))
                await self._hosts.start(local.held)
                if kind == "skill" and remote is not None:
                    cast("SkillSource", source).library.add(remote)
            table[kind] = local
            if kind == "function":  # workflows load next and look up names of functions
                self._functions = cast("FunctionSource", local.source)
            roots.protect(getattr(local.source, "modules", ()))
        return self.changes({kind: table[kind] for kind in wanted})

    async def _is_judged_anew(self, source: ToolSource, roots: RootRules) -> bool:
        """Return whether a file of `source` waits for acceptance, or the decision about an agent's folder has changed."""
        if getattr(source, "is_waiting", False):
            return True
        judged = cast("Mapping[tuple[Path, Access], str | None]", getattr(source, "judged", {}))
        for (root, access), before in judged.items():
            if await anyio.to_thread.run_sync(roots.refusal, root, access) != before:
                return True
        return False

    def _build(self, kind: str, loaded: LoadedConfig, roots: RootRules) -> ToolSource:
        expose, base = loaded.config.expose, loaded.base_dir
        match kind:
            case "skill":
                return self._build_skills(loaded)
            case "function":
                from gateway.tools.functions_source import FunctionSource

                return FunctionSource(expose.functions, base_dir=base, previous=self._functions)
            case "agent":
                return self._agents(loaded, roots)
            case _:
                from gateway.gate.approvals import Approvals
                from gateway.workflows.source import WorkflowSource

                workflows = WorkflowSource(
                    [Path(path) for path in expose.agents],
                    toolbox=self._toolbox,
                    base_dir=base,
                    forms=Approvals(self._records, self._events),
                    rules=self._rules(loaded),
                )
                workflows.judge_files(self._acceptance.refusal)
                return workflows

    def _rules(self, loaded: LoadedConfig) -> FunctionRules:
        return FunctionRules(loaded.config.policies.get, self.names_of, self._events)

    def _with_readable(self, loaded: LoadedConfig, roots: RootRules) -> LoadedConfig:
        """Return the configuration without the entries of `skills.scripts.readPaths` that scripts must not read."""
        skills = loaded.config.skills
        refused = {path: refusal for path in skills.scripts.read_paths if (refusal := roots.refusal(Path(path), "read"))}
        self.problem = "; ".join(f"skills.scripts.readPaths: {refusal}" for refusal in refused.values()) or None
        if self.problem is None:
            return loaded
        logger.error("paths ignored reason=%s", self.problem)
        kept = [path for path in skills.scripts.read_paths if path not in refused]
        scripts = skills.scripts.model_copy(update={"read_paths": kept})
        skills = skills.model_copy(update={"scripts": scripts})
        return dataclasses.replace(loaded, config=loaded.config.model_copy(update={"skills": skills}))

    def _build_skills(self, loaded: LoadedConfig) -> SkillSource:
        from gateway.skills.source import SkillRules, SkillSource

        wanted = loaded.config.skills
        rules = loaded.config.policy("skill").skills
        scripts = code = None
        if wanted.scripts.enabled:
            from gateway.skills.scripts import ScriptRunner

            scripts = ScriptRunner(wanted.scripts, os.environ)
        if wanted.objects:
            from gateway.skills.code import CodeSkills

            code = CodeSkills(wanted.objects, base_dir=loaded.base_dir, strict=wanted.strict)
        paths = [loaded.base_dir / path for path in loaded.config.expose.skills]
        return SkillSource(
            paths,
            strict=wanted.strict,
            refresh_seconds=wanted.refresh_seconds,
            scripts=scripts,
            state_folder=self._state_folder / "skills",
            code=code,
            events=self._events,
            rules=SkillRules(
                keeps=partial(judge_skill, rules=rules) if rules != SkillFilter() else None,
                signed=wanted.signatures,
                instruction_template=wanted.instruction_template,
            ),
        )

    def _agents(self, loaded: LoadedConfig, roots: RootRules) -> AgentSource:
        from gateway.agents.conversations import ConversationLimits, Conversations
        from gateway.agents.source import AgentSource

        kept, base = loaded.config.sessions, loaded.base_dir
        limits = ConversationLimits(ttl_seconds=kept.ttl_seconds, max_per_caller=kept.max_per_caller, wait_seconds=kept.wait_seconds)
        source = AgentSource(
            [base / path for path in loaded.config.expose.agents],
            toolbox=self._toolbox,
            models=self._models(),
            skills=ServedSkills(lambda: self.skills),
            environ=os.environ,
            conversations=Conversations(self._records, limits),
            base_dir=base,
            settings=loaded.config.agents,
        )
        source.judge_folders(roots)
        source.judge_files(self._acceptance.refusal)
        source.judge_code(self._rules(loaded))
        return source


def _wanted(config: GatewayConfig, *, has_remote: bool) -> list[tuple[str, tuple[object, ...]]]:
    """Return the kinds of local sources to build, each with the settings it depends on. Skills come first, because agents list them."""
    expose, skills = config.expose, config.skills
    wanted: list[tuple[str, tuple[object, ...]]] = []
    if expose.skills or skills.objects or has_remote:
        wanted.append(("skill", (expose.skills, skills, config.policy("skill").skills)))
    if expose.functions:
        wanted.append(("function", (expose.functions,)))
    if expose.agents:
        rules = {name: policy for name, policy in config.policies.items() if name == "function" or name.startswith("workflow/")}
        judged = {
            name: (policy.tools, policy.overrides)
            for name, policy in config.policies.items()
            if name == "function" or name.startswith("agent/")
        }
        wanted.append(("agent", (expose.agents, expose.functions, expose.skills, skills, config.agents, judged)))
        wanted.append(("workflow", (expose.agents, expose.functions, rules)))
    return wanted
