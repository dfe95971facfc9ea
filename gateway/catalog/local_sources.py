"""`LocalSources`: holds the sources of tools that run in the gateway itself: skills, functions, agents and workflows (key `expose`).

A changed configuration or file rebuilds only the sources that it affects. `app.local_builder` builds the sources, and imports the package
of a source only if the configuration uses it. The module `remote_servers` holds the remote MCP servers.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

import anyio.to_thread

from gateway.catalog.local_files import FileState, LocalFiles
from gateway.catalog.source_host import Changes, HostableSource, HostedSource, HostedTable, SourceHost
from gateway.config.base_models import Model
from gateway.config.load import LoadedConfig
from gateway.config.models import GatewayConfig
from gateway.config.policies import SourcePolicy, ToolFilter, ToolOverride
from gateway.errors import SkillError
from gateway.gate.root_rules import RootRules
from gateway.json_types import JsonValue
from gateway.policy.root_policy import Access
from gateway.tools.base import Tool, ToolSource
from gateway.types.messages import Message

if TYPE_CHECKING:
    from gateway.agents.source import AgentSource
    from gateway.catalog.remote_skills import RemoteSkills
    from gateway.skills.source import SkillSource
    from gateway.tools.functions_source import FunctionSource, SourceProblem

logger = logging.getLogger(__name__)


LocalKind = Literal["skill", "function", "agent", "workflow"]

Settings = tuple[Sequence[str] | Model | Mapping[str, SourcePolicy | tuple[ToolFilter, Mapping[str, ToolOverride]]], ...]
"""The parts of the configuration on which one source (skills, functions, agents or workflows) depends.

If one of these parts changes, the source is built again.
"""


class LocalToolSource(ToolSource, HostableSource, Protocol):
    """Protocol: a source of tools that runs in the gateway; it starts when it is entered as an async context manager."""


LocalSource = HostedSource[LocalToolSource, tuple[Settings, FileState]]
"""One source that runs in the gateway (skills, functions, agents or workflows), with the state from which it was built.

The state consists of the settings of the source, and the state of its files (`Files.of`).
"""

LocalSourceBuilder = Callable[[LocalKind, LoadedConfig, RootRules, "LocalSources"], LocalToolSource]
"""Function that builds a local source of one kind, without starting it.

Its arguments are the kind, the configuration, the rules that decide which folders models may access, and the current local sources.
"""


class LocalSources(HostedTable[LocalSource]):
    """Holds the gateway's sources of skills, functions, agents and workflows, and replaces those that a change affects.

    `prepare` builds and starts new sources, `take` makes them current, and `release` stops the replaced sources.
    """

    def __init__(self, hosts: SourceHost, build: LocalSourceBuilder) -> None:
        """Store the arguments. `build` builds one source; `hosts` starts and stops the built sources."""
        super().__init__(hosts)
        self._build = build
        self.problem: str | None = None
        """Why paths in `skills.scripts.readPaths` are ignored; `None` if all paths are used."""
        self.functions: FunctionSource | None = None
        """The source of functions; `None` if no functions are exposed."""
        self.files = LocalFiles()
        """Detects changes of the files that define agents and workflows, and of the Python modules imported for them and for functions."""

    def names_of(self, objects: Sequence[object]) -> list[str]:
        """Return the names of the served function tools that call one of these Python objects; empty if no functions are exposed."""
        return self.functions.names_of(objects) if self.functions is not None else []

    @property
    def sources(self) -> dict[str, ToolSource]:
        """The current local sources by id (`skill`, `function`, `agent`, `workflow`), in catalog order."""
        return {kind: local.source for kind, local in self._table.items()}

    @property
    def skills(self) -> SkillSource | None:
        """The source of skills, local and remote; `None` if the gateway serves no skills."""
        local = self._table.get("skill")
        return cast("SkillSource", local.source) if local is not None else None

    @property
    def has_sessions(self) -> bool:
        """Whether an exposed agent has sessions, which are conversations that continue over several calls."""
        local = self._table.get("agent")
        return local is not None and cast("AgentSource", local.source).has_sessions

    def conversation(self, name: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Tool | None:
        """Return a tool that runs agent `name` on the conversation `messages` with the caller's `tools`; `None` for an unknown agent."""
        local = self._table.get("agent")
        return cast("AgentSource", local.source).conversation(name, messages, tools) if local is not None else None

    def secrets(self) -> set[str]:
        """Return the secret values that agents use, which must be masked in all output."""
        local = self._table.get("agent")
        return cast("AgentSource", local.source).secrets if local is not None else set()

    def noted(self, what: Literal["problems", "remarks"]) -> list[tuple[str, SourceProblem]]:
        """Return the problems or warnings about files of functions, agents and workflows, each with the id of its source.

        If `what` is `problems`, these are the reasons why files are not served; if it is `remarks`, warnings about files that are served.
        """
        return [(kind, item) for kind, local in self._table.items() if kind != "skill" for item in getattr(local.source, what, ())]

    async def share(self, loaded: LoadedConfig, remote: RemoteSkills) -> Changes[LocalSource] | None:
        """Add the skills of remote servers to the gateway's source of skills, which is created or removed if necessary.

        Returns `None` if the source existed before and still exists. Otherwise returns the changes that were made to the table of local
        sources; the caller passes the sources that were removed to `release`, which stops them.
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
        """Build and start the sources (skills, functions, agents, workflows) that are new or changed in the configuration `loaded`.

        Returns the difference from the current sources, which `take` applies. If `remote` has skills of remote servers, the source `skill`
        is built even without local skills.
        """
        with self.files.importing(loaded.base_dir):
            return await self._prepare(loaded, remote)

    async def _prepare(self, loaded: LoadedConfig, remote: RemoteSkills | None) -> Changes[LocalSource]:
        table: dict[str, LocalSource] = {}
        if not loaded.config.expose.functions:
            self.functions = None
        roots = RootRules(loaded)
        if loaded.config.skills.scripts.read_paths:
            loaded = await anyio.to_thread.run_sync(self._with_readable, loaded, roots)
        wanted = dict(_wanted(loaded.config, has_remote=remote is not None and bool(remote.skills)))
        files = await self.files.take(loaded)
        roots.files = self.files.modules
        # Agents come last, because their folders may not contain modules that workflows and functions import.
        for kind in sorted(wanted, key=lambda kind: kind == "agent"):
            made_from, local = (wanted[kind], files.of(kind)), self._table.get(kind)
            if local is None or local.made_from != made_from or await self._is_judged_anew(local.source, roots):
                source = self._build(kind, loaded, roots, self)
                # A file that no longer loads keeps its last valid version, unless settings changed, which may make that version invalid.
                if local is not None and local.made_from[0] == wanted[kind] and kind in ("agent", "workflow"):
                    cast("AgentSource", source).go_on_from(cast("AgentSource", local.source))
                local = HostedSource(source, loaded.config.policy(kind).timeout_seconds, made_from)
                await self._hosts.start(local)
                if kind == "skill" and remote is not None:
                    cast("SkillSource", source).library.add(remote)
            table[kind] = local
            if kind == "function":  # workflows are built later and look up functions by name in `self.functions`
                self.functions = cast("FunctionSource", local.source)
            roots.protect(getattr(local.source, "modules", ()))
        return self.changes({kind: table[kind] for kind in wanted})

    async def _is_judged_anew(self, source: ToolSource, roots: RootRules) -> bool:
        """Return whether an unchanged `source` must be built again because a decision about it may have changed.

        This is the case if a file of the source still waits for a person's acceptance. It is also the case if `roots`, the rules for access
        to folders, now decides differently whether a model may access a folder.
        """
        if getattr(source, "is_waiting", False):
            return True
        judged = cast("Mapping[tuple[Path, Access], str | None]", getattr(source, "judged", {}))
        for (root, access), before in judged.items():
            if await anyio.to_thread.run_sync(roots.refusal, root, access) != before:
                return True
        return False

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


class ServedSkills:
    """Gives agents the texts of the skills that the gateway serves at the time of each call; implements the protocol `SkillTexts`.

    Methods raise `SkillError` if the gateway serves no skills.
    """

    def __init__(self, local: LocalSources) -> None:
        self._local = local

    def instructions(self, names: Sequence[str]) -> str:
        """Return the part of an agent's instructions that lists the named skills. Raises `SkillError` for an unknown name."""
        return self._served().instructions(names)

    def allowed_tools(self, names: Sequence[str]) -> Sequence[JsonValue]:
        """Return the frontmatter value `allowed-tools` of each named skill, `None` if it is absent. Raises `SkillError`."""
        return self._served().allowed_tools(names)

    def _served(self) -> SkillSource:
        if (source := self._local.skills) is None:
            raise SkillError("No skills are served; set `expose.skills`.", code="unknown-skill")
        return source


def _wanted(config: GatewayConfig, *, has_remote: bool) -> list[tuple[LocalKind, Settings]]:
    """Return the kinds of local sources that the configuration needs, each with the settings on which the source depends.

    `has_remote` is whether remote servers have skills. Skills come first, because agents list skills.
    """
    expose, skills = config.expose, config.skills
    wanted: list[tuple[LocalKind, Settings]] = []
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
