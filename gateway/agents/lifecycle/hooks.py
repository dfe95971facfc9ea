"""`LifecycleHooks`: the base class of lifecycle hooks, with the context classes that the hooks receive.

A hook can read every field of its context. It can assign the fields that `MAY_ASSIGN` lists; any other assignment fails the run.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gateway.agents.lifecycle.hook_state import HookEvents, StateCell
from gateway.agents.lifecycle.sealed import MAY_ASSIGN, FixedList, Sealed, seal
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
    """Values that do not change during a turn, which is one run of an agent."""

    agent_name: str
    """The agent's name, or its id if it has none."""
    conversation_id: str | None
    """The session's id, or without a session the conversation id of the model's provider, or `None`."""
    run_options: JsonMapping
    """The options of this run, for reading."""


class _HasTurnFacts(Sealed):
    """Has the values of `TurnFacts` as properties."""

    __slots__ = ()

    facts: TurnFacts

    @property
    def agent_name(self) -> str:
        """The agent's name, or its id if it has none."""
        return self.facts.agent_name

    @property
    def conversation_id(self) -> str | None:
        """The session's id, or without a session the conversation id of the model's provider, or `None`."""
        return self.facts.conversation_id

    @property
    def run_options(self) -> JsonMapping:
        """The options of this run, for reading."""
        return self.facts.run_options


@dataclass(slots=True, kw_only=True)
class HookContext(_HasTurnFacts):
    """Base class of hook contexts."""

    state: StateCell
    """State that all hooks of the turn share."""
    events: HookEvents
    facts: TurnFacts = field(repr=False)

    def __post_init__(self) -> None:
        """From now on, fields can be assigned only while a hook runs."""
        seal(self)


@dataclass(slots=True, kw_only=True)
class MessageTurnContext(HookContext):
    """Context of one run. `before_message_turn` may assign `user_message` and `history`; `after_message_turn` may assign `turn_history`."""

    user_message: str
    """Text of the user's newest message."""
    history: list[Message]
    """The conversation before the newest message: the messages that history providers load, then the rest of the run's input.

    Changes apply to this turn only: stored messages stay as they are, and added messages are not stored. A message that is added after
    the run's own input, or for an agent without a loading history provider, becomes input of the run and is stored with it.
    """
    message: Message | None = None
    """The user's newest message with all its contents, for reading."""
    response: AgentResponse | None = None
    """The response, set after the run; `None` if the run failed."""
    turn_history: list[Message] = field(default_factory=lambda: FixedList[Message]((), "turn_history"))
    """Messages that the run added, set after the run. Changes apply to the response, not to messages already streamed or stored."""
    error: Exception | None = None

    @property
    def options(self) -> JsonMapping:
        """The options of this run, for reading."""
        return self.run_options


@dataclass(slots=True, kw_only=True)
class IterationContext(HookContext):
    """Context of one model call and its tool calls. `before_iteration` may assign `messages` and `options`."""

    iteration: int
    """Number of the model call, from 0."""
    messages: list[Message]
    options: ChatOptions
    skip_llm_call: bool = False
    """Set by `before_iteration` to use `override_response` instead of calling the model."""
    override_response: ChatResponse | None = None
    tool_results: Sequence[Content] = ()
    """Results of the tool calls, set at the end of the iteration."""


@dataclass(slots=True, kw_only=True)
class ToolExecutionContext(HookContext):
    """Context of an answer with tool calls, before any of them is executed."""

    iteration: int
    response: ChatResponse
    calls: Sequence[Content]
    skip_tool_execution: bool = False
    """Set by the hook to remove all tool calls from the answer."""


@dataclass(slots=True, kw_only=True)
class ParallelBatchContext(HookContext):
    """Context of a batch of several tool calls, before any of them is executed."""

    iteration: int
    calls: Sequence[Content]
    blocked: dict[str, str] = field(default_factory=lambda: dict[str, str]())
    """Filled by the hook: maps a call id to the text that the model receives instead of the call's result."""


@dataclass(slots=True, kw_only=True)
class FunctionContext(HookContext):
    """Context of one tool call."""

    iteration: int
    function: NamedTool
    function_name: str
    call_id: str
    arguments: JsonMapping
    """Validated arguments, for reading; `FunctionRequest.override` changes them."""
    toolkit: str | None
    """Name of the provider, server or skill that the tool belongs to, if known."""
    block_execution: bool = False
    """Set by `before_function` to use `override_result` instead of executing the call."""
    override_result: JsonValue = None
    result: JsonValue = None
    """Result of the call, set after it."""
    error: Exception | None = None
    """Exception of the call, set after it."""


@dataclass(slots=True, kw_only=True)
class ErrorContext(HookContext):
    """Context of an error during a turn (one run of an agent)."""

    source: ErrorSource
    error: Exception
    iteration: int
    is_terminated: bool = False
    """Set by the hook to end the run with `termination_reason` as its answer instead of the error."""
    termination_reason: str = ""


@dataclass(slots=True, kw_only=True)
class ModelRequest(_HasTurnFacts):
    """A model call that is about to be made."""

    model: str | None
    messages: tuple[Message, ...]
    options: Mapping[str, JsonValue]
    state: StateCell
    iteration: int
    facts: TurnFacts = field(repr=False)

    def __post_init__(self) -> None:
        """From now on, fields cannot be assigned; `override` returns a changed copy."""
        seal(self)

    def override(
        self, *, model: str | None = None, messages: Sequence[Message] | None = None, options: Mapping[str, JsonValue] | None = None
    ) -> ModelRequest:
        """Return a copy of the request in which the given values replace the request's own."""
        return replace(
            self,
            model=self.model if model is None else model,
            messages=self.messages if messages is None else tuple(messages),
            options=self.options if options is None else options,
        )


@dataclass(slots=True, kw_only=True)
class FunctionRequest(_HasTurnFacts):
    """A tool call that is about to be executed."""

    function: NamedTool
    function_name: str
    call_id: str
    arguments: JsonMapping
    state: StateCell
    iteration: int
    toolkit: str | None
    facts: TurnFacts = field(repr=False)

    def __post_init__(self) -> None:
        """From now on, fields cannot be assigned; `override` returns a changed copy."""
        seal(self)

    def override(self, *, arguments: JsonMapping) -> FunctionRequest:
        """Return a copy of the request with other arguments for the tool."""
        return replace(self, arguments=arguments)


ModelHandler = Callable[[ModelRequest], Awaitable[ChatResponse]]
ModelStreamHandler = Callable[[ModelRequest], AsyncIterator[ChatResponseUpdate]]
FunctionHandler = Callable[[FunctionRequest], Awaitable[JsonValue]]


class LifecycleHooks:
    """Base class whose hooks do nothing. An exception in a hook fails the step that the hook belongs to."""

    async def before_message_turn(self, context: MessageTurnContext) -> None:
        """Called before a run."""

    async def after_message_turn(self, context: MessageTurnContext) -> None:
        """Called after a run, also if it failed."""

    async def before_iteration(self, context: IterationContext) -> None:
        """Called before each model call."""

    async def wrap_model_call(self, request: ModelRequest, handler: ModelHandler) -> ChatResponse:
        """Wrap each model call: await `handler` once, several times or never."""
        return await handler(request)

    def wrap_model_call_streaming(self, request: ModelRequest, handler: ModelStreamHandler) -> AsyncIterator[ChatResponseUpdate] | None:
        """Wrap each streamed model call. Return `None` to use `wrap_model_call` instead."""
        return None

    async def before_tool_execution(self, context: ToolExecutionContext) -> None:
        """Called if the model's answer has tool calls, before any of them is executed."""

    async def before_parallel_batch(self, context: ParallelBatchContext) -> None:
        """Called once before a batch of several tool calls; not called for a single call."""

    async def before_function(self, context: FunctionContext) -> None:
        """Called before each tool call."""

    async def wrap_function_call(self, request: FunctionRequest, handler: FunctionHandler) -> JsonValue:
        """Wrap each tool call: await `handler` once, several times or never."""
        return await handler(request)

    async def after_function(self, context: FunctionContext) -> None:
        """Called after each tool call, also if it failed."""

    async def after_iteration(self, context: IterationContext) -> None:
        """Called after the tool calls of an iteration, or after a model call without tool calls; also after a failure."""

    async def on_error(self, context: ErrorContext) -> None:
        """Called once for each error of the turn, at the innermost step that fails because of it."""


def check_hooks(hook: object) -> None:
    """Check that `hook` is an instance of `LifecycleHooks` whose hooks are async.

    Raises:
        MiddlewareException: `hook` is not an instance of `LifecycleHooks`, or one of its hooks is not async.
    """
    if not isinstance(hook, LifecycleHooks):
        what = f"{hook.__name__} is a class; pass an instance: {hook.__name__}()" if isinstance(hook, type) else f"{hook!r} is not one"
        raise MiddlewareException(f"lifecycle_middleware takes instances of classes that extend LifecycleHooks; {what}.")
    for name in _AWAITED:
        if overrides(hook, name) and not inspect.iscoroutinefunction(getattr(hook, name)):
            raise MiddlewareException(f"Hook {type(hook).__name__}.{name} must be async: define it with `async def`.")


def overrides(hook: LifecycleHooks, name: str) -> bool:
    """Return whether the class of `hook` overrides the method `name` of `LifecycleHooks`."""
    return getattr(type(hook), name) is not getattr(LifecycleHooks, name)


_AWAITED = tuple(MAY_ASSIGN)
"""Names of the hooks that are awaited and return nothing; the wrapping hooks are not among them."""
