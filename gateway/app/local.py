"""`LocalSources`: the gateway's own sources, from `expose`, made anew where a configuration says otherwise.

A room is imported only when something is configured for it. Remote servers are `servers`'; what is served is the catalog's.
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

from gateway.app.acceptance import Acceptance
from gateway.app.held import Held, Holdable, Hosts
from gateway.app.local_files import LocalFiles
from gateway.app.roots import RootRules
from gateway.config.load import LoadedConfig
from gateway.config.models import GatewayConfig
from gateway.config.policies import SkillFilter
from gateway.errors import SkillError
from gateway.json_types import JsonValue
from gateway.policy.roots import Access
from gateway.policy.skills import judge_skill
from gateway.storage.records import Records
from gateway.telemetry.events import EventStream
from gateway.tools.base import Tool, ToolSource
from gateway.tools.function_rules import FunctionRules
from gateway.tools.toolbox import ToolBox
from gateway.types.messages import Message

if TYPE_CHECKING:
    from gateway.agents.source import AgentSource
    from gateway.catalog.remote_skills import RemoteSkills
    from gateway.chat.resolve import ModelResolver
    from gateway.skills.source import SkillSource
    from gateway.tools.functions_source import FunctionSource, SourceProblem

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Local:
    """One of our own sources and what it was made from."""

    made_from: tuple[object, ...]
    source: ToolSource
    held: Held
    files: object
    """The state of the files that it was read from."""


@dataclass(frozen=True, slots=True)
class LocalTurnover:
    """What a configuration changes about our own sources."""

    table: dict[str, Local]
    joining: list[Local]
    leaving: list[Local]


class ServedSkills:
    """What agents are told of skills (`SkillTexts`): of those that are served when they ask."""

    def __init__(self, source: Callable[[], SkillSource | None]) -> None:
        self._source = source

    def instructions(self, names: Sequence[str]) -> str:
        """As `SkillSource.instructions`."""
        return self._served().instructions(names)

    def wishes(self, names: Sequence[str]) -> Sequence[JsonValue]:
        """As `SkillSource.wishes`."""
        return self._served().wishes(names)

    def _served(self) -> SkillSource:
        source = self._source()
        if source is None:
            raise SkillError("No skills are served; set `expose.skills`.", code="unknown-skill")
        return source


class LocalSources:
    """Made from `expose`: `prepare` enters what is new, `take` serves it, `release` lets go what went."""

    def __init__(
        self,
        hosts: Hosts,
        toolbox: ToolBox,
        models: Callable[[], ModelResolver],
        records: Records,
        state_folder: Path,
        events: EventStream,
        acceptance: Acceptance,
    ) -> None:
        """`models` gives the gateway's resolver, made when an agent first needs it; `records` keep sessions. `acceptance` decides which
        files may import Python modules. No side effects.
        """
        self._hosts = hosts
        self._acceptance = acceptance
        self._records = records
        self._state_folder = state_folder
        self._events = events
        self._toolbox = toolbox
        self._models = models
        self._table: dict[str, Local] = {}
        self.problem: str | None = None
        """Why a setting of skills is not used as it is written."""
        self._functions: FunctionSource | None = None
        self._files = LocalFiles()

    def names_of(self, objects: Sequence[object]) -> list[str]:
        """The names of the served functions that run one of these objects."""
        return self._functions.names_of(objects) if self._functions is not None else []

    @property
    def table(self) -> dict[str, Local]:
        """Our sources by their ids, in catalog order."""
        return self._table

    @property
    def skills(self) -> SkillSource | None:
        """The skills, where any are exposed."""
        local = self._table.get("skill")
        return cast("SkillSource", local.source) if local is not None else None

    @property
    def has_sessions(self) -> bool:
        """Whether callers may have sessions with an agent that is exposed."""
        local = self._table.get("agent")
        return local is not None and cast("AgentSource", local.source).has_sessions

    def conversation(self, name: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Tool | None:
        """As `AgentSource.conversation`, of the agents that are here now."""
        local = self._table.get("agent")
        return cast("AgentSource", local.source).conversation(name, messages, tools) if local is not None else None

    def secrets(self) -> set[str]:
        """Values of our sources to mask wherever something is shown."""
        local = self._table.get("agent")
        return cast("AgentSource", local.source).secrets if local is not None else set()

    def noted(self, what: Literal["problems", "remarks"]) -> list[tuple[str, SourceProblem]]:
        """What functions, agents and workflows say of their files, each with its source; skills have reports of another kind."""
        return [(kind, item) for kind, local in self._table.items() if kind != "skill" for item in getattr(local.source, what, ())]

    async def share(self, loaded: LoadedConfig, remote: RemoteSkills) -> LocalTurnover | None:
        """Serve the skills of remote servers too. A source that came or went with them is taken; it is to be put up, or released."""
        if (skills := self.skills) is not None:
            if not skills.library.has(remote):
                skills.library.add(remote)
            if remote.skills or loaded.config.expose.skills or loaded.config.skills.objects:
                return None
        turnover = await self.prepare(loaded, remote)
        self.take(turnover)
        return turnover

    async def prepare(self, loaded: LoadedConfig, remote: RemoteSkills | None = None) -> LocalTurnover:
        """Make and enter what `loaded` exposes and is not here alike; nothing is served or left yet.

        There is a source for skills also where only servers have some (`remote`).
        """
        with self._files.importing(loaded.base_dir):
            return await self._prepare(loaded, remote)

    @property
    def module_files(self) -> Collection[str]:
        """The files of Python modules that were imported for agents, workflows and functions."""
        return self._files.modules.keys()

    async def follow(self, loaded: Callable[[], LoadedConfig], take_up: Callable[[], Awaitable[None]]) -> None:
        """Have `take_up` called when files of agents, workflows or functions change, until cancelled. `loaded` is asked each time."""
        await self._files.follow(loaded, take_up)

    async def _prepare(self, loaded: LoadedConfig, remote: RemoteSkills | None) -> LocalTurnover:
        table: dict[str, Local] = {}
        joining: set[str] = set()
        if not loaded.config.expose.functions:
            self._functions = None
        roots = RootRules(loaded)
        if loaded.config.skills.scripts.read_paths:
            loaded = await anyio.to_thread.run_sync(self._with_readable, loaded, roots)
        wanted = dict(_wanted(loaded.config, has_remote=remote is not None and bool(remote.skills)))
        files = await self._files.take(loaded)
        roots.protect_files(self._files.modules)
        # Agents come last: their folders are judged with everything imported that workflows and functions name.
        for kind in sorted(wanted, key=lambda kind: kind == "agent"):
            made_from, local = wanted[kind], self._table.get(kind)
            is_alike = local is not None and local.made_from == made_from
            if local is None or not is_alike or local.files != files.of(kind) or await self._is_judged_anew(local.source, roots):
                source = self._build(kind, loaded, roots)
                # Under other rules the earlier version might not have loaded either.
                if local is not None and is_alike and kind in ("agent", "workflow"):
                    cast("AgentSource", source).go_on_from(cast("AgentSource", local.source))
                policy = loaded.config.policy(kind)
                local = Local(made_from, source, Held(cast("Holdable", source), policy.timeout_seconds), files.of(kind))
                await self._hosts.start(local.held)
                if kind == "skill" and remote is not None:
                    cast("SkillSource", source).library.add(remote)
                joining.add(kind)
            table[kind] = local
            if kind == "function":  # the workflows that are loaded next are judged by its names
                self._functions = cast("FunctionSource", local.source)
            roots.protect(getattr(local.source, "modules", ()))
        table = {kind: table[kind] for kind in wanted}
        leaving = [local for kind, local in self._table.items() if table.get(kind) is not local]
        return LocalTurnover(table, [table[kind] for kind in wanted if kind in joining], leaving)

    async def _is_judged_anew(self, source: ToolSource, roots: RootRules) -> bool:
        """Whether a file of `source` waited for acceptance, or a folder of an agent is allowed now and was not, or the other way."""
        if getattr(source, "is_waiting", False):
            return True
        judged = cast("Mapping[tuple[Path, Access], str | None]", getattr(source, "judged", {}))
        for (root, access), before in judged.items():
            if await anyio.to_thread.run_sync(roots.refusal, root, access) != before:
                return True
        return False

    def take(self, turnover: LocalTurnover) -> None:
        """From now on these are our sources."""
        self._table = turnover.table

    def release(self, locals_: Sequence[Local]) -> None:
        """Let them go as soon as their running calls are over."""
        for local in locals_:
            self._hosts.release(local.held)

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
                from gateway.tools.approvals import Approvals
                from gateway.workflows.source import WorkflowSource

                workflows = WorkflowSource(
                    [Path(path) for path in expose.agents],
                    toolbox=self._toolbox,
                    base_dir=base,
                    forms=Approvals(self._records, self._events),
                    rules=FunctionRules(loaded.config.policies.get, self.names_of),
                )
                workflows.judge_files(self._acceptance.refusal)
                return workflows

    def _with_readable(self, loaded: LoadedConfig, roots: RootRules) -> LoadedConfig:
        """The same configuration without the paths that scripts may not read."""
        skills = loaded.config.skills
        refused = {path: refusal for path in skills.scripts.read_paths if (refusal := roots.refusal(Path(path), "read"))}
        self.problem = "; ".join(f"skills.scripts.readPaths: {refusal}" for refusal in refused.values()) or None
        if self.problem is None:
            return loaded
        logger.error("%s", self.problem)
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
        return source


def _wanted(config: GatewayConfig, *, has_remote: bool) -> list[tuple[str, tuple[object, ...]]]:
    """The sources that something is exposed for, each with what it depends on; agents are told of skills, so after them."""
    expose, skills = config.expose, config.skills
    wanted: list[tuple[str, tuple[object, ...]]] = []
    if expose.skills or skills.objects or has_remote:
        wanted.append(("skill", (expose.skills, skills, config.policy("skill").skills)))
    if expose.functions:
        wanted.append(("function", (expose.functions,)))
    if expose.agents:
        rules = {name: policy for name, policy in config.policies.items() if name == "function" or name.startswith("workflow/")}
        wanted.append(("agent", (expose.agents, expose.skills, skills, config.agents)))
        wanted.append(("workflow", (expose.agents, expose.functions, rules)))
    return wanted
