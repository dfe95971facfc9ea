"""Mixin classes (layers) that add middleware and telemetry to clients written for Microsoft's agent framework.

A class lists layers before its client class, as in `class Client(ChatMiddlewareLayer, MyClient)`. `BaseChatClient` already contains what
the layers add. If the client class extends `BaseChatClient`, a layer therefore only delegates; otherwise `ChatMiddlewareLayer` runs the
middleware itself. Arguments that a layer does not use are passed to the next class.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, cast

from gateway.chat.chat_client import BaseChatClient, OptionsT
from gateway.chat.chat_context import ChatContext, ChatStream
from gateway.chat.chat_middleware import around_model, read, whole_of
from gateway.chat.embeddings import EmbeddingInputT, EmbeddingOptionsT, EmbeddingT, OpenAIEmbeddingClient, traced_embeddings
from gateway.json_types import JsonMapping
from gateway.middleware import around_models, check_layer, listed, sort_middleware
from gateway.types.messages import AgentRunInputs, to_messages
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream


class ChatMiddlewareLayer(Generic[OptionsT]):
    """Mixin class that runs chat middleware around each model call, like `middleware` of `BaseChatClient`."""

    is_layer = True
    """Marks this class as a mixin layer, whose `get_response` only delegates if the client extends `BaseChatClient`."""

    def __init__(self, *args: Any, middleware: Sequence[object] | None = None, **kwargs: Any) -> None:
        """Store `middleware`, and pass all other arguments to the next class. A `BaseChatClient` receives and stores `middleware` itself.

        Raises:
            MiddlewareException: An item is not middleware, or is agent middleware.
            TypeError: The class has no other base that accepts the arguments.
        """
        check_layer(ChatMiddlewareLayer, self, args)
        if isinstance(self, BaseChatClient):
            given = {} if middleware is None else {"middleware": middleware}
            cast("Any", super()).__init__(*args, **given, **kwargs)
            return
        self.chat_middleware: list[Any] = list(around_models(sort_middleware(middleware)).chat)
        super().__init__(*args, **kwargs)

    if not TYPE_CHECKING:  # hidden from type checkers, which then use the method of the next class

        def get_response(self, messages: Any, **how: Any) -> Any:
            """Call `get_response` of the next class inside the middleware, and return the response."""
            inner = super().get_response
            return inner(messages, **how) if isinstance(self, BaseChatClient) else _around(self, inner, messages, **how)


def _around(
    client: ChatMiddlewareLayer[Any],
    inner: Callable[..., Any],
    messages: AgentRunInputs,
    *,
    stream: bool = False,
    options: JsonMapping | None = None,
    middleware: object = None,
    client_kwargs: JsonMapping | None = None,
    **more: Any,
) -> Awaitable[ChatResponse] | ChatStream:
    """Call `inner`, the `get_response` of the next class, inside the middleware of the client and of the call, and return the response.

    Used for clients that do not extend `BaseChatClient`.
    """
    given = cast("ChatOptions", dict(options or {}))
    context = ChatContext(cast("Any", client), to_messages(messages), given, stream, kwargs=dict(client_kwargs or {}))

    def send() -> AsyncGenerator[ChatResponseUpdate, None]:
        kept = {"client_kwargs": context.kwargs} if context.kwargs else {}
        return read(context, inner(context.messages, stream=stream, options=context.options, **kept, **more))

    layers = [*client.chat_middleware, *around_models(sort_middleware(listed(middleware))).chat]
    answer: ChatStream = ResponseStream(around_model(context, layers, send), partial(whole_of, context))
    return answer if stream else answer.get_final_response()


class ChatTelemetryLayer(Generic[OptionsT]):
    """Mixin class without effect, for compatibility with agent-framework: model calls are traced without it, if instrumentation is on."""


class EmbeddingTelemetryLayer(Generic[EmbeddingInputT, EmbeddingT, EmbeddingOptionsT]):
    """Mixin class that records a trace span for each embedding request of a custom client if instrumentation is enabled.

    List it before the class that implements `get_embeddings`. `OpenAIEmbeddingClient` already has spans.
    """

    def __init__(self, *args: Any, otel_provider_name: str | None = None, **kwargs: Any) -> None:
        """Store the provider's name for telemetry, and pass all other arguments to the next class.

        Raises:
            TypeError: The class has no other base that accepts the arguments.
        """
        check_layer(EmbeddingTelemetryLayer, self, args)
        super().__init__(*args, **kwargs)
        self.otel_provider_name: str = otel_provider_name or str(getattr(self, "OTEL_PROVIDER_NAME", "unknown"))

    if not TYPE_CHECKING:  # hidden from type checkers, which then use the method of the next class

        async def get_embeddings(self, values: Any, *, options: Any = None) -> Any:
            """Call `get_embeddings` of the next class, record a span unless the class records it itself, and return the embeddings."""
            inner = super().get_embeddings
            if isinstance(self, OpenAIEmbeddingClient):
                return await inner(values, options=options)
            model = str((options or {}).get("model") or getattr(self, "model", None) or "unknown")
            return await traced_embeddings(self.otel_provider_name, model, lambda: inner(values, options=options))
