"""Middleware around model calls, and `call_model`, which makes a model call inside middleware.

Middleware runs once per model call, not once around the loop of model and tool calls. Agents' runs and `BaseChatClient` both use
`around_model`, so an agent's middleware and a client's middleware behave alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

from gateway.chat.chat_context import ChatContext, ChatStream, SupportsChatGetResponse
from gateway.chat.model_tracing import traced_call
from gateway.json_types import JsonMapping, JsonObject
from gateway.middleware import CallNext, FunctionT, Middleware, MiddlewareType, mark, through
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.invocation import FunctionMiddlewareTypes, SessionData
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream


class ChatMiddleware(ABC):
    """Base class of chat middleware: objects that act before and after each call of a model."""

    middleware_type = MiddlewareType.CHAT

    @abstractmethod
    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Act before and after the model call. `await call_next()` makes the call; if it is not awaited, the call is skipped."""


ChatMiddlewareTypes = ChatMiddleware | Callable[[ChatContext, CallNext], Awaitable[None]]
"""Type of middleware around model calls: a `ChatMiddleware` object or an async function."""

ChatAndFunctionMiddlewareTypes = ChatMiddlewareTypes | FunctionMiddlewareTypes
"""Type of middleware that a chat client accepts: around model calls, or around tool calls."""


def chat_middleware(func: FunctionT) -> FunctionT:
    """Decorator that marks a function as middleware around model calls."""
    return mark(func, MiddlewareType.CHAT)


def call_model(
    client: SupportsChatGetResponse,
    messages: Sequence[Message],
    options: ChatOptions,
    *,
    stream: bool,
    middleware: Sequence[Middleware[ChatContext]] = (),
    client_kwargs: JsonMapping | None = None,
    session: SessionData | None = None,
) -> ChatStream:
    """Make one model call inside `middleware`, and return a stream of the response's parts, even if `stream` is false.

    `stream` is whether the client requests the response in parts; otherwise the whole response is split into parts.

    The client's own middleware, if it has any, runs outside `middleware`. `client_kwargs` are passed to the client only.
    """
    direct = getattr(client, "answer", None)
    if direct is not None:
        answer = direct(messages, stream=stream, options=options, middleware=middleware, client_kwargs=client_kwargs, session=session)
        return cast("ChatStream", answer)
    context = ChatContext(client, list(messages), options, stream, kwargs=dict(client_kwargs or {}), session=session)
    return ResponseStream(around_model(context, middleware, lambda: ask_client(context)), partial(whole_of, context))


def around_model(
    context: ChatContext,
    middleware: Sequence[Middleware[ChatContext]],
    send: Callable[[], AsyncGenerator[ChatResponseUpdate, None]],
) -> AsyncGenerator[ChatResponseUpdate, None]:
    """Run `middleware` around the model request that `send` makes, and yield the parts of the response.

    `send` must read messages and options from `context`, because middleware may change them. The request is traced if instrumentation is
    on.
    """
    if OBSERVABILITY_SETTINGS.enable_instrumentation:
        send = partial(traced_call, context, send)
    if not middleware:
        return send()
    return through(middleware, context, send, partial(_fold, context), ChatResponse, partial(_whole_response, context))


def whole_of(context: ChatContext, updates: Sequence[ChatResponseUpdate]) -> ChatResponse:
    """Return the whole response of a model call: `context.result` if middleware set it to a response, otherwise the client's response.

    `updates` are the parts of the response.
    """
    result = context.result
    if not isinstance(result, ChatResponse):
        return _whole_response(context, updates)
    if result.response_format is None and context.options.get("response_format") is not None:
        return _fold(context, result.to_updates())
    return result


def _whole_response(context: ChatContext, updates: Sequence[ChatResponseUpdate]) -> ChatResponse:
    """Return the whole response of the client: `context.said` if the client set it, otherwise the joined parts in `updates`."""
    whole = context.said
    if whole is None:
        return _fold(context, updates)
    if not whole.messages:
        whole.messages = ChatResponse.from_updates(updates).messages
    if whole.response_format is None and context.options.get("response_format") is not None:
        return _fold(context, whole.to_updates())
    return whole


def _fold(context: ChatContext, updates: Sequence[ChatResponseUpdate]) -> ChatResponse:
    return ChatResponse.from_updates(updates, output_format_type=context.options.get("response_format"))


def ask_client(context: ChatContext) -> AsyncGenerator[ChatResponseUpdate, None]:
    """Call `get_response` of the client in `context`, and yield the parts of the response. Works with every chat client."""
    given: JsonObject = {"options": context.options, **({"client_kwargs": context.kwargs} if context.kwargs else {})}
    return read(context, context.client.get_response(context.messages, stream=context.stream, **given))


async def read(context: ChatContext, answer: Any) -> AsyncGenerator[ChatResponseUpdate, None]:
    """Yield the parts of a response. `answer` is a whole response, a stream of parts, or an awaitable of either.

    If the stream joins its parts itself, the joined response is stored in `context.said`, because it may contain data that no part has,
    such as a conversation id.
    """
    found = answer if hasattr(answer, "__aiter__") else await answer
    if isinstance(found, ChatResponse):
        for update in found.to_updates():
            yield update
        return
    try:
        async for update in found:
            yield update
        whole = await found.get_final_response() if isinstance(cast("object", found), ResponseStream) else None
        context.said = whole if isinstance(whole, ChatResponse) else None  # a stream without a finalizer returns a list of parts
    finally:
        if hasattr(found, "aclose"):
            await found.aclose()
