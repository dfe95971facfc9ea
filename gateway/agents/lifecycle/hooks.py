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
    """The agent's name, or its id if the agent has no name."""
    conversation_id: str | None
    """The id of the run's session. Without a session: the id of the conversation that the model's provider stores, or `None`."""
    run_options: JsonMapping
    """The options that were passed to this run, read-only."""


@dataclass(slots=True, kw_only=True)
class _HasTurnFacts(Sealed):
    """Base class of contexts and requests, with a property for each value of `TurnFacts`, which do not change during a run."""

    facts: TurnFacts = field(repr=False)

    def __post_init__(self) -> None:
        """Reject all later assignments to fields, except those that a running hook makes to fields of its context."""
        seal(self)

    @property
    def agent_name(self) -> str:
        """The agent's name, or its id if the agent has no name."""
        return self.facts.agent_name

    @property
    def conversation_id(self) -> str | None:
        """The id of the run's session. Without a session: the id of the conversation that the model's provider stores, or `None`."""
        return self.facts.conversation_id

    @property
    def run_options(self) -> JsonMapping:
        """The options that were passed to this run, read-only."""
        return self.facts.run_options


@dataclass(slots=True, kw_only=True)
class HookContext(_HasTurnFacts):
    """Base class of the contexts that lifecycle hooks receive."""

    state: StateCell
    """State that all hooks share during a turn (one run of an agent)."""
    events: HookEvents


@dataclass(slots=True, kw_only=True)
class MessageTurnContext(HookContext):
    """Context of one run. `before_message_turn` may assign `user_message` and `history`; `after_message_turn` may assign `turn_history`."""

    user_message: str
    """Text of the user's newest message; empty if the run has no user message."""
    history: list[Message]
    """The conversation without the user's newest message: the messages that history providers load, then the rest of the run's input.

    A hook's changes of this list apply to this run only: stored messages do not change, and added messages are not stored. There is one
    exception: if no messages were loaded, or if the added message follows the run's own input, it becomes input and is stored.
    """
    message: Message | None = None
    """The user's newest message with all its contents; hooks must not change it."""
    response: AgentResponse | None = None
    """The run's response, set after the run; `None` if the run failed."""
    turn_history: list[Message] = field(default_factory=lambda: FixedList[Message]((), "turn_history"))
    """Messages that the run added to the conversation, set after the run. A hook that changes the list changes the run's response.

    Messages that were already streamed or stored do not change.
    """
    error: Exception | None = None

    @property
    def options(self) -> JsonMapping:
        """The options that were passed to this run, read-only."""
        return self.run_options


@dataclass(slots=True, kw_only=True)
class IterationContext(HookContext):
    """Context of an iteration: one model call and the tool calls of its answer.

    `before_iteration` may assign `messages`, `options`, `skip_llm_call` and `override_response`.
    """

    iteration: int
    """Number of the model call, from 0."""
    messages: list[Message]
    options: ChatOptions
    skip_llm_call: bool = False
    """Set by `before_iteration` to use `override_response`, or an empty answer without it, instead of calling the model."""
    override_response: ChatResponse | None = None
    tool_results: Sequence[Content] = ()
    """Results of the tool calls in call order, set before `after_iteration` is called."""


@dataclass(slots=True, kw_only=True)
class ToolExecutionContext(HookContext):
    """Context of `before_tool_execution`: a model answer with tool calls, before any of the calls is executed."""

    iteration: int
    response: ChatResponse
    calls: Sequence[Content]
    skip_tool_execution: bool = False
    """Set by the hook to remove all tool calls from the answer."""


@dataclass(slots=True, kw_only=True)
class ParallelBatchContext(HookContext):
    """Context of `before_parallel_batch`: several tool calls of one model answer, before any of the calls is executed."""

    iteration: int
    calls: Sequence[Content]
    blocked: dict[str, str] = field(default_factory=lambda: dict[str, str]())
    """Filled by the hook: maps a call id to the text that the model receives instead of the call's result."""


@dataclass(slots=True, kw_only=True)
class FunctionContext(HookContext):
    """Context of `before_function` and `after_function`: one tool call."""

    iteration: int
    function: NamedTool
    function_name: str
    call_id: str
    arguments: JsonMapping
    """Arguments of the call, read-only. To change them, a hook uses `FunctionRequest.override` in `wrap_function_call`.

    Valid arguments of a Python function are converted to its parameter types; other arguments are as the model wrote them, unchecked."""
    toolkit: str | None
    """Name of the provider, server or skill that the tool belongs to, if known."""
    block_execution: bool = False
    """Set by `before_function` to use `override_result` instead of executing the call."""
    override_result: JsonValue = None
    result: JsonValue = None
    """Result of the call, set before `after_function` is called."""
    error: Exception | None = None
    """Exception that made the call fail, set before `after_function` is called."""


@dataclass(slots=True, kw_only=True)
class ErrorContext(HookContext):
    """Context of `on_error`: an exception during a turn (one run of an agent), and the step that failed because of it (`source`)."""

    source: ErrorSource
    error: Exception
    iteration: int
    is_terminated: bool = False
    """Set by the hook to end the run with `termination_reason` as its answer instead of the error."""
    termination_reason: str = ""


@dataclass(slots=True, kw_only=True)
class ModelRequest(_HasTurnFacts):
    """The model call that a hook wraps with `wrap_model_call`, before it is made. The request is immutable."""

    model: str | None
    messages: tuple[Message, ...]
    options: Mapping[str, JsonValue]
    state: StateCell
    iteration: int

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
    """The tool call that a hook wraps with `wrap_function_call`, before it is executed. The request is immutable."""

    function: NamedTool
    function_name: str
    call_id: str
    arguments: JsonMapping
    state: StateCell
    iteration: int
    toolkit: str | None

    def override(self, *, arguments: JsonMapping) -> FunctionRequest:
        """Return a copy of the request with other arguments for the tool."""
        return replace(self, arguments=arguments)


ModelHandler = Callable[[ModelRequest], Awaitable[ChatResponse]]
ModelStreamHandler = Callable[[ModelRequest], AsyncIterator[ChatResponseUpdate]]
FunctionHandler = Callable[[FunctionRequest], Awaitable[JsonValue]]


class LifecycleHooks:
    """Base class of lifecycle hooks: methods that are called at the steps of an agent's run. The methods of this class change nothing.

    An exception in a hook fails the step that the hook belongs to.
    """

    async def before_message_turn(self, context: MessageTurnContext) -> None:
        """Called before a run of the agent."""

    async def after_message_turn(self, context: MessageTurnContext) -> None:
        """Called after a run of the agent, including a run that failed."""

    async def before_iteration(self, context: IterationContext) -> None:
        """Called before each model call."""

    async def wrap_model_call(self, request: ModelRequest, handler: ModelHandler) -> ChatResponse:
        """Called to make each model call that no hook skipped. `handler` calls the model; a hook awaits it once, several times or never."""
        return await handler(request)

    def wrap_model_call_streaming(self, request: ModelRequest, handler: ModelStreamHandler) -> AsyncIterator[ChatResponseUpdate] | None:
        """Called to make each streamed model call; `handler` streams the model's answer. Return `None` to use `wrap_model_call` instead."""
        return None

    async def before_tool_execution(self, context: ToolExecutionContext) -> None:
        """Called if the model's answer has tool calls, before any of them is executed."""

    async def before_parallel_batch(self, context: ParallelBatchContext) -> None:
        """Called if the model's answer has several tool calls, before any of them is executed; not called for a single tool call."""

    async def before_function(self, context: FunctionContext) -> None:
        """Called before each tool call."""

    async def wrap_function_call(self, request: FunctionRequest, handler: FunctionHandler) -> JsonValue:
        """Called to make each tool call that no hook blocked. `handler` executes the tool; a hook awaits it any number of times."""
        return await handler(request)

    async def after_function(self, context: FunctionContext) -> None:
        """Called after each tool call, including a call that failed."""

    async def after_iteration(self, context: IterationContext) -> None:
        """Called after each model call and the tool calls of its answer, including calls that failed."""

    async def on_error(self, context: ErrorContext) -> None:
        """Called once for each exception of the run, at the innermost step that fails because of the exception."""


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
"""Names of the hooks that must be async and return nothing. The hooks that wrap a call (`wrap_*`) are not included."""
