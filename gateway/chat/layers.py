"""The layers that clients written for agent-framework are put together from; `BaseChatClient` already is all of them.

A class names them before its client class. Over `BaseChatClient` they pass on what they are given; over a client of another
kind `ChatMiddlewareLayer` runs the middleware itself. Their signatures pass on what they do not know, as mixins must.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, cast

from gateway.chat.base import BaseChatClient, OptionsT
from gateway.chat.embeddings import EmbeddingInputT, EmbeddingOptionsT, EmbeddingT, OpenAIEmbeddingClient, traced_embeddings
from gateway.chat.middleware import ChatContext, ChatStream, around_model, read, whole_of
from gateway.json_types import JsonMapping
from gateway.middleware import around_models, check_layer, listed, sort_middleware
from gateway.types.messages import AgentRunInputs, to_messages
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream


class ChatMiddlewareLayer(Generic[OptionsT]):
    """Chat middleware around each model call: `middleware` of `BaseChatClient`."""

    is_layer = True
    """Marks a class whose `get_response` only passes on over `BaseChatClient`."""

    def __init__(self, *args: Any, middleware: Sequence[object] | None = None, **kwargs: Any) -> None:
        """Arguments other than `middleware` go to the class behind it; `BaseChatClient` gets the middleware too.

        Raises:
            MiddlewareException: An item is not middleware, or is around runs.
            TypeError: The class has no other base that takes the arguments.
        """
        check_layer(ChatMiddlewareLayer, self, args)
        if isinstance(self, BaseChatClient):
            given = {} if middleware is None else {"middleware": middleware}
            cast("Any", super()).__init__(*args, **given, **kwargs)
            return
        self.chat_middleware: list[Any] = list(around_models(sort_middleware(middleware)).chat)
        super().__init__(*args, **kwargs)

    if not TYPE_CHECKING:  # for a type checker the method is that of the class behind the layer

        def get_response(self, messages: Any, **how: Any) -> Any:
            """Return the answer of the class behind this one, inside the middleware."""
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
    """Call `inner`, the `get_response` of a client of another kind, inside the middleware of the client and of the call."""
    given = cast("ChatOptions", dict(options or {}))
    context = ChatContext(cast("Any", client), to_messages(messages), given, stream, kwargs=dict(client_kwargs or {}))

    def send() -> AsyncGenerator[ChatResponseUpdate, None]:
        kept = {"client_kwargs": context.kwargs} if context.kwargs else {}
        return read(context, inner(context.messages, stream=stream, options=context.options, **kept, **more))

    layers = [*client.chat_middleware, *around_models(sort_middleware(listed(middleware))).chat]
    answer: ChatStream = ResponseStream(around_model(context, layers, send), partial(whole_of, context))
    return answer if stream else answer.get_final_response()


class ChatTelemetryLayer(Generic[OptionsT]):
    """A span for each model call: on with `enable_instrumentation`."""


class EmbeddingTelemetryLayer(Generic[EmbeddingInputT, EmbeddingT, EmbeddingOptionsT]):
    """Traces each embedding request of a client class that a program writes. On with `enable_instrumentation`.

    It goes before the class that implements `get_embeddings`. `OpenAIEmbeddingClient` has its spans already.
    """

    def __init__(self, *args: Any, otel_provider_name: str | None = None, **kwargs: Any) -> None:
        """The rest goes to the class behind it; `otel_provider_name` is the provider in telemetry.

        Raises:
            TypeError: The class has no other base that takes the arguments.
        """
        check_layer(EmbeddingTelemetryLayer, self, args)
        super().__init__(*args, **kwargs)
        self.otel_provider_name: str = otel_provider_name or str(getattr(self, "OTEL_PROVIDER_NAME", "unknown"))

    if not TYPE_CHECKING:  # for a type checker the method is that of the class behind the layer

        async def get_embeddings(self, values: Any, *, options: Any = None) -> Any:
            """Return the embeddings of the class behind this one."""
            inner = super().get_embeddings
            if isinstance(self, OpenAIEmbeddingClient):
                return await inner(values, options=options)
            model = str((options or {}).get("model") or getattr(self, "model", None) or "unknown")
            return await traced_embeddings(self.otel_provider_name, model, lambda: inner(values, options=options))
