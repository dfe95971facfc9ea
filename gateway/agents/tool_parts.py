"""`Parts`: what the agent of one file runs with, for its tool (`tool`) and its runs (`tool_runs`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gateway.agents.conversations import Conversations
from gateway.agents.definition import AgentDefinition
from gateway.agents.features import RootJudge
from gateway.agents.remote.run import Remote
from gateway.chat.resolve import ModelResolver
from gateway.config.agents import AgentSettings, FileAccess
from gateway.json_types import JsonValue
from gateway.sessions.context import ContextProvider
from gateway.tools.toolbox import ResourceBox, ToolBox, ToolGuards


class SkillTexts(Protocol):
    """What agents need to know of skills, by name; both raise `SkillError` for an unknown one."""

    def instructions(self, names: Sequence[str]) -> str:
        """Return the part of the instructions that describes these skills."""
        ...

    def wishes(self, names: Sequence[str]) -> Sequence[JsonValue]:
        """Their `allowed-tools`, as written."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The parts that all agents of a gateway share."""

    toolbox: ToolBox
    models: ModelResolver
    skills: SkillTexts | None = None
    """`None` where none are served."""
    conversations: Conversations | None = None
    """Without them every call stands alone."""
    settings: AgentSettings = field(default_factory=AgentSettings)
    """What holds where a file says nothing else."""
    base_dir: Path = field(default_factory=Path)
    """Folders of `settings` are relative to it."""
    resources: ResourceBox | None = None
    """Where links among attachments lead."""
    roots: RootJudge | None = None
    """Which folders a model may have; without it any."""
    guards: ToolGuards | None = None
    """The gate for tools that agents bring along themselves; `None` outside a gateway."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What one agent runs with."""

    definition: AgentDefinition
    shared: Shared
    context_providers: Sequence[ContextProvider]
    remote: Remote
    middleware: Sequence[object]
    conversations: Conversations | None


def files_of(agent: AgentDefinition, shared: Shared) -> tuple[FileAccess, Path] | None:
    """Return the files that an agent gets and the folder that their root is relative to."""
    if agent.file.files is not None:
        return agent.file.files, agent.path.parent
    return (shared.settings.files, shared.base_dir) if shared.settings.files is not None else None
