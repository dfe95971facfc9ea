"""`AgentContext`: one run, for agent middleware. `AgentRunContext`: the current run, for any code inside it, such as tools."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from gateway.agents.base_agent import BaseAgent
from gateway.chat.chat_middleware import ChatAndFunctionMiddlewareTypes
from gateway.json_types import JsonObject
from gateway.middleware import CallNext, MiddlewareType, mark
from gateway.sessions.session import AgentSession
from gateway.tools.context import CallContext
from gateway.types.compaction import CompactionStrategy, TokenizerProtocol
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream

AgentStream = ResponseStream[AgentResponseUpdate, AgentResponse]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Awaitable[None]])


@dataclass
class AgentContext:
    """One run of an agent, for agent middleware.

    Middleware may assign every field except `agent` and `stream` before `call_next`, and `result` after it.
    `result` is an `AgentResponse`, or with `stream` a `ResponseStream` that has not been read yet; the stream hooks change a stream.
    """

    agent: BaseAgent
    messages: list[Message]
    session: AgentSession | None = None
    stream: bool = False
    options: ChatOptions = field(default_factory=lambda: cast("ChatOptions", {}))
    """The options of this run, which override the agent's defaults."""
    tools: Any = None
    """The tools of this run, added to the agent's own."""
    metadata: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Values shared by all middleware of this run."""
    result: AgentStream | AgentResponse | None = None
    kwargs: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    client_kwargs: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    function_invocation_kwargs: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    compaction_strategy: CompactionStrategy | None = None
    tokenizer: TokenizerProtocol | None = None
    stream_transform_hooks: list[Callable[[AgentResponseUpdate], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    """Applied to each update of a streamed result, in order. The result hooks change its response; the cleanup hooks run at its end."""
    stream_result_hooks: list[Callable[[AgentResponse], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    stream_cleanup_hooks: list[Callable[[], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    terminate: bool = False
    """Skip everything inside the middleware that sets it, as in early agent-framework versions; raise `MiddlewareTermination` instead."""
    loaded: dict[str, list[Message]] | None = field(default=None, init=False, repr=False)
    """Messages that middleware loaded before the run, by history provider; the run uses them and does not load again."""
    loader: Callable[[], Awaitable[dict[str, list[Message]]]] | None = field(default=None, init=False, repr=False)

    async def load_history(self) -> dict[str, list[Message]]:
        """Load the session's earlier messages before the run does, and return them by history provider in the agent's provider order.

        The run then uses `loaded`. Providers that override `before_run` are not included: they load in the run.
        """
        if self.loaded is None:
            self.loaded = {} if self.loader is None else await self.loader()
        return self.loaded


class AgentMiddleware(ABC):
    """Base class of agent middleware."""

    middleware_type = MiddlewareType.AGENT

    @abstractmethod
    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        """Process one run: await `call_next()` to continue it, or set `context.result` instead."""


AgentMiddlewareTypes = AgentMiddleware | Callable[[AgentContext, CallNext], Awaitable[None]]
"""Agent middleware: an object or an async function."""

MiddlewareTypes = AgentMiddlewareTypes | ChatAndFunctionMiddlewareTypes
"""Everything that an agent's `middleware` accepts."""


def agent_middleware(func: FunctionT) -> FunctionT:
    """Mark a function as agent middleware."""
    return mark(func, MiddlewareType.AGENT)


@dataclass(frozen=True, slots=True)
class AgentRunContext:
    """The run that the current code is part of, for reading. Other values for an inner run are arguments of that agent's `run`."""

    agent: BaseAgent
    session: AgentSession | None
    messages: tuple[Message, ...]
    """The input of the run."""
    options: ChatOptions
    call: CallContext = field(default_factory=CallContext, repr=False)
    """The call that the run serves."""


_current: ContextVar[AgentRunContext | None] = ContextVar("gateway.agents.run_context.current", default=None)
"""A context variable, because tools and middleware of other authors have no parameter for the run. Moongate's own code does pass it."""


def current_run_context() -> AgentRunContext | None:
    """Return the innermost run that the current code is part of, or `None`."""
    return _current.get()


@contextlib.contextmanager
def as_current_run(run: AgentRunContext) -> Generator[None]:
    """Make `run` the current run; entered for each step of a stream, because a context variable must not stay set across a yield."""
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)
