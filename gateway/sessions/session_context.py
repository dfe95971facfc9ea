"""`SessionContext` and `ContextProvider`: add messages, instructions, tools or middleware to a run, and inspect its result.

Names and signatures are agent-framework's. Providers belong to the agent and see all data of a run, so use only trusted code.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, cast

from gateway.errors import MiddlewareException
from gateway.json_types import JsonMapping, JsonObject
from gateway.middleware import sort_middleware
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.tools.base import Tool
from gateway.tools.tool_lists import normalize_tools
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse

ATTRIBUTION_KEY = "_attribution"
"""Key in the `additional_properties` of a message during a run: names the provider that added the message. The key is never stored."""

CONTEXT_SOURCE_KEY = "context_source"
"""Key in the `additional_properties` of a tool: id of the provider that added the tool to the run."""


PRINCIPAL_KEY = "dev.moongate/principal"
"""Key in the `metadata` of a run: id of the caller for whom the agent runs; `local` in a Python program."""


class HasSourceId(Protocol):
    """An object with a source id, such as a context provider."""

    source_id: str


class SessionContext:
    """A run as its context providers see it; created for each run."""

    def __init__(
        self,
        *,
        session_id: str | None = None,
        service_session_id: str | None = None,
        input_messages: list[Message],
        context_messages: dict[str, list[Message]] | None = None,
        instructions: list[str] | None = None,
        tools: list[Tool] | None = None,
        middleware: Mapping[str, object] | None = None,
        options: JsonMapping | None = None,
        metadata: JsonObject | None = None,
    ) -> None:
        """`options` are the run's options, read-only; `metadata` is shared by the run's providers."""
        self.session_id = session_id
        self.service_session_id = service_session_id
        self.input_messages = input_messages
        self.context_messages: dict[str, list[Message]] = context_messages or {}
        """Source id of a provider → messages that it added. They are sent before the input, in the order in which they were added."""
        self.instructions: list[str] = instructions or []
        self.tools: list[Tool] = tools or []
        self.middleware: dict[str, list[object]] = {}
        self.options: JsonMapping = MappingProxyType(dict(options or {}))
        self.metadata: JsonObject = metadata if metadata is not None else {}
        self._response: AgentResponse | None = None
        for source_id, given in (middleware or {}).items():
            self.extend_middleware(source_id, given)

    @property
    def response(self) -> AgentResponse | None:
        """The run's response, read-only; set before `after_run`."""
        return self._response

    def finish(self, response: AgentResponse) -> None:
        """Set the run's response. The agent calls this once."""
        self._response = response

    def extend_messages(self, source: str | HasSourceId, messages: Message | Sequence[Message]) -> None:
        """Add copies of messages before the input of the run. `source` is the provider that adds them; each copy is marked with its id."""
        attribution: JsonObject = {"source_id": source if isinstance(source, str) else source.source_id}
        if not isinstance(source, str):
            attribution["source_type"] = type(source).__name__
        added = self.context_messages.setdefault(attribution["source_id"], [])
        for message in [messages] if isinstance(messages, Message) else messages:
            own = copy.copy(message)
            own.additional_properties = {ATTRIBUTION_KEY: attribution, **message.additional_properties}
            added.append(own)

    def extend_instructions(self, source_id: str, instructions: str | Sequence[str]) -> None:
        """Add instructions for this run."""
        self.instructions.extend([instructions] if isinstance(instructions, str) else instructions)

    def extend_tools(self, source_id: str, tools: Tool | Callable[..., object] | Sequence[Tool | Callable[..., object]]) -> None:
        """Add tools or functions for this run; tools with `additional_properties` are marked with their source."""
        added = normalize_tools(tools)
        for tool in added:
            properties = getattr(tool, "additional_properties", None)
            if isinstance(properties, dict):
                cast("JsonObject", properties)[CONTEXT_SOURCE_KEY] = source_id
        self.tools.extend(added)

    def extend_middleware(self, source_id: str, middleware: object) -> None:
        """Add one or several chat or function middleware for this run.

        Raises:
            TypeError: An object is not middleware.
            MiddlewareException: An object is agent middleware, which is too late because the run has started, or of unknown kind.
        """
        items = list(cast("Sequence[object]", middleware)) if isinstance(middleware, Sequence) else [middleware]
        if isinstance(middleware, str | bytes) or not all(callable(i) or callable(getattr(i, "process", None)) for i in items):
            raise TypeError("middleware must be a middleware object or a sequence of middleware objects")
        if sort_middleware(items).agent:
            raise MiddlewareException("Context providers may only add chat or function middleware.")
        self.middleware.setdefault(source_id, []).extend(items)

    def get_middleware(self) -> list[object]:
        """Return the added middleware in the order of the providers."""
        return [one for added in self.middleware.values() for one in added]

    def get_messages(
        self,
        *,
        sources: Collection[str] | None = None,
        exclude_sources: Collection[str] | None = None,
        include_input: bool = False,
        include_response: bool = False,
    ) -> list[Message]:
        """Return the messages that all or selected providers added, in order; then the input and the response, if requested."""
        found: list[Message] = []
        for source_id, messages in self.context_messages.items():
            if (sources is None or source_id in sources) and not (exclude_sources and source_id in exclude_sources):
                found += messages
        if include_input:
            found += self.input_messages
        if include_response and self._response is not None:
            found += self._response.messages
        return found


class ContextProvider:
    """Adds context to runs. One instance serves all sessions of an agent, so data of a session belongs into `state`.

    `state` is this provider's part of the session's state, by `source_id`; `session.state` is the whole state.
    """

    def __init__(self, source_id: str) -> None:
        """`source_id` must be unique among an agent's providers."""
        self.source_id = source_id

    @property
    def written_folders(self) -> Sequence[Path]:
        """Folders that this provider writes to for a model.

        A gateway rejects folders that contain code or configuration which the gateway runs.
        """
        return ()

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Add messages, instructions, tools or middleware to `context`.

        Providers are called in the order of the list, before the first model call.
        """

    async def after_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Inspect the finished run; `context.response` is set. Providers are called in reverse order of the list."""


RunHook = Literal["before_run", "after_run"]
"""Name of a method of a context provider that is called before or after a run."""


def state_of(session: AgentSession, provider: ContextProvider) -> JsonObject:
    """Return the object in a session's state that belongs to a context provider; it is created if it does not exist."""
    return session.state.setdefault(provider.source_id, {})


async def call_run_hook(provider: ContextProvider, name: RunHook, agent: object, session: AgentSession, context: SessionContext) -> None:
    """Call the method `name` of a context provider for a run of `agent`, with the provider's part of the session's state."""
    await call_hook(provider, name, agent=agent, session=session, context=context, state=state_of(session, provider))


async def call_hook(provider: object, name: str, *args: Any, **values: Any) -> Any:
    """Call a method of a provider, if it has the method, and return its result.

    Earlier versions of agent-framework define some methods with fewer parameters, so only matching `values` are passed.
    """
    method = getattr(provider, name, None)
    return None if method is None else await call_declared(method, *args, **values)


async def call_declared(function: Callable[..., Any], /, *args: Any, **values: Any) -> Any:
    """Call a function, sync or async, with those `values` that it has parameters for, and return its result."""
    parameters = inspect.signature(function).parameters
    found: object = function(*args, **{key: value for key, value in values.items() if accepts(parameters, key)})
    return await found if inspect.isawaitable(found) else found


def accepts(parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
    """Return whether a function with these parameters accepts the keyword argument `name`."""
    return name in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def without_attribution(messages: Sequence[Message]) -> list[Message]:
    """Return the messages for storing, without the marks that name the provider which added them (`ATTRIBUTION_KEY`)."""
    kept: list[Message] = []
    for message in messages:
        if ATTRIBUTION_KEY in message.additional_properties:
            marked, message = message, copy.copy(message)
            message.additional_properties = {k: v for k, v in marked.additional_properties.items() if k != ATTRIBUTION_KEY}
        kept.append(message)
    return kept
