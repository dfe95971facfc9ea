"""`AgentSource`: the agent files of some folders, as tools.

Reads once, when entered; a broken file is noted in `problems` and the others load. Entered by `app`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import anyio.to_thread

from gateway.agents.conversations import Conversations
from gateway.agents.definition import AgentDefinition, read_agent
from gateway.agents.following import GivenConversation
from gateway.agents.remote.run import Remote
from gateway.agents.tool import AgentTool
from gateway.chat.resolve import ModelResolver
from gateway.config.expand import Expander
from gateway.config.references import References
from gateway.errors import AgentError, ConfigError, GatewayError
from gateway.json_types import JsonValue
from gateway.sessions.context import ContextProvider
from gateway.tools.base import OnChange, Tool
from gateway.tools.functions_source import SourceProblem, import_object
from gateway.tools.toolbox import ToolBox
from gateway.types.messages import Message

logger = logging.getLogger(__name__)

SkillInstructions = Callable[[Sequence[str]], str]
"""What an agent is told about the skills it has, by name; raises `SkillError` for an unknown one."""

SkillWishes = Callable[[Sequence[str]], Sequence[JsonValue]]
"""The `allowed-tools` fields of skills, by name; raises `SkillError` for an unknown one."""


class AgentSource:
    """Agents of folders and files, in the order of their names."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        toolbox: ToolBox,
        models: ModelResolver,
        environ: Mapping[str, str],
        skill_instructions: SkillInstructions | None = None,
        skill_wishes: SkillWishes | None = None,
        conversations: Conversations | None = None,
        base_dir: Path | None = None,
    ) -> None:
        """`models` stays the caller's; `environ` is what remote agents' secrets may refer to; `base_dir` is where modules of
        context providers are looked for first. Without `conversations` no agent has sessions. No side effects before it is entered.
        """
        self._paths = list(paths)
        self._toolbox = toolbox
        self._skill_instructions = skill_instructions
        self._skill_wishes = skill_wishes
        self._conversations = conversations
        self._base_dir = base_dir or Path.cwd()
        self._models = models
        self._environ = environ
        self._remotes: dict[str, Remote] = {}
        self._tools: dict[str, AgentTool] = {}
        self.secrets: set[str] = set()
        """Values to mask wherever something is shown."""
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
                remote = await anyio.to_thread.run_sync(self._remote, definition)
                first = found.setdefault(definition.file.name, definition)
                if first is not definition:
                    raise AgentError(f"{path}: agent {definition.file.name!r} is already defined in {first.path}; rename one.")
                providers[definition.file.name] = await self._providers_of(definition)
            except AgentError as error:
                self.problems.append(SourceProblem(str(path), str(error).removeprefix(f"{path}: ")))
                logger.warning("%s", error)
                continue
            if remote is not None:
                self._remotes[definition.file.name] = remote
            for note in definition.notes:
                logger.info("%s", note)
        self.definitions = [found[name] for name in sorted(providers)]
        self._tools = {d.file.name: self._tool(d, providers[d.file.name]) for d in self.definitions}
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
            skill_wishes=self._skill_wishes,
            conversations=self._conversations,
            context_providers=providers,
            remote=self._remotes.get(definition.file.name),
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

    def conversation(self, name: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Tool | None:
        """A tool that runs agent `name` on `messages`, with the caller's own `tools`; `None` where there is no such agent."""
        agent = self._tools.get(name)
        return GivenConversation(agent, messages, tools) if agent is not None else None

    def _remote(self, definition: AgentDefinition) -> Remote | None:
        """Where an agent runs that does not run here. Blocks: a secret may come from a file.

        Raises:
            AgentError: A reference cannot be resolved.
        """
        written = definition.file.remote
        if written is None:
            return None
        expander = Expander(self._environ, References(self._environ, definition.path.parent), self.secrets)
        try:
            entry = expander.entry({"url": written.a2a or written.ag_ui, "headers": dict(written.headers)}, path="remote")
        except ConfigError as error:
            raise AgentError(f"{definition.path}: {error.path}: {error}") from None
        url, headers = str(entry["url"]), cast("dict[str, str]", entry["headers"])
        if written.a2a is not None:
            from gateway.agents.remote.a2a import A2AAgent

            file = definition.file
            return Remote(agent=A2AAgent(url=url, headers=headers, name=file.name, description=file.description))
        from gateway.chat.agui import AGUIChatClient

        return Remote(client=AGUIChatClient(endpoint=url, headers=headers))

    async def __aexit__(self, *exc: object) -> None:
        for remote in self._remotes.values():
            for client in (remote.agent, remote.client):
                if client is not None:
                    await client.aclose()

    async def tools(self) -> Sequence[Tool]:
        """One tool per agent."""
        return list(self._tools.values())

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
