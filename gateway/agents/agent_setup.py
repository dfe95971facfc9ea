"""`AgentSetup` and `AgentServices`: everything that the agent of one file runs with. Used by `tool` and `agent_runs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gateway.agents.conversations import Conversations
from gateway.agents.definition import AgentDefinition
from gateway.agents.features import RootJudge
from gateway.agents.remote.remote_run import Remote
from gateway.chat.model_resolver import ModelResolver
from gateway.config.agents import AgentSettings, FileAccess
from gateway.json_types import JsonValue
from gateway.sessions.session_context import ContextProvider
from gateway.tools.toolbox import ResourceBox, ToolBox, ToolGuards


class SkillTexts(Protocol):
    """Access to skills by name; both methods raise `SkillError` for an unknown skill."""

    def instructions(self, names: Sequence[str]) -> str:
        """Return the text that describes these skills in an agent's instructions."""
        ...

    def allowed_tools(self, names: Sequence[str]) -> Sequence[JsonValue]:
        """Return the value of `allowed-tools` of each of these skills, as written in the skill's file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentServices:
    """Services and settings that all agents of a gateway share."""

    toolbox: ToolBox
    models: ModelResolver
    skills: SkillTexts | None = None
    """`None` if no skills are served."""
    conversations: Conversations | None = None
    """`None` if no sessions are kept; every call is then a conversation of its own."""
    settings: AgentSettings = field(default_factory=AgentSettings)
    """Values for keys that an agent file leaves out."""
    base_dir: Path = field(default_factory=Path)
    """Base directory of relative folders in `settings`."""
    resources: ResourceBox | None = None
    """Reads resources that attachments link to."""
    roots: RootJudge | None = None
    """Decides which folders a model may access; `None` allows every folder."""
    guards: ToolGuards | None = None
    """Provides wrappers that check the calls of tools that agents add themselves, by policy; `None` outside a gateway."""


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """Configuration and services of one agent."""

    definition: AgentDefinition
    shared: AgentServices
    context_providers: Sequence[ContextProvider]
    remote: Remote
    middleware: Sequence[object]
    conversations: Conversations | None


def files_of(agent: AgentDefinition, shared: AgentServices) -> tuple[FileAccess, Path] | None:
    """Return the file access of an agent and the folder that its root is relative to, or `None` if the agent has no file access."""
    if agent.file.files is not None:
        return agent.file.files, agent.path.parent
    return (shared.settings.files, shared.base_dir) if shared.settings.files is not None else None
