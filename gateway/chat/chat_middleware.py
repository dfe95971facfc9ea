"""Middleware around model calls, and `call_model`, which makes a model call inside middleware.

Middleware runs once per model call, not once around the function loop. The run loop and `BaseChatClient` both use `around_model`, so an
agent's middleware and a client's middleware behave alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from gateway.chat.chat_context import ChatContext, ChatStream, SupportsChatGetResponse
from gateway.chat.model_tracing import traced_call
from gateway.json_types import JsonMapping, JsonObject
from gateway.middleware import CallNext, Middleware, MiddlewareType, mark, through
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.invocation import FunctionMiddlewareTypes, SessionData
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream

FunctionT = TypeVar("FunctionT", bound=Callable[..., Awaitable[None]])


class ChatMiddleware(ABC):
    """Base class of middleware around model calls."""

    middleware_type = MiddlewareType.CHAT

    @abstractmethod
    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Act before and after the model call. `await call_next()` makes the call; without it, the call is skipped."""


ChatMiddlewareTypes = ChatMiddleware | Callable[[ChatContext, CallNext], Awaitable[None]]
"""Middleware around model calls: an object or an async function."""

ChatAndFunctionMiddlewareTypes = ChatMiddlewareTypes | FunctionMiddlewareTypes
"""Middleware that a chat client accepts: around model calls, or around tool calls."""


def chat_middleware(func: FunctionT) -> FunctionT:
    """Mark a function as middleware around model calls."""
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
    """Make one model call inside `middleware` and return its parts. Without `stream` there is one part per message.

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
    """Yield the parts of the response that `send` requests, inside `middleware`. `send` reads messages and options from the context."""
    if OBSERVABILITY_SETTINGS.enable_instrumentation:
        send = partial(traced_call, context, send)
    if not middleware:
        return send()
    return through(middleware, context, send, partial(_fold, context), ChatResponse, partial(_said, context))


def whole_of(context: ChatContext, updates: Sequence[ChatResponseUpdate]) -> ChatResponse:
    """Return the whole response: the one that middleware put into `context.result`, otherwise the response of the client."""
    result = context.result
    if not isinstance(result, ChatResponse):
        return _said(context, updates)
    if result.response_format is None and context.options.get("response_format") is not None:
        return _fold(context, result.to_updates())
    return result


def _said(context: ChatContext, updates: Sequence[ChatResponseUpdate]) -> ChatResponse:
    """Return the whole response of the client: `context.said` if the client made one, otherwise the joined parts."""
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
    """Yield the parts of a client's response through `get_response`, which every client has."""
    given: JsonObject = {"options": context.options, **({"client_kwargs": context.kwargs} if context.kwargs else {})}
    return read(context, context.client.get_response(context.messages, stream=context.stream, **given))


async def read(context: ChatContext, answer: Any) -> AsyncGenerator[ChatResponseUpdate, None]:
    """Yield the parts of a response in any form: a whole response, a stream, or an awaitable of either.

    If a stream makes its whole response itself, this response is stored in `context.said`, because it may contain data that no part has,
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
        context.said = whole if isinstance(whole, ChatResponse) else None  # without a finalizer it is a list of parts
    finally:
        if hasattr(found, "aclose"):
            await found.aclose()
