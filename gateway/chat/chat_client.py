"""`BaseChatClient`: the base class of all chat clients. A chat client sends requests to one model endpoint.

A subclass implements one method: an async generator of updates, which are parts of a response. Joining the updates gives the whole
response. Clients do not store conversations. Errors become `ModelError`, which says what to set or do and never contains a key.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, Unpack, cast, overload

from typing_extensions import TypeVar

from gateway.chat.chat_context import ChatContext, ChatStream, ClientRequest
from gateway.chat.chat_middleware import ChatAndFunctionMiddlewareTypes, around_model, ask_client, read, whole_of
from gateway.chat.loop_options import check_tool_values, loop_options, normalize_function_invocation_configuration
from gateway.chat.tool_runs import TOOL_RUNS
from gateway.former_names import FormerMethods
from gateway.json_types import JsonMapping, JsonObject
from gateway.middleware import Middleware, around_models, listed, sort_middleware
from gateway.tools.invocation import SessionData
from gateway.tools.tool_lists import ToolList, validate_chat_options
from gateway.types.compaction import CompactionStrategy, TokenizerProtocol
from gateway.types.messages import Message, to_messages
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream
from gateway.types.structured import ResponseFormat

if TYPE_CHECKING:
    from gateway import Agent

_ONE_CALL = {"enabled": False}
"""Value of the option `loop` for a call that returns the model's tool calls instead of running them, because the caller runs the tools."""

OptionsT = TypeVar("OptionsT", bound=Mapping[str, Any], default=ChatOptions)
"""Type of the options that a chat client accepts: `ChatOptions` or an extension of it."""


class ChatClientArguments(TypedDict, total=False):
    """Keyword arguments of `BaseChatClient` that its subclasses accept and pass to it."""

    middleware: Sequence[object] | None
    function_invocation_configuration: JsonMapping | None
    compaction_strategy: CompactionStrategy | None
    tokenizer: TokenizerProtocol | None
    additional_properties: JsonMapping | None


class ResponseArguments(TypedDict, Generic[OptionsT], total=False):
    """Keyword arguments of `BaseChatClient.get_response`, except `stream`."""

    options: OptionsT | ChatOptions | None
    middleware: ChatAndFunctionMiddlewareTypes | Sequence[object] | None
    compaction_strategy: CompactionStrategy | None
    tokenizer: TokenizerProtocol | None
    client_kwargs: JsonMapping | None
    function_invocation_kwargs: JsonMapping | None


class AgentArguments(TypedDict, Generic[OptionsT], total=False):
    """Keyword arguments of `Agent` that `BaseChatClient.as_agent` accepts and passes to it."""

    id: str | None
    name: str | None
    description: str | None
    instructions: str | None
    tools: ToolList
    default_options: OptionsT | ChatOptions | None
    context_providers: Sequence[Any] | None
    middleware: Sequence[object] | None
    function_invocation_configuration: JsonMapping | None
    compaction_strategy: CompactionStrategy | None
    tokenizer: TokenizerProtocol | None
    require_per_service_call_history_persistence: bool
    additional_properties: JsonObject | None


class BaseChatClient(FormerMethods, ABC, Generic[OptionsT]):
    """Base class of chat clients. Subclasses implement `_updates`, or `_inner_get_response` as in Microsoft's agent framework."""

    OTEL_PROVIDER_NAME: str = "unknown"
    """Default name of the model's provider in telemetry."""

    def __init__(
        self,
        model: str = "",
        middleware: Sequence[object] | None = None,
        *,
        function_invocation_configuration: JsonMapping | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        additional_properties: JsonMapping | None = None,
        otel_provider_name: str | None = None,
    ) -> None:
        """Store defaults for `get_response`, and for agents that use this client and do not set these values themselves.

        `middleware` is a mixed list, outermost first: chat middleware runs around every model call, function middleware around every tool
        call. `function_invocation_configuration` limits the loop of model and tool calls. `compaction_strategy` and `tokenizer` shorten the
        conversation that the model receives. `otel_provider_name` is the provider's name in telemetry.

        Raises:
            ValueError: A limit of the loop is unknown or out of range.
            MiddlewareException: An item is not middleware, or is agent middleware.
        """
        given = around_models(sort_middleware(middleware))
        self.model = model
        """Name of the model."""
        self.chat_middleware: list[Any] = list(given.chat)
        self.function_middleware: list[Any] = list(given.function)
        self.function_invocation_configuration = normalize_function_invocation_configuration(function_invocation_configuration)
        self.compaction_strategy = compaction_strategy
        self.tokenizer = tokenizer
        self.additional_properties: JsonObject = dict(additional_properties or {})
        self.otel_provider_name = otel_provider_name or self.OTEL_PROVIDER_NAME

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Reject a subclass that defines `_inner_get_streaming_response`, because nothing would call this method.

        Earlier versions of agent-framework called it.

        Raises:
            TypeError: The class defines `_inner_get_streaming_response`.
        """
        super().__init_subclass__(**kwargs)
        if "_inner_get_streaming_response" in vars(cls):
            raise TypeError(
                f"{cls.__name__}._inner_get_streaming_response would never be called: move it into _inner_get_response, "
                "which is called with stream=True and then returns the parts."
            )

    def _updates(self, messages: Sequence[Message], *, stream: bool, options: ChatOptions) -> AsyncGenerator[ChatResponseUpdate, None]:
        """Send one request to the model, and yield the parts of the response. Without `stream`, there may be several parts, too.

        Raises:
            ModelError: The endpoint failed; the text says what to set or do.
        """
        asked = ChatContext(self, list(messages), options, stream)
        return read(asked, self._inner_get_response(messages=messages, stream=stream, options=options))

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: ChatOptions
    ) -> Awaitable[ChatResponse | AsyncIterable[ChatResponseUpdate]] | AsyncIterable[ChatResponseUpdate]:
        """Send one request to the model. Return the whole response or, with `stream`, its parts.

        Subclasses written for agent-framework override this method. An override may accept the `client_kwargs` of a call as keyword
        arguments.
        """
        raise NotImplementedError(f"{type(self).__name__} implements neither _updates nor _inner_get_response.")

    # -- helpers for subclasses, named as in agent-framework ----------------------------------------------------------

    async def _validate_options(self, options: JsonMapping) -> JsonObject:
        return await validate_chat_options(options)

    def _finalize_response_updates(
        self, updates: Sequence[ChatResponseUpdate], *, response_format: ResponseFormat | None = None
    ) -> ChatResponse:
        return ChatResponse.from_updates(updates, output_format_type=response_format)

    def _build_response_stream(
        self,
        stream: AsyncIterable[ChatResponseUpdate] | Awaitable[AsyncIterable[ChatResponseUpdate]],
        *,
        response_format: ResponseFormat | None = None,
    ) -> ChatStream:
        return ResponseStream(stream, partial(self._finalize_response_updates, response_format=response_format))

    @overload
    def get_response(
        self,
        messages: str | Message | Sequence[str | Message],
        *,
        stream: Literal[False] = False,
        **arguments: Unpack[ResponseArguments[OptionsT]],
    ) -> Awaitable[ChatResponse]: ...
    @overload
    def get_response(
        self,
        messages: str | Message | Sequence[str | Message],
        *,
        stream: Literal[True],
        **arguments: Unpack[ResponseArguments[OptionsT]],
    ) -> ChatStream: ...
    def get_response(
        self,
        messages: str | Message | Sequence[str | Message],
        *,
        stream: bool = False,
        options: OptionsT | ChatOptions | None = None,
        middleware: ChatAndFunctionMiddlewareTypes | Sequence[object] | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        client_kwargs: JsonMapping | None = None,
        function_invocation_kwargs: JsonMapping | None = None,
    ) -> Awaitable[ChatResponse] | ChatStream:
        """Send `messages` to the model. Return an awaitable of the whole response, or with `stream` a stream of its parts.

        If the model calls tools that are in `options`, they run, and the model is called again with their results. This loop ends when the
        model calls no tool, or at a limit of the client's `function_invocation_configuration`. If the tool loop is disabled there
        (`enabled: false`), or if a called tool has no code, the response contains the calls instead.

        `middleware` of this call runs inside the client's middleware. `compaction_strategy` and `tokenizer` replace those of the client.
        Tools receive `function_invocation_kwargs`; middleware and the client receive `client_kwargs`.
        """
        check_tool_values(function_invocation_kwargs)
        given = cast("ChatOptions", dict(options or {}))
        own = dict(client_kwargs or {})
        layers = [*listed(own.pop("middleware", None)), *listed(middleware)]
        sorted_layers = around_models(sort_middleware(layers))
        session = cast("SessionData | None", own.pop("session", None))  # programs written for agent-framework pass the session here
        strategy = compaction_strategy or self.compaction_strategy
        tokenizer = tokenizer or self.tokenizer
        limits = given.pop("loop", None)
        loop = loop_options(self.function_invocation_configuration, limits)
        runs_tools = loop.enabled and (given.get("tools") or loop.additional_tools)
        if runs_tools or strategy is not None or tokenizer is not None:
            request = ClientRequest(
                client=self,
                client_limits=self.function_invocation_configuration,
                messages=to_messages(messages),
                options=given,
                stream=stream,
                limits=limits,
                middleware=[*self.function_middleware, *layers],
                compaction_strategy=strategy,
                tokenizer=tokenizer,
                client_kwargs=own,
                function_invocation_kwargs=function_invocation_kwargs or {},
                session=session,
            )
            response = TOOL_RUNS.answers(request)
        else:
            tool_values = dict(function_invocation_kwargs or {})
            conversation = to_messages(messages)
            context = ChatContext(self, conversation, given, stream, kwargs=own, function_invocation_kwargs=tool_values, session=session)
            response = self._call(context, sorted_layers.chat)
        return response if stream else response.get_final_response()

    def answer(
        self,
        messages: Sequence[Message],
        *,
        stream: bool,
        options: ChatOptions,
        middleware: Sequence[Middleware[ChatContext]] = (),
        client_kwargs: JsonMapping | None = None,
        session: SessionData | None = None,
    ) -> ChatStream:
        """Make one model call, without running tools, and return the parts of the response. The agents' run loop calls this method.

        The result is a stream of parts even without `stream`. `middleware` runs inside the client's middleware. If the class overrides
        `get_response`, the call goes through that method.
        """
        given = cast("ChatOptions", dict(options))
        context = ChatContext(self, list(messages), given, stream, kwargs=dict(client_kwargs or {}), session=session)
        if _uses_own_get_response(type(self)):
            return self._call(context, middleware)
        context.options["loop"] = _ONE_CALL
        return ResponseStream(around_model(context, middleware, lambda: ask_client(context)), partial(whole_of, context))

    def _call(self, context: ChatContext, middleware: Sequence[Middleware[ChatContext]]) -> ChatStream:
        layers = [*self.chat_middleware, *middleware] if self.chat_middleware else middleware

        def send() -> AsyncGenerator[ChatResponseUpdate, None]:
            if type(self)._updates is BaseChatClient._updates:
                inner = cast("Callable[..., Any]", self._inner_get_response)
                return read(context, inner(messages=context.messages, stream=context.stream, options=context.options, **context.kwargs))
            return self._updates(context.messages, stream=context.stream, options=context.options)

        return ResponseStream(around_model(context, layers, send), partial(whole_of, context))

    async def cancel_response(self, continuation_token: JsonMapping) -> ChatResponse | None:
        """Stop the generation of a background response. Return its final state, or `None` if the provider has no background responses."""
        return None

    async def delete_response(self, continuation_token: JsonMapping) -> bool | None:
        """Delete a stored response at the provider. Return whether it was deleted, or `None` if the provider stores no responses."""
        return None

    def service_url(self) -> str:
        """Return the address of the model's provider, for messages and telemetry. `Unknown` if a subclass does not override this."""
        return "Unknown"

    def as_agent(self, **arguments: Unpack[AgentArguments[OptionsT]]) -> Agent:
        """Return an agent in this process that uses this client. The arguments are those of `Agent`."""
        from gateway import Agent  # imported by its public name, because the package `agents` may not be imported here

        return Agent(self, **cast("Any", arguments))


def _uses_own_get_response(kind: type[BaseChatClient[Any]]) -> bool:
    """Return whether a class of chat clients uses `get_response` of `BaseChatClient` without overriding it.

    Layers (`framework_layers`, mixin classes for middleware) that the class inherits from do not count as overrides, because their
    `get_response` only delegates.
    """
    return next(c for c in kind.__mro__ if "get_response" in vars(c) and "is_layer" not in vars(c)) is BaseChatClient
