"""`ContextProvider` and `SessionContext`: let code add messages, instructions, tools or middleware to each run of an agent.

A `ContextProvider` belongs to an agent and is called before and after each run; it changes the `SessionContext` of the run. Names and
signatures are those of agent-framework. Providers see all data of a run, so use only trusted code.
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
from gateway.tools.context import CallContext
from gateway.tools.tool_lists import normalize_tools
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse

ATTRIBUTION_KEY = "_attribution"
"""Key in the `additional_properties` of a message during a run. Its value names the context provider that added the message.

The key is never stored.
"""

CONTEXT_SOURCE_KEY = "context_source"
"""Key in the `additional_properties` of a tool. Its value is the id of the context provider that added the tool to the run."""


PRINCIPAL_KEY = "dev.moongate/principal"
"""Key in the `metadata` of a run. Its value is the id of the principal for which the agent runs; `local` if a Python program runs the agent
without a gateway."""


class HasSourceId(Protocol):
    """Protocol of an object (such as a context provider) that adds data to a run. Its attribute `source_id` is its id."""

    source_id: str


class SessionContext:
    """The input, additions and response of one run of an agent, which its context providers read and extend."""

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
        call: CallContext | None = None,
    ) -> None:
        """Store the arguments. `options` are the options of the run, read-only; `metadata` is shared by all providers of the run.

        `call` is the context of the gateway's tool call in which the agent runs; by default a new context of the local user.
        """
        self.session_id = session_id
        self.service_session_id = service_session_id
        self.input_messages = input_messages
        self.context_messages: dict[str, list[Message]] = context_messages or {}
        """`source_id` of each context provider → messages that it added. The model gets them before the input, in the providers' order."""
        self.instructions: list[str] = instructions or []
        self.tools: list[Tool] = tools or []
        self.middleware: dict[str, list[object]] = {}
        self.options: JsonMapping = MappingProxyType(dict(options or {}))
        self.metadata: JsonObject = metadata if metadata is not None else {}
        self.call = call or CallContext()
        self._response: AgentResponse | None = None
        for source_id, given in (middleware or {}).items():
            self.extend_middleware(source_id, given)

    @property
    def response(self) -> AgentResponse | None:
        """The response of the run, read-only. It is `None` until the run has ended, and is set before `after_run` is called."""
        return self._response

    def finish(self, response: AgentResponse) -> None:
        """Set the response of the run. The agent calls this once, when the run has ended."""
        self._response = response

    def extend_messages(self, source: str | HasSourceId, messages: Message | Sequence[Message]) -> None:
        """Add copies of messages before the input of the run. `source` is the provider that adds them, or its id.

        Each copy is marked with the id of the provider (`ATTRIBUTION_KEY`), unless the message has such a mark already.
        """
        attribution: JsonObject = {"source_id": source if isinstance(source, str) else source.source_id}
        if not isinstance(source, str):
            attribution["source_type"] = type(source).__name__
        added = self.context_messages.setdefault(attribution["source_id"], [])
        for message in [messages] if isinstance(messages, Message) else messages:
            own = copy.copy(message)
            own.additional_properties = {ATTRIBUTION_KEY: attribution, **message.additional_properties}
            added.append(own)

    def extend_instructions(self, source_id: str, instructions: str | Sequence[str]) -> None:
        """Add instructions for the model to this run. `source_id` is the id of the provider that adds them."""
        self.instructions.extend([instructions] if isinstance(instructions, str) else instructions)

    def extend_tools(self, source_id: str, tools: Tool | Callable[..., object] | Sequence[Tool | Callable[..., object]]) -> None:
        """Add tools or functions to this run. `source_id` is the id of the provider that adds them.

        The id is stored in each tool's `additional_properties` (key `CONTEXT_SOURCE_KEY`), if the tool has this attribute. Functions are
        first converted to tools that have it.
        """
        added = normalize_tools(tools)
        for tool in added:
            properties = getattr(tool, "additional_properties", None)
            if isinstance(properties, dict):
                cast("JsonObject", properties)[CONTEXT_SOURCE_KEY] = source_id
        self.tools.extend(added)

    def extend_middleware(self, source_id: str, middleware: object) -> None:
        """Add chat or function middleware (one object or several) to this run. `source_id` is the id of the provider that adds them.

        Raises:
            TypeError: An object is not middleware.
            MiddlewareException: An object is agent middleware, which cannot be added after the run has started, or is middleware of an
                unknown kind.
        """
        items = list(cast("Sequence[object]", middleware)) if isinstance(middleware, Sequence) else [middleware]
        if isinstance(middleware, str | bytes) or not all(callable(i) or callable(getattr(i, "process", None)) for i in items):
            raise TypeError("middleware must be a middleware object or a sequence of middleware objects")
        if sort_middleware(items).agent:
            raise MiddlewareException("Context providers may only add chat or function middleware.")
        self.middleware.setdefault(source_id, []).extend(items)

    def get_middleware(self) -> list[object]:
        """Return all middleware that providers have added to this run, in the order of the providers."""
        return [one for added in self.middleware.values() for one in added]

    def get_messages(
        self,
        *,
        sources: Collection[str] | None = None,
        exclude_sources: Collection[str] | None = None,
        include_input: bool = False,
        include_response: bool = False,
    ) -> list[Message]:
        """Return the messages that providers added, in order; then, if requested, the input and the response of the run.

        `sources` and `exclude_sources` select providers by their ids; by default the messages of all providers are returned.
        """
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
    """Base class of context providers, which add messages, instructions, tools or middleware to the runs of an agent.

    One instance serves all sessions of an agent, so data of a session must be stored in `state`. `state` is the provider's part of the
    session's state, under its `source_id`; `session.state` is the whole state.
    """

    def __init__(self, source_id: str) -> None:
        """Store the id of the provider, which must be unique among the providers of an agent."""
        self.source_id = source_id

    @property
    def written_folders(self) -> Sequence[Path]:
        """The folders to which this provider writes data that comes from a model; empty by default.

        A gateway rejects folders that contain code or configuration that the gateway runs.
        """
        return ()

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Add messages, instructions, tools or middleware to the run, through `context`.

        The agent calls this before the first model call of a run, for its providers in order.
        """

    async def after_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Process the finished run, whose response is `context.response`. The agent calls this for its providers in reverse order."""


RunHook = Literal["before_run", "after_run"]
"""Name of a method of a context provider that is called before or after a run."""


def state_of(session: AgentSession, provider: ContextProvider) -> JsonObject:
    """Return the object in a session's state that belongs to a context provider; it is created if it does not exist."""
    return session.state.setdefault(provider.source_id, {})


async def call_run_hook(provider: ContextProvider, name: RunHook, agent: object, session: AgentSession, context: SessionContext) -> None:
    """Call the method `name` of a context provider for a run of `agent`, with the provider's part of the session's state."""
    await call_hook(provider, name, agent=agent, session=session, context=context, state=state_of(session, provider))


async def call_hook(provider: object, name: str, *args: Any, **values: Any) -> Any:
    """Call the async method `name` of a context provider and return its result; return `None` if the provider does not have the method.

    A value in `values` is passed only if the method has a parameter for it, because providers written for earlier versions of
    agent-framework define some methods with fewer parameters.
    """
    method = getattr(provider, name, None)
    return None if method is None else await call_declared(method, *args, **values)


async def call_declared(function: Callable[..., Any], /, *args: Any, **values: Any) -> Any:
    """Call a sync or async function with `args`, and with each value in `values` that it has a parameter for; return its result."""
    parameters = inspect.signature(function).parameters
    found: object = function(*args, **{key: value for key, value in values.items() if accepts(parameters, key)})
    return await found if inspect.isawaitable(found) else found


def accepts(parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
    """Return whether a function with these parameters accepts the keyword argument `name`."""
    return name in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def without_attribution(messages: Sequence[Message]) -> list[Message]:
    """Return the messages in the form in which they are stored: without `ATTRIBUTION_KEY`, the name of the provider that added them."""
    kept: list[Message] = []
    for message in messages:
        if ATTRIBUTION_KEY in message.additional_properties:
            marked, message = message, copy.copy(message)
            message.additional_properties = {k: v for k, v in marked.additional_properties.items() if k != ATTRIBUTION_KEY}
        kept.append(message)
    return kept
