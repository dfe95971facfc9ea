"""`SessionContext` and `ContextProvider`: what may be added to a run before it starts, and looked at after it ended.

The names and call shapes are agent-framework's. Providers belong to the agent and see everything of a run (requirements
SE19), so what is not trusted must not be one.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

from gateway.json_types import JsonMapping, JsonObject
from gateway.middleware import MiddlewareException, sort_middleware
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.tools.base import Tool
from gateway.tools.given import normalize_tools
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse

ATTRIBUTION_KEY = "_attribution"
"""In a message's `additional_properties` during a run: which provider added it. Never stored (requirements SE11)."""

CONTEXT_SOURCE_KEY = "context_source"
"""In a tool's `additional_properties`: which provider added it."""


PRINCIPAL_KEY = "dev.moongate/principal"
"""In the `metadata` of a run: the id of the caller on whose behalf the agent runs, `local` in a program of one's own."""


class HasSourceId(Protocol):
    """A context provider, as far as attribution is concerned."""

    source_id: str


class SessionContext:
    """One run as its context providers see it; made fresh for each run."""

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
        """`options` are the run's own, to be read only; `metadata` is shared by the providers of the run."""
        self.session_id = session_id
        self.service_session_id = service_session_id
        self.input_messages = input_messages
        self.context_messages: dict[str, list[Message]] = context_messages or {}
        """By provider, in the order the providers added them; they go before the input."""
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
        """What the run gave; set before `after_run`, for reading only."""
        return self._response

    def finish(self, response: AgentResponse) -> None:
        """The run ended with this response. Called by the agent, once."""
        self._response = response

    def extend_messages(self, source: str | HasSourceId, messages: Message | Sequence[Message]) -> None:
        """Add copies of messages before the input, as provider `source`; each is marked with where it came from."""
        attribution: JsonObject = {"source_id": source if isinstance(source, str) else source.source_id}
        if not isinstance(source, str):
            attribution["source_type"] = type(source).__name__
        added = self.context_messages.setdefault(attribution["source_id"], [])
        for message in [messages] if isinstance(messages, Message) else messages:
            own = copy.copy(message)
            own.additional_properties = {ATTRIBUTION_KEY: attribution, **message.additional_properties}
            added.append(own)

    def extend_instructions(self, source_id: str, instructions: str | Sequence[str]) -> None:
        """Add to the agent's instructions for this run."""
        self.instructions.extend([instructions] if isinstance(instructions, str) else instructions)

    def extend_tools(self, source_id: str, tools: Tool | Callable[..., object] | Sequence[Tool | Callable[..., object]]) -> None:
        """Add tools for this run, plain functions too; those with `additional_properties` are marked with where they came from."""
        added = normalize_tools(tools)
        for tool in added:
            properties = getattr(tool, "additional_properties", None)
            if isinstance(properties, dict):
                cast("JsonObject", properties)[CONTEXT_SOURCE_KEY] = source_id
        self.tools.extend(added)

    def extend_middleware(self, source_id: str, middleware: object) -> None:
        """Add chat or function middleware for this run: one, or a sequence of them.

        Raises:
            TypeError: It is no middleware.
            MiddlewareException: It is around agents' runs, and this run has begun already; or it does not say what it is around.
        """
        items = list(cast("Sequence[object]", middleware)) if isinstance(middleware, Sequence) else [middleware]
        if isinstance(middleware, str | bytes) or not all(callable(i) or callable(getattr(i, "process", None)) for i in items):
            raise TypeError("middleware must be a middleware object or a sequence of middleware objects")
        if sort_middleware(items).agent:
            raise MiddlewareException("Context providers may only add chat or function middleware.")
        self.middleware.setdefault(source_id, []).extend(items)

    def get_middleware(self) -> list[object]:
        """What the providers added, in their order."""
        return [one for added in self.middleware.values() for one in added]

    def get_messages(
        self,
        *,
        sources: Collection[str] | None = None,
        exclude_sources: Collection[str] | None = None,
        include_input: bool = False,
        include_response: bool = False,
    ) -> list[Message]:
        """Messages of all or some providers in the order they came, then input and response where asked for."""
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
    """Adds to runs. Shared by all sessions of an agent, so what belongs to one goes into `state`.

    `state` is this provider's own part of the session's state, by `source_id` (requirements SE6); the whole is `session.state`.
    """

    def __init__(self, source_id: str) -> None:
        """`source_id` is unique among the providers of an agent."""
        self.source_id = source_id

    @property
    def written_folders(self) -> Sequence[Path]:
        """Folders on disk that this provider writes to for a model; a gateway refuses those that hold what it runs."""
        return ()

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Called in list order before the first model call: add messages, instructions, tools or middleware to `context`."""

    async def after_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Called in reverse order after the run, with `context.response` set."""


async def call_hook(provider: object, name: str, *args: Any, **values: Any) -> Any:
    """Call a method of a provider that somebody else wrote, and return what it gives.

    Earlier versions and documents of agent-framework have methods with fewer parameters, so the method gets those of `values` that
    it has parameters for. It may be missing, and need not be async.
    """
    method = getattr(provider, name, None)
    if method is None:
        return None
    parameters = inspect.signature(method).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        values = {key: value for key, value in values.items() if key in parameters}
    found: object = method(*args, **values)
    return await found if inspect.isawaitable(found) else found


def without_attribution(messages: Sequence[Message]) -> list[Message]:
    """The messages as they may be stored: copies of those that carry a mark of the run."""
    kept: list[Message] = []
    for message in messages:
        if ATTRIBUTION_KEY in message.additional_properties:
            marked, message = message, copy.copy(message)
            message.additional_properties = {k: v for k, v in marked.additional_properties.items() if k != ATTRIBUTION_KEY}
        kept.append(message)
    return kept
