"""`AgentSource`: the agent files of some folders, as tools.

Reads once, when entered; a broken file is noted in `problems` and the others load. Entered by `app`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio.to_thread

from gateway.agents.conversations import Conversations
from gateway.agents.definition import AgentDefinition, read_agent
from gateway.agents.tool import AgentTool
from gateway.chat.resolve import ModelResolver
from gateway.errors import AgentError, ConfigError, GatewayError
from gateway.sessions.context import ContextProvider
from gateway.tools.base import OnChange, Tool
from gateway.tools.functions_source import SourceProblem, import_object
from gateway.tools.toolbox import ToolBox

logger = logging.getLogger(__name__)

SkillInstructions = Callable[[Sequence[str]], str]
"""What an agent is told about the skills it has, by name; raises `SkillError` for an unknown one."""


class AgentSource:
    """Agents of folders and files, in the order of their names."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        toolbox: ToolBox,
        models: ModelResolver,
        skill_instructions: SkillInstructions | None = None,
        conversations: Conversations | None = None,
        base_dir: Path | None = None,
    ) -> None:
        """`models` stays the caller's; `base_dir` is where modules of context providers are looked for first. Without
        `conversations` no agent has sessions. No side effects before it is entered.
        """
        self._paths = list(paths)
        self._toolbox = toolbox
        self._skill_instructions = skill_instructions
        self._conversations = conversations
        self._base_dir = base_dir or Path.cwd()
        self._models = models
        self._tools: list[Tool] = []
        self.definitions: list[AgentDefinition] = []
        """The agents that loaded."""
        self.problems: list[SourceProblem] = []
        """What did not load; shown by `moongate doctor`."""

    @property
    def id(self) -> str:
        """Always `agent`."""
        return "agent"

    async def __aenter__(self) -> AgentSource:
        """Read every file."""
        found: dict[str, AgentDefinition] = {}
        providers: dict[str, list[ContextProvider]] = {}
        for path in await anyio.to_thread.run_sync(find_files, self._paths):
            try:
                definition = await anyio.to_thread.run_sync(read_agent, path)
                first = found.setdefault(definition.file.name, definition)
                if first is not definition:
                    raise AgentError(f"{path}: agent {definition.file.name!r} is already defined in {first.path}; rename one.")
                providers[definition.file.name] = await self._providers_of(definition)
            except AgentError as error:
                self.problems.append(SourceProblem(str(path), str(error).removeprefix(f"{path}: ")))
                logger.warning("%s", error)
                continue
            for note in definition.notes:
                logger.info("%s", note)
        self.definitions = [found[name] for name in sorted(providers)]
        self._tools = [self._tool(definition, providers[definition.file.name]) for definition in self.definitions]
        return self

    @property
    def has_sessions(self) -> bool:
        """Whether callers may have sessions with one of the agents."""
        return self._conversations is not None and any(definition.file.history != "none" for definition in self.definitions)

    def _tool(self, definition: AgentDefinition, providers: Sequence[ContextProvider]) -> AgentTool:
        return AgentTool(
            definition,
            toolbox=self._toolbox,
            models=self._models,
            skill_instructions=self._skill_instructions,
            conversations=self._conversations,
            context_providers=providers,
        )

    async def _providers_of(self, definition: AgentDefinition) -> list[ContextProvider]:
        """The context providers that a file names: objects, or what makes one when called.

        Raises:
            AgentError: One cannot be imported or is none.
        """
        made: list[ContextProvider] = []
        for reference in definition.file.context_providers:
            try:
                value = await import_object(reference, base_dir=self._base_dir)
                value = value() if callable(value) and not isinstance(value, ContextProvider) else value
            except ConfigError as error:
                raise AgentError(f"{definition.path}: context-providers: {reference!r}: {error}") from None
            except (TypeError, ValueError, GatewayError) as error:
                raise AgentError(f"{definition.path}: context-providers: {reference!r} could not be made: {error}") from None
            if not isinstance(value, ContextProvider):
                raise AgentError(f"{definition.path}: context-providers: {reference!r} is no ContextProvider, but {type(value).__name__}.")
            made.append(value)
        return made

    async def __aexit__(self, *exc: object) -> None:
        """Nothing is held open."""

    async def tools(self) -> Sequence[Tool]:
        """One tool per agent."""
        return list(self._tools)

    def subscribe(self, on_change: OnChange) -> None:
        """Agents do not change while the gateway runs."""


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The agent files below `paths`: `*.agent.md` and other Markdown with frontmatter, without READMEs; sorted."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(p for p in path.glob("*.md") if p.is_file() and p.stem.upper() != "README")
        elif path.suffix == ".md":
            found.append(path)
    return found
