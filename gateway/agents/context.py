"""`AgentContext`: one run, as agent middleware sees it; `AgentRunContext`: the same for code anywhere inside the run."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gateway.chat.middleware import ChatAndFunctionMiddlewareTypes
from gateway.json_types import JsonObject
from gateway.middleware import CallNext, MiddlewareType, mark
from gateway.sessions.compaction import CompactionStrategy
from gateway.sessions.grouping import TokenizerProtocol
from gateway.sessions.session import AgentSession
from gateway.tools.context import CallContext
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream

if TYPE_CHECKING:
    from gateway.agents.agent import Agent

AgentStream = ResponseStream[AgentResponseUpdate, AgentResponse]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Awaitable[None]])


@dataclass
class AgentContext:
    """One run. Edit anything but `agent` and `stream` before `call_next`, `result` after.

    `result` is an `AgentResponse`, or with `stream` a `ResponseStream`, whose parts are still to come then: use the hooks.
    """

    agent: Agent
    messages: list[Message]
    session: AgentSession | None = None
    stream: bool = False
    options: ChatOptions = field(default_factory=lambda: cast("ChatOptions", {}))
    """The run's own, over the agent's defaults."""
    tools: Any = None
    """The run's own, beside the agent's."""
    metadata: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Shared by all middleware of this run."""
    result: AgentStream | AgentResponse | None = None
    kwargs: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    client_kwargs: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    function_invocation_kwargs: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    compaction_strategy: CompactionStrategy | None = None
    tokenizer: TokenizerProtocol | None = None
    stream_transform_hooks: list[Callable[[AgentResponseUpdate], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    """Put on the result where it is a stream, as the two below."""
    stream_result_hooks: list[Callable[[AgentResponse], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    stream_cleanup_hooks: list[Callable[[], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    terminate: bool = False
    """Set: nothing further in runs. The way of agent-framework's first versions; `MiddlewareTermination` is today's."""
    loaded: dict[str, list[Message]] | None = field(default=None, init=False, repr=False)
    """By history, what middleware loaded before the run; the run takes these messages and does not load them again."""
    loader: Callable[[], Awaitable[dict[str, list[Message]]]] | None = field(default=None, init=False, repr=False)

    async def load_history(self) -> dict[str, list[Message]]:
        """Load the session's earlier messages before the run does, by history in the order of the agent's providers.

        The run takes `loaded` instead of loading them again. Histories with a `before_run` of their own load in the run.
        """
        if self.loaded is None:
            self.loaded = {} if self.loader is None else await self.loader()
        return self.loaded


class AgentMiddleware(ABC):
    """Middleware around runs, as a class."""

    middleware_type = MiddlewareType.AGENT

    @abstractmethod
    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        """Do something before, call `call_next()` or not, do something after."""


AgentMiddlewareTypes = AgentMiddleware | Callable[[AgentContext, CallNext], Awaitable[None]]
"""What may be given as middleware around runs."""

MiddlewareTypes = AgentMiddlewareTypes | ChatAndFunctionMiddlewareTypes
"""What may be given to an agent as middleware."""


def agent_middleware(func: FunctionT) -> FunctionT:
    """Mark a function as middleware around runs."""
    return mark(func, MiddlewareType.AGENT)


@dataclass(frozen=True, slots=True)
class AgentRunContext:
    """The run that the current code is part of. To read, not to steer: whoever wants other values runs the inner agent with them."""

    agent: Agent
    session: AgentSession | None
    messages: tuple[Message, ...]
    """What the run was asked."""
    options: ChatOptions
    call: CallContext = field(default_factory=CallContext, repr=False)
    """The call on whose behalf the agent runs."""


_current: ContextVar[AgentRunContext | None] = ContextVar("gateway.agents.context.current", default=None)
"""Requirements AG6 wants it ambient, because code that others wrote has no parameter to get it in; ours is passed what it needs."""


def current_run_context() -> AgentRunContext | None:
    """The innermost run that this code is part of, or `None`."""
    return _current.get()


@contextlib.contextmanager
def inside(run: AgentRunContext) -> Generator[None]:
    """Make `run` the current one; entered around each step of it, never across one."""
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)
