"""`AgentSource`: provides the agents of agent files as MCP tools, and their cards (JSON descriptions) as resources.

Entering the source (`async with`) reads the files. A file that cannot be used is listed in `problems`; the other files load. When files
change, the gateway creates a new source and calls `go_on_from(previous)`. The new source then reuses the agents of unchanged files, and the
last usable version of a file that no longer loads.
"""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio.to_thread

from gateway.agents.agent_setup import AgentServices, AgentSetup, SkillTexts, files_of
from gateway.agents.cards import SCHEME, to_contents, to_resource
from gateway.agents.conversations import Conversations
from gateway.agents.definition import AgentDefinition, read_agent
from gateway.agents.features import RootJudge, root_refusal
from gateway.agents.files.file_access import file_tools
from gateway.agents.files.store import InMemoryAgentFileStore
from gateway.agents.lifecycle.hooks import LifecycleHooks
from gateway.agents.remote.remote_run import Remote
from gateway.agents.tool import AgentTool, ConversationTool
from gateway.chat.model_resolver import ModelResolver
from gateway.config.agents import AgentSettings, MiddlewareEntry
from gateway.config.executes import RunEntry, middleware_entry
from gateway.config.expand import Expander
from gateway.config.references import References
from gateway.config.watch import Signature, signature_of
from gateway.errors import AgentError, ConfigError, GatewayError, NotFound, PolicyDenied
from gateway.gate.function_rules import FUNCTION_SOURCE, FunctionRules
from gateway.json_types import JsonObject, JsonValue
from gateway.middleware import sort_middleware
from gateway.policy.root_policy import Access
from gateway.sessions.session_context import ContextProvider
from gateway.staging import ExperimentalWarning
from gateway.tools.base import Finished, Kind, OnChange, Tool
from gateway.tools.context import CallContext
from gateway.tools.functions_source import SourceProblem, import_object, still_served
from gateway.tools.modules import current_generation
from gateway.tools.toolbox import ResourceBox, ToolBox, ToolGuards
from gateway.types.messages import Message

if TYPE_CHECKING:
    from gateway.agents.run_context import MiddlewareTypes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedAgent:
    """The agent of one agent file, with the objects that were created for it."""

    definition: AgentDefinition
    remote: Remote | None
    """Connection to the remote agent, if the agent runs elsewhere. The last source that uses the connection closes it."""
    providers: Sequence[ContextProvider]
    middleware: Sequence[MiddlewareTypes]
    around: Sequence[MiddlewareTypes]
    """Middleware that the configuration adds to all agents (`agents.middleware`)."""
    signature: Signature
    generation: int
    """Number of reloads of the Python modules that agent files import, up to the time this agent was loaded (`OwnModules.generation`)."""

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.definition.file.name

    def setup(self, shared: AgentServices) -> AgentSetup:
        """Return the object with which the agent's MCP tool runs the agent: its file, middleware, context providers and connection.

        `shared` are the services that all agents use, such as the chat models and the stored sessions.
        """
        return AgentSetup(self.definition, shared, self.providers, self.remote or Remote(), [*self.around, *self.middleware])

    def is_current(self, signature: Signature, generation: int, around: Sequence[MiddlewareTypes]) -> bool:
        """Return whether the file, the middleware of all agents (`around`), and if the file names code, all modules are unchanged."""
        same = signature is not None and signature == self.signature and around is self.around
        return same and (not self.definition.file.python_references or generation == self.generation)


class AgentSource:
    """A source of tools: one tool for each agent file in the given folders and files, sorted by name."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        toolbox: ToolBox,
        models: ModelResolver,
        environ: Mapping[str, str],
        skills: SkillTexts | None = None,
        conversations: Conversations | None = None,
        base_dir: Path | None = None,
        settings: AgentSettings | None = None,
    ) -> None:
        """Configure the source. Entering the source (`async with`) reads the files. The caller closes `models`.

        `environ` resolves secrets of remote agents. Python modules are imported from `base_dir` first. `settings` apply to every agent.
        `toolbox` finds the tools that agent files name. If `toolbox` is also a `ResourceBox`, attachments may link resources. If it is a
        `ToolGuards`, policy checks the calls of agents' own tools, such as file tools. Without `conversations` no agent has sessions.
        """
        self._paths = list(paths)
        self._base_dir = base_dir or Path.cwd()
        self._shared = AgentServices(
            toolbox=toolbox,
            models=models,
            skills=skills,
            conversations=conversations,
            settings=settings or AgentSettings(),
            base_dir=self._base_dir,
            resources=toolbox if isinstance(toolbox, ResourceBox) else None,
            guards=toolbox if isinstance(toolbox, ToolGuards) else None,
        )
        self._environ = environ
        self._refusal: Callable[[RunEntry], str | None] = lambda entry: None
        self._rules = FunctionRules(lambda source: None)
        self.loaded: dict[Path, LoadedAgent] = {}
        """The agents that this source serves, by path of their agent file."""
        self.around: list[MiddlewareTypes] | None = None
        """Middleware that the configuration adds to all agents (`agents.middleware`); `None` until it is created."""
        self.generation = current_generation()
        self._previous: AgentSource | None = None
        self._left: set[int] = set()
        self._tools: dict[str, AgentTool] = {}
        self.secrets: set[str] = set()
        """Secret values, such as headers of remote agents, that must be masked in all output."""
        self.definitions: list[AgentDefinition] = []
        """Parsed agent files of the agents that loaded."""
        self.unloaded: list[AgentDefinition] = []
        """Parsed agent files whose Python references or remote address cannot be used."""
        self.problems: list[SourceProblem] = []
        """Files and keys that did not load; `moongate doctor` prints them."""
        self.is_waiting = False
        """Whether a file is not loaded because a person has not yet accepted the Python code that it names."""
        self.judged: dict[tuple[Path, Access], str | None] = {}
        """Decisions about access to folders: the reason for a refusal, or `None`. The catalog reloads agents if a decision changes."""
        self.remarks: list[SourceProblem] = []
        """Notes for the operator about the folders of agents that loaded."""

    def judge_folders(self, roots: RootJudge) -> None:
        """Restrict models to folders that `roots` allows (default: all folders). Call this before entering the source."""
        self._shared = dataclasses.replace(self._shared, roots=roots)

    def judge_files(self, refusal: Callable[[RunEntry], str | None]) -> None:
        """Do not import the code of a file if `refusal` returns a reason; `refusal` may block. Call this before entering the source."""
        self._refusal = refusal

    def judge_code(self, rules: FunctionRules) -> None:
        """Import and run only the Python code that `rules` allow, and audit its use. Call this before entering the source."""
        self._rules = rules

    @property
    def id(self) -> str:
        """The source id, always `agent`."""
        return "agent"

    def go_on_from(self, previous: AgentSource) -> None:
        """Reuse an agent of the source `previous`, which has the same configuration, if its file is unchanged or no longer loads."""
        self._previous = previous

    async def __aenter__(self) -> AgentSource:
        """Read all agent files and create their tools. Problems are logged and added to `problems`."""
        before = self._previous.loaded if self._previous is not None else {}
        around = await self._around_or_noted(before)
        found: dict[str, LoadedAgent] = {}
        made: list[LoadedAgent] = []
        for path in await anyio.to_thread.run_sync(find_files, self._paths):
            known = before.get(path)
            try:
                loaded = await self._load(path, known, around) if around is not None else known
            except AgentError as error:
                self._note(path, error, stays=known is not None)
                loaded = known
            if loaded is not None and loaded is not known:
                made.append(loaded)
            if loaded is not None and (first := found.setdefault(loaded.name, loaded)) is not loaded:
                text = f"{path}: agent {loaded.name!r} is already defined in {first.definition.path}; rename one."
                self._note(path, AgentError(text))
        for name in sorted(found):
            loaded = found[name]
            try:
                if self._shared.roots is not None:
                    self._shared.roots.protect(loaded.definition.file.python_references)
                await self._check_roots(loaded.definition, loaded.providers)
            except AgentError as error:
                self._note(loaded.definition.path, error)
                continue
            self.loaded[loaded.definition.path] = loaded
            if self._previous is not None:  # so that the previous source does not close a connection that this source uses
                self._previous.give_up(loaded)
        for loaded in made:
            if self.loaded.get(loaded.definition.path) is not loaded:
                await _close(loaded.remote)
        self.definitions = [loaded.definition for loaded in self.loaded.values()]
        self._tools = {loaded.name: AgentTool(loaded.setup(self._shared)) for loaded in self.loaded.values()}
        self._previous = None
        return self

    async def _around_or_noted(self, before: Mapping[Path, LoadedAgent]) -> list[MiddlewareTypes] | None:
        """Return the middleware of all agents. If it cannot be created, return `None` and add each line of the reason to `problems`."""
        try:
            return await self._around(before)
        except AgentError as error:
            for line in str(error).splitlines():
                text = still_served(line) if before else f"{line} No agent is served until this is fixed."
                self.problems.append(SourceProblem("agents.middleware", text.removeprefix("agents.middleware: ")))
                logger.warning("agent middleware not loaded reason=%s", text)
            return None

    async def _around(self, before: Mapping[Path, LoadedAgent]) -> list[MiddlewareTypes]:
        """Return the middleware that `agents.middleware` names; reuse the previous source's if it is unchanged. Raises `AgentError`."""
        written, known = self._shared.settings.middleware, self._previous
        if known is not None and known.generation == self.generation and known.around is not None:
            self.around = known.around
            return known.around
        await self._admit(middleware_entry(written) if written else None, "agents.middleware")
        problems: list[str] = []
        around = await self._made(written, FUNCTION_SOURCE, "agents.middleware", problems)
        if problems:
            raise AgentError("\n".join(problems))
        self.around = around
        return around

    async def _load(self, path: Path, known: LoadedAgent | None, around: Sequence[MiddlewareTypes]) -> LoadedAgent:
        """Return the loaded agent `known` if its file is unchanged; else read the file and create its objects. Raises `AgentError`."""
        signature = await anyio.to_thread.run_sync(signature_of, path)
        if known is not None and known.is_current(signature, self.generation, around):
            return known
        definition = await anyio.to_thread.run_sync(read_agent, path)
        if self._shared.roots is not None:
            self._shared.roots.protect(definition.file.python_references)
        await self._admit(definition.run_entry, str(definition.path))
        problems: list[str] = []
        own = await self._made(definition.file.middleware, f"agent/{definition.file.name}", f"{definition.path}: middleware", problems)
        providers = await self._providers_of(definition, problems)
        remote: Remote | None = None
        try:
            remote = await anyio.to_thread.run_sync(self._remote, definition)
        except AgentError as error:
            problems.append(str(error))
        if problems:
            self.unloaded.append(definition)
            await _close(remote)
            raise AgentError("\n".join(problems))
        for note in definition.notes:
            logger.info("agent file note text=%s", note)
        return LoadedAgent(definition, remote, providers, own, around, signature, self.generation)

    def give_up(self, loaded: LoadedAgent) -> None:
        """Hand `loaded` over to another source, so that leaving this source does not close the agent's connection."""
        self._left.add(id(loaded))

    async def _admit(self, entry: RunEntry | None, where: str) -> None:
        """Raise `AgentError` if a person must accept the Python code that `entry` names before it may be imported."""
        if entry is not None and (refusal := await anyio.to_thread.run_sync(self._refusal, entry)) is not None:
            self.is_waiting = True
            raise AgentError(f"{where}: {refusal}")

    async def _check_roots(self, definition: AgentDefinition, providers: Sequence[ContextProvider]) -> None:
        """Check every folder on disk that the agent's model can access, and add warnings about folders without write access to `remarks`.

        Raises:
            AgentError: A folder is refused.
        """
        roots = self._shared.roots
        if roots is None:
            return
        for folder in (folder for provider in providers for folder in provider.written_folders):
            await self._check_root(folder, "write", f"{definition.path}: context-providers")
        if (files := files_of(definition, self._shared)) is None:
            return
        access, folder = files
        root = folder / access.root
        await self._check_root(root, access.access, f"{definition.path}: files.root")
        if access.access == "read" and (remark := await anyio.to_thread.run_sync(roots.remark, root)):
            self.remarks.append(SourceProblem(str(definition.path), f"files.root: {remark}"))

    async def _check_root(self, root: Path, access: Access, where: str) -> None:
        refusal = await root_refusal(root, access, self._shared.roots)
        self.judged[root, access] = refusal
        if refusal is not None:
            raise AgentError(f"{where}: {refusal}")

    def _note(self, path: Path, error: AgentError, *, stays: bool = False) -> None:
        """Log each line of the error's text and add it to `problems`. With `stays`, append that the file's last version is still served."""
        for line in str(error).splitlines():
            text = still_served(line) if stays else line
            self.problems.append(SourceProblem(str(path), text.removeprefix(f"{path}: ")))
            logger.warning("agent not loaded reason=%s", text)

    def file_schemas(self) -> dict[str, dict[str, JsonValue]]:
        """Return the input schemas of the agents' file tools, by policy key (`agent/<name>`) and tool name, to check policies."""
        found: dict[str, dict[str, JsonValue]] = {}
        for definition in self.definitions:
            if (files := files_of(definition, self._shared)) is not None:
                tools = file_tools(InMemoryAgentFileStore(), access=files[0].access)
                found[f"agent/{definition.file.name}"] = {tool.definition.name: tool.definition.input_schema for tool in tools}
        return found

    @property
    def has_sessions(self) -> bool:
        """Whether callers may have sessions with at least one of the agents."""
        return self._shared.conversations is not None and any(definition.file.history != "none" for definition in self.definitions)

    async def _load_code(self, source: str, reference: str, make: Callable[[object], object]) -> object:
        """Import the object that `reference` names, and return `make(object)`. Policy for `source` checks the name and the object first.

        Raises:
            PolicyDenied: Policy does not allow the code. A name that policy denies is not imported.
        """

        def admit(found: object = None) -> None:
            if (verdict := self._rules.admit(source, reference, found)) is not None:
                text = f"{reference!r} may not run: {verdict.reason} Change the rule, or remove the reference."
                raise PolicyDenied(text, rule=verdict.rule, subject=reference)

        admit()
        with self._rules.loading(source, reference):
            found = await import_object(reference, base_dir=self._base_dir)
            admit(found)
            return make(found)

    async def _made(self, entries: Sequence[MiddlewareEntry], source: str, where: str, problems: list[str]) -> list[MiddlewareTypes]:
        """Return the middleware that `entries` name: imported objects and functions, and instances of imported classes.

        All lifecycle hooks are combined at the position of the first hook, because their relative order matters. Each entry that
        cannot be imported or created, or is not middleware, adds a line to `problems`.
        """
        made: list[MiddlewareTypes] = []
        hooks: list[LifecycleHooks] = []
        place = 0
        for entry in entries:
            reference, arguments = (entry, None) if isinstance(entry, str) else next(iter(entry.items()))
            try:
                value = await self._load_code(source, reference, partial(_with_arguments, arguments))
                if isinstance(value, LifecycleHooks):
                    place = place if hooks else len(made)
                    hooks.append(value)
                    continue
                sort_middleware([value])
            except PolicyDenied as error:
                problems.append(f"{where}: {error}")
                continue
            except (TypeError, ValueError, GatewayError) as error:
                problems.append(f"{where}: {reference!r}: {_on_one_line(error)}")
                continue
            made.append(cast("MiddlewareTypes", value))
        return [*made[:place], *_layers(hooks), *made[place:]] if hooks else made

    async def _providers_of(self, definition: AgentDefinition, problems: list[str]) -> list[ContextProvider]:
        """Return the context providers that an agent file names: imported objects, or the results of imported factories.

        Each reference that cannot be imported or created, or is not a context provider, adds a line to `problems`.
        """
        made: list[ContextProvider] = []
        where = f"{definition.path}: context-providers"
        for reference in definition.file.context_providers:
            try:
                value = await self._load_code(f"agent/{definition.file.name}", reference, _called)
            except PolicyDenied as error:
                problems.append(f"{where}: {error}")
            except ConfigError as error:
                problems.append(f"{where}: {reference!r}: {_on_one_line(error)}")
            except (TypeError, ValueError, GatewayError) as error:
                problems.append(f"{where}: {reference!r} could not be made: {_on_one_line(error)}")
            else:
                if isinstance(value, ContextProvider):
                    made.append(value)
                else:
                    problems.append(f"{where}: {reference!r} is not a ContextProvider, but {type(value).__name__}.")
        return made

    def conversation(self, name: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Tool | None:
        """Return a tool that runs agent `name` on the conversation `messages`; the caller executes `tools`. `None` for an unknown agent."""
        agent = self._tools.get(name)
        return ConversationTool(agent, messages, tools) if agent is not None else None

    def _remote(self, definition: AgentDefinition) -> Remote | None:
        """Return the connection to a remote agent, or `None` for an agent of this process. May block to read secrets.

        Raises:
            AgentError: A reference to a secret cannot be resolved, or a package is missing.
        """
        written = definition.file.remote
        if written is None:
            return None
        expander = Expander(self._environ, References(self._environ, definition.path.parent), self.secrets)
        mistakes: list[ConfigError] = []
        entry = expander.entry({"url": written.a2a or written.ag_ui, "headers": dict(written.headers)}, path="remote", mistakes=mistakes)
        if mistakes:
            raise AgentError(f"{definition.path}: {'; '.join(f'{error.path}: {error}'.rstrip('.') for error in mistakes)}.")
        url, headers = str(entry["url"]), cast("dict[str, str]", entry["headers"])
        if written.a2a is not None:
            from gateway.agents.remote.a2a_agent import INSTALL_HINT, A2AAgent

            if find_spec("a2a") is None:
                raise AgentError(f"{definition.path}: remote: {INSTALL_HINT}")

            file = definition.file
            return Remote(agent=A2AAgent(url=url, headers=headers, name=file.name, description=file.description))
        from gateway.chat.agui_client import AGUIChatClient

        return Remote(client=AGUIChatClient(endpoint=url, headers=headers))

    async def __aexit__(self, *exc: object) -> None:
        for loaded in self.loaded.values():
            if id(loaded) not in self._left:
                await _close(loaded.remote)

    async def tools(self) -> Sequence[Tool]:
        """Return one tool per agent."""
        return list(self._tools.values())

    async def list(self, kind: Kind) -> Sequence[JsonObject]:
        """Return the agents' cards as resources if `kind` is `resources`, and an empty list otherwise."""
        return [to_resource(definition) for definition in self.definitions] if kind == "resources" else []

    async def read(self, uri: str, ctx: CallContext) -> Finished:
        """Return the card (JSON description) of the agent with this URI. Raises `NotFound`."""
        return Finished(to_contents(self._known(uri)))

    def _known(self, uri: str) -> AgentDefinition:
        found = next((d for d in self.definitions if uri == f"{SCHEME}{d.file.name}"), None)
        if found is None:
            raise NotFound("resource", uri)
        return found

    async def get_prompt(self, name: str, arguments: Mapping[str, str], ctx: CallContext) -> Finished:
        """Raise `NotFound`: the source has no prompts."""
        raise NotFound("prompt", name)

    async def complete(self, ref: JsonObject, argument: JsonObject, context: JsonObject | None, ctx: CallContext) -> JsonObject:
        """Return no suggestions: this source does not support completion of arguments."""
        return {"values": []}

    async def watch(self, uri: str) -> None:
        """Accept a subscription to an agent's card. No update follows, because a card does not change while this source exists.

        Raises `NotFound` if no card has the URI.
        """
        self._known(uri)

    async def unwatch(self, uri: str) -> None:
        """Accept the end of a subscription; there is nothing to do."""

    def subscribe(self, on_change: OnChange) -> None:
        """Ignore the callback: this source never changes, because `app` replaces it by a new source when files change."""


async def _close(remote: Remote | None) -> None:
    for client in (remote.agent, remote.client) if remote is not None else ():
        if client is not None:
            await client.aclose()


def _with_arguments(arguments: JsonObject | None, value: object) -> object:
    if arguments is None and not isinstance(value, type):
        return value
    return cast("Callable[..., object]", value)(**(arguments or {}))


def _called(value: object) -> object:
    return value() if callable(value) and not isinstance(value, ContextProvider) else value


def _on_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _layers(hooks: Sequence[LifecycleHooks]) -> list[MiddlewareTypes]:
    from gateway.agents.lifecycle.hook_layers import lifecycle_middleware

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # docs/agents.md says that the key is experimental
        return cast("list[MiddlewareTypes]", lifecycle_middleware(*hooks))


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Return the agent files: the Markdown files in `paths`, and those directly in each folder in `paths`, sorted, without READMEs."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(p for p in path.glob("*.md") if p.is_file() and p.stem.upper() != "README")
        elif path.suffix == ".md":
            found.append(path)
    return found
