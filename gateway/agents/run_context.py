"""`AgentContext`: one run of an agent, passed to agent middleware. `AgentRunContext`: the current run, for any code inside the run."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

from gateway.agents.base_agent import BaseAgent
from gateway.chat.chat_middleware import ChatAndFunctionMiddlewareTypes
from gateway.json_types import JsonObject
from gateway.middleware import CallNext, FunctionT, MiddlewareType, mark
from gateway.sessions.session import AgentSession
from gateway.tools.context import CallContext
from gateway.tools.tool_lists import ToolList
from gateway.types.compaction import CompactionStrategy, TokenizerProtocol
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream

AgentStream = ResponseStream[AgentResponseUpdate, AgentResponse]


@dataclass
class AgentContext:
    """One run of an agent, passed to agent middleware.

    Before middleware awaits `call_next`, it may assign every field except `agent` and `stream`; afterwards, it may assign `result`.
    `result` is an `AgentResponse`. If `stream` is true, `result` is a `ResponseStream` that has not been read yet, and the `stream_*_hooks`
    can change what the stream yields.
    """

    agent: BaseAgent
    messages: list[Message]
    session: AgentSession | None = None
    stream: bool = False
    options: ChatOptions = field(default_factory=lambda: cast("ChatOptions", {}))
    """The options of this run, which override the agent's defaults."""
    tools: ToolList = None
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
    """Functions that are applied to each update of a streamed `result`, in order.

    `stream_result_hooks` are applied to the stream's final response, and `stream_cleanup_hooks` are called at the end of the stream.
    """
    stream_result_hooks: list[Callable[[AgentResponse], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    stream_cleanup_hooks: list[Callable[[], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    terminate: bool = False
    """Middleware sets this field to skip the inner middleware and the agent, as in early versions of agent-framework.

    New middleware raises `MiddlewareTermination` instead.
    """
    loaded: dict[str, list[Message]] | None = field(default=None, init=False, repr=False)
    """Earlier messages of the session that middleware loaded before the run, by history provider id; the run does not load them again."""
    loader: Callable[[], Awaitable[dict[str, list[Message]]]] | None = field(default=None, init=False, repr=False)

    async def load_history(self) -> dict[str, list[Message]]:
        """Load the session's earlier messages before the run. Return them by history provider id, in the order of the agent's providers.

        The run then uses the messages in `loaded` and does not load them again. A history provider that overrides `before_run` is not
        included, because it loads its messages during the run.
        """
        if self.loaded is None:
            self.loaded = {} if self.loader is None else await self.loader()
        return self.loaded


class AgentMiddleware(ABC):
    """Base class of agent middleware, which wraps the runs of an agent."""

    middleware_type = MiddlewareType.AGENT

    @abstractmethod
    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        """Process one run of the agent: await `call_next()` to continue the run, or set `context.result` to replace it."""


AgentMiddlewareTypes = AgentMiddleware | Callable[[AgentContext, CallNext], Awaitable[None]]
"""Agent middleware, which wraps the runs of an agent: an object or an async function."""

MiddlewareTypes = AgentMiddlewareTypes | ChatAndFunctionMiddlewareTypes
"""Type of one item in an agent's argument `middleware`: agent, chat or function middleware."""


def agent_middleware(func: FunctionT) -> FunctionT:
    """Decorator that marks an async function `(context, call_next)` as agent middleware, which wraps the runs of an agent."""
    return mark(func, MiddlewareType.AGENT)


@dataclass(frozen=True, slots=True)
class AgentRunContext:
    """The agent run that the current code is part of, read-only. To change values for an inner run, pass arguments to its agent's `run`."""

    agent: BaseAgent
    session: AgentSession | None
    messages: tuple[Message, ...]
    """The input messages of the run."""
    options: ChatOptions
    call: CallContext = field(default_factory=CallContext, repr=False)
    """Context of the gateway call that the run serves."""


_current: ContextVar[AgentRunContext | None] = ContextVar("gateway.agents.run_context.current", default=None)
"""The innermost agent run of the current code.

It is a context variable, because tools and middleware of other authors have no parameter for the run. Moongate's own code passes the run
as an argument.
"""


def current_run_context() -> AgentRunContext | None:
    """Return the innermost agent run that the current code is part of, or `None` outside of a run."""
    return _current.get()


@contextlib.contextmanager
def as_current_run(run: AgentRunContext) -> Generator[None]:
    """Make `run` the current agent run inside a `with` block.

    A stream enters the block for each of its steps, because a context variable must not stay set across a `yield`.
    """
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)
