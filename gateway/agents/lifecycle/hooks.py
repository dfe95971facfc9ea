"""`LifecycleHooks`: the twelve hooks, and what each is given. Subclass it and override what you need.

A hook may read every field of its context. Assignments that `MAY_ASSIGN` lists take effect; every other assignment fails the run.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gateway.agents.lifecycle.sealed import MAY_ASSIGN, FixedList, Sealed, seal
from gateway.agents.lifecycle.state import HookEvents, StateCell
from gateway.errors import MiddlewareException
from gateway.json_types import JsonMapping, JsonValue
from gateway.tools.base import NamedTool
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import AgentResponse, ChatResponse, ChatResponseUpdate

ErrorSource = Literal["model_call", "tool_call", "iteration", "message_turn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """What stays the same in a turn."""

    agent_name: str
    """The agent's name, or its id if it has none."""
    conversation_id: str | None
    """The session's id; without a session the id of the conversation that the model's provider keeps, if there is one."""
    run_options: JsonMapping
    """The run's own options, to read."""


class _SeesTurn(Sealed):
    """Shows the facts of the turn under their own names."""

    __slots__ = ()

    facts: TurnFacts

    @property
    def agent_name(self) -> str:
        """The agent's name, or its id if it has none."""
        return self.facts.agent_name

    @property
    def conversation_id(self) -> str | None:
        """The session's id; without a session the id of the conversation that the model's provider keeps, if there is one."""
        return self.facts.conversation_id

    @property
    def run_options(self) -> JsonMapping:
        """The run's own options, to read."""
        return self.facts.run_options


@dataclass(slots=True, kw_only=True)
class HookContext(_SeesTurn):
    """What every hook has."""

    state: StateCell
    """Shared by all hooks of the turn; an update is seen by the next hook."""
    events: HookEvents
    facts: TurnFacts = field(repr=False)

    def __post_init__(self) -> None:
        """Nothing can be assigned until a hook runs."""
        seal(self)


@dataclass(slots=True, kw_only=True)
class MessageTurnContext(HookContext):
    """Around one run. `user_message` and `history` are yours to change before it; `turn_history` after it."""

    user_message: str
    """Text of the newest message of the user."""
    history: list[Message]
    """The conversation before that message: what the session's histories load, then the rest of the run's input.

    A change holds for this turn: what is stored of earlier turns stays, and an added message is not stored. A message that is added
    behind the run's own input, or to an agent without a history that loads, is input of the run like the user's message.
    """
    message: Message | None = None
    """The newest message of the user with all its contents, to read."""
    response: AgentResponse | None = None
    """After the run; `None` where it failed."""
    turn_history: list[Message] = field(default_factory=lambda: FixedList[Message]((), "turn_history"))
    """After the run: the messages it added, yours to change in the response. Messages already streamed or stored stay as they are."""
    error: Exception | None = None

    @property
    def options(self) -> JsonMapping:
        """The run's own options, to read."""
        return self.run_options


@dataclass(slots=True, kw_only=True)
class IterationContext(HookContext):
    """Around one model call and the tools it asks for. `messages` and `options` are yours to change before the call."""

    iteration: int
    """From 0."""
    messages: list[Message]
    options: ChatOptions
    skip_llm_call: bool = False
    """Yours to set before the call: `override_response` is the model's answer then."""
    override_response: ChatResponse | None = None
    tool_results: Sequence[Content] = ()
    """After the iteration: what the tools gave."""


@dataclass(slots=True, kw_only=True)
class ToolExecutionContext(HookContext):
    """After the model answered with calls, before any of them."""

    iteration: int
    response: ChatResponse
    calls: Sequence[Content]
    skip_tool_execution: bool = False
    """Yours to set: all calls are dropped, and the answer stands without them."""


@dataclass(slots=True, kw_only=True)
class ParallelBatchContext(HookContext):
    """Before a batch of more than one call."""

    iteration: int
    calls: Sequence[Content]
    blocked: dict[str, str] = field(default_factory=lambda: dict[str, str]())
    """Yours to fill: by call id, what the model reads in place of a call's result."""


@dataclass(slots=True, kw_only=True)
class FunctionContext(HookContext):
    """Around one tool call."""

    iteration: int
    function: NamedTool
    function_name: str
    call_id: str
    arguments: JsonMapping
    """To read, checked and converted; `FunctionRequest.override` changes them."""
    toolkit: str | None
    """The provider, server or skill that the tool is of, if that is known."""
    block_execution: bool = False
    """Yours to set before the call: it is not made, and `override_result` is its result."""
    override_result: JsonValue = None
    result: JsonValue = None
    """After the call."""
    error: Exception | None = None
    """After the call: what it raised."""


@dataclass(slots=True, kw_only=True)
class ErrorContext(HookContext):
    """An error anywhere in the turn."""

    source: ErrorSource
    error: Exception
    iteration: int
    is_terminated: bool = False
    """Yours to set: the run ends here, with `termination_reason` as its answer, in place of the error."""
    termination_reason: str = ""


@dataclass(slots=True, kw_only=True)
class ModelRequest(_SeesTurn):
    """One model call, as it is about to be made."""

    model: str | None
    messages: tuple[Message, ...]
    options: Mapping[str, JsonValue]
    state: StateCell
    iteration: int
    facts: TurnFacts = field(repr=False)

    def __post_init__(self) -> None:
        """Nothing can be assigned; `override` returns a changed copy."""
        seal(self)

    def override(
        self, *, model: str | None = None, messages: Sequence[Message] | None = None, options: Mapping[str, JsonValue] | None = None
    ) -> ModelRequest:
        """A copy with other values."""
        return replace(
            self,
            model=self.model if model is None else model,
            messages=self.messages if messages is None else tuple(messages),
            options=self.options if options is None else options,
        )


@dataclass(slots=True, kw_only=True)
class FunctionRequest(_SeesTurn):
    """One tool call, as it is about to be made."""

    function: NamedTool
    function_name: str
    call_id: str
    arguments: JsonMapping
    state: StateCell
    iteration: int
    toolkit: str | None
    facts: TurnFacts = field(repr=False)

    def __post_init__(self) -> None:
        """Nothing can be assigned; `override` returns a changed copy."""
        seal(self)

    def override(self, *, arguments: JsonMapping) -> FunctionRequest:
        """A copy with other arguments."""
        return replace(self, arguments=arguments)


ModelHandler = Callable[[ModelRequest], Awaitable[ChatResponse]]
ModelStreamHandler = Callable[[ModelRequest], AsyncIterator[ChatResponseUpdate]]
FunctionHandler = Callable[[FunctionRequest], Awaitable[JsonValue]]


class LifecycleHooks:
    """All hooks, doing nothing. An error in a hook is an error of the step it belongs to."""

    async def before_message_turn(self, context: MessageTurnContext) -> None:
        """Before the user's message is handled."""

    async def after_message_turn(self, context: MessageTurnContext) -> None:
        """After the run, whether it worked or not."""

    async def before_iteration(self, context: IterationContext) -> None:
        """Before each model call."""

    async def wrap_model_call(self, request: ModelRequest, handler: ModelHandler) -> ChatResponse:
        """Around each model call: call `handler` once, again, or not at all."""
        return await handler(request)

    def wrap_model_call_streaming(self, request: ModelRequest, handler: ModelStreamHandler) -> AsyncIterator[ChatResponseUpdate] | None:
        """Around each model call of a streamed run; `None` means that `wrap_model_call` is used there too."""
        return None

    async def before_tool_execution(self, context: ToolExecutionContext) -> None:
        """After the model answered with calls, before any of them."""

    async def before_parallel_batch(self, context: ParallelBatchContext) -> None:
        """Before a batch of calls, once; not for a single call."""

    async def before_function(self, context: FunctionContext) -> None:
        """Before each tool call."""

    async def wrap_function_call(self, request: FunctionRequest, handler: FunctionHandler) -> JsonValue:
        """Around each tool call: call `handler` once, again, or not at all."""
        return await handler(request)

    async def after_function(self, context: FunctionContext) -> None:
        """After each tool call, whether it worked or not."""

    async def after_iteration(self, context: IterationContext) -> None:
        """After the tools of an iteration, or after its model call where there were none; also when it failed."""

    async def on_error(self, context: ErrorContext) -> None:
        """On any error of the turn, where it happens first."""


def check_hooks(hook: object) -> None:
    """Check that `hook` is an object whose hooks can be awaited.

    Raises:
        MiddlewareException: It is not an object of a `LifecycleHooks` class, or one of its hooks is not async.
    """
    if not isinstance(hook, LifecycleHooks):
        what = f"{hook.__name__} is a class; pass an object of it: {hook.__name__}()" if isinstance(hook, type) else f"{hook!r} is not one"
        raise MiddlewareException(f"lifecycle_middleware takes objects of classes that extend LifecycleHooks; {what}.")
    for name in _AWAITED:
        if overrides(hook, name) and not inspect.iscoroutinefunction(getattr(hook, name)):
            raise MiddlewareException(f"Hook {type(hook).__name__}.{name} must be async: define it with `async def`.")


def overrides(hook: LifecycleHooks, name: str) -> bool:
    """Whether a class has its own version of a hook."""
    return getattr(type(hook), name) is not getattr(LifecycleHooks, name)


_AWAITED = tuple(MAY_ASSIGN)
"""The hooks that are awaited for their effect alone."""
