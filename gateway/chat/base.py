"""`BaseChatClient`: one model endpoint behind one method; what every chat client shares.

A client implements a single hook, an async generator of updates; the whole response is the folded stream. Clients
keep no conversation. Errors become `ModelError` with what to set or do, and never carry a key.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, cast, overload, runtime_checkable

from typing_extensions import TypeVar

from gateway.chat.limits import check_tool_values, loop_options, normalize_function_invocation_configuration
from gateway.chat.middleware import ChatContext, ChatStream, around_model, ask_client, read, whole_of
from gateway.former import FormerMethods
from gateway.json_types import JsonMapping, JsonObject
from gateway.middleware import Middleware, around_models, listed, sort_middleware
from gateway.tools.given import validate_chat_options
from gateway.tools.invocation import SessionData
from gateway.types.messages import Message, to_messages
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse, ChatResponseUpdate, ResponseFormat
from gateway.types.streams import ResponseStream

if TYPE_CHECKING:
    from gateway import Agent

_ONE_CALL = {"enabled": False}
"""The option `loop` of a call whose tools somebody else runs."""

OptionsT = TypeVar("OptionsT", bound=Mapping[str, Any], default=ChatOptions)
"""What a client takes as options: `ChatOptions`, or a client's own extension of it."""


@runtime_checkable
class SupportsChatGetResponse(Protocol):
    """Anything that answers messages: what agents need of a chat client."""

    @overload
    def get_response(
        self, messages: Sequence[Message], *, stream: Literal[False] = False, options: ChatOptions | None = None
    ) -> Awaitable[ChatResponse]: ...
    @overload
    def get_response(self, messages: Sequence[Message], *, stream: Literal[True], options: ChatOptions | None = None) -> ChatStream: ...
    def get_response(
        self, messages: Sequence[Message], *, stream: bool = False, options: ChatOptions | None = None
    ) -> Awaitable[ChatResponse] | ChatStream:
        """Answer: an awaitable of the whole response, or at once a stream of its parts. Nothing is sent before it is awaited or read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """One call of `get_response` that takes more than a model call."""

    client: BaseChatClient[Any]
    messages: list[Message]
    options: ChatOptions
    stream: bool
    limits: JsonMapping | None
    """The call's own, over the client's."""
    middleware: Sequence[object]
    compaction_strategy: Any
    tokenizer: Any
    client_kwargs: JsonMapping
    function_invocation_kwargs: JsonMapping
    session: SessionData | None


class BaseChatClient(FormerMethods, ABC, Generic[OptionsT]):
    """Base of the clients here. Subclasses implement `_updates`, or `_inner_get_response` as in agent-framework."""

    OTEL_PROVIDER_NAME: str = "unknown"
    """The provider in telemetry."""

    def __init__(
        self,
        model: str = "",
        middleware: Sequence[object] | None = None,
        *,
        function_invocation_configuration: JsonMapping | None = None,
        compaction_strategy: object = None,
        tokenizer: object = None,
        additional_properties: JsonMapping | None = None,
        otel_provider_name: str | None = None,
    ) -> None:
        """`middleware` is a mixed list, outermost first: chat middleware runs around every model call, function middleware
        around every tool call. `function_invocation_configuration` limits the loop of both, and `compaction_strategy` with
        `tokenizer` shortens what the model is shown of a conversation: in this client's own `get_response`, and in agents
        over it that have none of their own. `otel_provider_name` is the provider in telemetry.

        Raises:
            ValueError: A limit of the loop does not exist or is out of range.
            MiddlewareException: An item is not middleware, or is around runs.
        """
        given = around_models(sort_middleware(middleware))
        self.model = model
        """The model's name."""
        self.chat_middleware: list[Any] = list(given.chat)
        self.function_middleware: list[Any] = list(given.function)
        self.function_invocation_configuration: Any = normalize_function_invocation_configuration(function_invocation_configuration)
        self.compaction_strategy: Any = compaction_strategy
        self.tokenizer: Any = tokenizer
        self.additional_properties: JsonObject = dict(additional_properties or {})
        self.otel_provider_name = otel_provider_name or self.OTEL_PROVIDER_NAME

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a hook of agent-framework's earlier versions, which nothing would call.

        Raises:
            TypeError: The class has `_inner_get_streaming_response`.
        """
        super().__init_subclass__(**kwargs)
        if "_inner_get_streaming_response" in vars(cls):
            raise TypeError(
                f"{cls.__name__}._inner_get_streaming_response would never be called: streams come from _inner_get_response too, "
                "which gets stream=True and returns the parts then."
            )

    def _updates(self, messages: Sequence[Message], *, stream: bool, options: ChatOptions) -> AsyncGenerator[ChatResponseUpdate, None]:
        """Send one request and yield what comes back; one part where `stream` is false.

        Raises:
            ModelError: The endpoint failed; the text says what to set or do.
        """
        asked = ChatContext(self, list(messages), options, stream)
        return read(asked, self._inner_get_response(messages=messages, stream=stream, options=options))

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: ChatOptions
    ) -> Awaitable[ChatResponse | AsyncIterable[ChatResponseUpdate]] | AsyncIterable[ChatResponseUpdate]:
        """The hook as agent-framework has it: the whole response, or with `stream` its parts. May take `client_kwargs` as keywords."""
        raise NotImplementedError(f"{type(self).__name__} implements neither _updates nor _inner_get_response.")

    # -- what subclasses call, under agent-framework's names ----------------------------------------------------------

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
        options: OptionsT | ChatOptions | None = None,
        middleware: Any = None,
        compaction_strategy: Any = None,
        tokenizer: Any = None,
        client_kwargs: JsonMapping | None = None,
        function_invocation_kwargs: JsonMapping | None = None,
    ) -> Awaitable[ChatResponse]: ...
    @overload
    def get_response(
        self,
        messages: str | Message | Sequence[str | Message],
        *,
        stream: Literal[True],
        options: OptionsT | ChatOptions | None = None,
        middleware: Any = None,
        compaction_strategy: Any = None,
        tokenizer: Any = None,
        client_kwargs: JsonMapping | None = None,
        function_invocation_kwargs: JsonMapping | None = None,
    ) -> ChatStream: ...
    def get_response(
        self,
        messages: str | Message | Sequence[str | Message],
        *,
        stream: bool = False,
        options: OptionsT | ChatOptions | None = None,
        middleware: Any = None,
        compaction_strategy: Any = None,
        tokenizer: Any = None,
        client_kwargs: JsonMapping | None = None,
        function_invocation_kwargs: JsonMapping | None = None,
    ) -> Awaitable[ChatResponse] | ChatStream:
        """Answer `messages`: an awaitable of the whole response, or at once a stream of its parts.

        Tools among the options are run as the model asks for them, until it has answered or a limit of the client's
        `function_invocation_configuration` is reached; with `enabled` off, and for tools without code, their calls are
        returned. `middleware` is this call's own, inside the client's; `compaction_strategy` and `tokenizer` go before the
        client's; `function_invocation_kwargs` reach tools, `client_kwargs` middleware and the client.
        """
        check_tool_values(function_invocation_kwargs)
        given = cast("ChatOptions", dict(options or {}))
        own = dict(client_kwargs or {})
        layers = [*listed(own.pop("middleware", None)), *listed(middleware)]
        sorted_layers = around_models(sort_middleware(layers))
        session = cast("SessionData | None", own.pop("session", None))  # agent-framework's code gives it here
        strategy = compaction_strategy or self.compaction_strategy
        tokenizer = tokenizer or self.tokenizer
        limits = given.pop("loop", None)
        loop = loop_options(self.function_invocation_configuration, limits)
        runs_tools = loop.enabled and (given.get("tools") or loop.additional_tools)
        if runs_tools or strategy is not None or tokenizer is not None:
            from gateway import FunctionInvocationLayer  # the package's own public name: its room is above this one

            request = ClientRequest(
                client=self,
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
            response = FunctionInvocationLayer.answers(request)
        else:
            context = ChatContext(self, to_messages(messages), given, stream, session=session)
            if own:
                context.kwargs = own
            if function_invocation_kwargs:
                context.function_invocation_kwargs = dict(function_invocation_kwargs)
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
        """One model call as parts, also where it is asked for whole (`stream` off); what the run loop uses.

        `middleware` runs inside the client's own. A class with a `get_response` of its own is asked through that.
        """
        context = ChatContext(self, list(messages), cast("ChatOptions", dict(options)), stream, session=session)
        if client_kwargs:
            context.kwargs = dict(client_kwargs)
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
        """Stop work in the background and say how it ended; `None` where the provider has none (requirements LR3)."""
        return None

    async def delete_response(self, continuation_token: JsonMapping) -> bool | None:
        """Make the provider forget a response; `None` where it keeps none (requirements LR3)."""
        return None

    def service_url(self) -> str:
        """The address of the provider, for people and telemetry."""
        return "Unknown"

    def as_agent(
        self,
        *,
        id: str | None = None,
        name: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        tools: Any = None,
        default_options: OptionsT | ChatOptions | None = None,
        context_providers: Sequence[Any] | None = None,
        middleware: Sequence[object] | None = None,
        function_invocation_configuration: Any = None,
        compaction_strategy: Any = None,
        tokenizer: Any = None,
        require_per_service_call_history_persistence: bool = False,
        additional_properties: JsonObject | None = None,
    ) -> Agent:
        """A local agent over this client; the arguments are `Agent`'s (requirements CL5)."""
        from gateway import Agent  # the package's own public name: the room of agents is above this one

        return Agent(
            self,
            instructions,
            id=id,
            name=name,
            description=description,
            tools=tools,
            default_options=cast("ChatOptions | None", default_options),
            context_providers=context_providers,
            middleware=middleware,
            function_invocation_configuration=function_invocation_configuration,
            compaction_strategy=compaction_strategy,
            tokenizer=tokenizer,
            require_per_service_call_history_persistence=require_per_service_call_history_persistence,
            additional_properties=additional_properties,
        )


def _uses_own_get_response(kind: type[BaseChatClient[Any]]) -> bool:
    """Return whether `get_response` of a client class is `BaseChatClient`'s; the layers' only pass on."""
    return next(c for c in kind.__mro__ if "get_response" in vars(c) and "is_layer" not in vars(c)) is BaseChatClient
