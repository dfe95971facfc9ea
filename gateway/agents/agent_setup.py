"""`AgentSetup`: the configuration and services of one agent that an agent file defines. `AgentServices`: services that all agents share.

Used by `tool` and `agent_runs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gateway.agents.conversations import Conversations
from gateway.agents.definition import AgentDefinition
from gateway.agents.features import RootJudge
from gateway.agents.remote.remote_run import Remote
from gateway.chat.model_resolver import ModelResolver
from gateway.config.agents import AgentSettings, FileAccess
from gateway.json_types import JsonValue
from gateway.sessions.session_context import ContextProvider
from gateway.tools.toolbox import ResourceBox, ToolBox, ToolGuards

if TYPE_CHECKING:
    from gateway.agents.run_context import MiddlewareTypes


class SkillTexts(Protocol):
    """Interface for reading the gateway's skills by name. Both methods raise `SkillError` for an unknown skill."""

    def instructions(self, names: Sequence[str]) -> str:
        """Return the text that describes the skills `names` in an agent's instructions."""
        ...

    def allowed_tools(self, names: Sequence[str]) -> Sequence[JsonValue]:
        """Return the value of the field `allowed-tools` of each skill's file. An agent can be restricted to these tools."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentServices:
    """Services and settings that all agents of agent files share."""

    toolbox: ToolBox
    models: ModelResolver
    skills: SkillTexts | None = None
    """Reads the skills that agents use; `None` if the gateway serves no skills."""
    conversations: Conversations | None = None
    """Stores the sessions of callers with agents. Without it (`None`), every call of an agent starts a new conversation."""
    settings: AgentSettings = field(default_factory=AgentSettings)
    """Settings of the configuration for all agents, used for keys that an agent file omits."""
    base_dir: Path = field(default_factory=Path)
    """Directory to which folders in `settings` are relative."""
    resources: ResourceBox | None = None
    """Reads the gateway's resources that attachments of a task link to."""
    roots: RootJudge | None = None
    """Decides which folders a model may access; `None` allows every folder."""
    guards: ToolGuards | None = None
    """Provides the policy checks for tools of an agent that are not in the gateway's catalog (file tools); `None` outside a gateway."""


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """Configuration and services of the agent of one agent file."""

    definition: AgentDefinition
    shared: AgentServices
    context_providers: Sequence[ContextProvider]
    remote: Remote
    middleware: Sequence[MiddlewareTypes]

    @property
    def conversations(self) -> Conversations | None:
        """Stores the sessions of callers with this agent; `None` if every call of the agent starts a new conversation."""
        return self.shared.conversations if self.definition.file.history != "none" else None


def files_of(agent: AgentDefinition, shared: AgentServices) -> tuple[FileAccess, Path] | None:
    """Return an agent's file access settings and the folder to which the path `root` is relative; `None` if the agent has no file access.

    The agent file's key `files` contains the settings. Without this key, the settings for all agents apply.
    """
    if agent.file.files is not None:
        return agent.file.files, agent.path.parent
    return (shared.settings.files, shared.base_dir) if shared.settings.files is not None else None
