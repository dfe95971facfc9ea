"""`ChatContext`: one model call, as chat middleware sees it; `call_model` makes the call.

Middleware runs once per model call, not once around the function loop (requirements C8). The run loop and
`BaseChatClient` both go through `around_model`, so middleware of an agent and of a client work alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gateway.chat.tracing import traced_call
from gateway.json_types import JsonMapping, JsonObject
from gateway.middleware import CallNext, Middleware, MiddlewareType, mark, through
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.invocation import FunctionMiddlewareTypes, SessionData
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream

if TYPE_CHECKING:
    from gateway.chat.base import SupportsChatGetResponse

ChatStream = ResponseStream[ChatResponseUpdate, ChatResponse]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Awaitable[None]])


@dataclass
class ChatContext:
    """One model call. Edit `messages` and `options` before `call_next`, `result` after.

    `result` is a `ChatResponse`, or with `stream` a `ResponseStream`, whose parts are still to come then: use the hooks.
    """

    client: SupportsChatGetResponse
    messages: list[Message]
    options: ChatOptions
    stream: bool = False
    metadata: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Shared by all middleware of this call."""
    result: ChatStream | ChatResponse | None = None
    kwargs: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """What the caller gave for the client itself (`client_kwargs`)."""
    function_invocation_kwargs: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    stream_transform_hooks: list[Callable[[ChatResponseUpdate], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    """Put on the result where it is a stream, as the two below."""
    stream_result_hooks: list[Callable[[ChatResponse], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    stream_cleanup_hooks: list[Callable[[], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    session: SessionData | None = None
    """The run's, where the model is asked by an agent that has one."""
    said: ChatResponse | None = field(default=None, init=False, repr=False)
    """The whole as a client has it that makes it of a stream itself; there once all parts have come."""
    terminate: bool = False
    """Set: nothing further in runs. The way of agent-framework's first versions; `MiddlewareTermination` is today's."""


class ChatMiddleware(ABC):
    """Middleware around model calls, as a class."""

    middleware_type = MiddlewareType.CHAT

    @abstractmethod
    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Do something before, call `call_next()` or not, do something after."""


ChatMiddlewareTypes = ChatMiddleware | Callable[[ChatContext, CallNext], Awaitable[None]]
"""What may be given as middleware around model calls."""

ChatAndFunctionMiddlewareTypes = ChatMiddlewareTypes | FunctionMiddlewareTypes
"""What may be given to a chat client as middleware."""


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
    """One model call inside `middleware`, as parts; without `stream` the client answers whole, and that is one part per message.

    The client's own middleware runs outside `middleware`, where it has any (`BaseChatClient` does that). `client_kwargs` are
    for the client alone.
    """
    direct = getattr(client, "answer", None)
    if direct is not None:
        answer = direct(messages, stream=stream, options=options, middleware=middleware, client_kwargs=client_kwargs, session=session)
        return cast("ChatStream", answer)
    context = ChatContext(client, list(messages), options, stream, session=session)
    if client_kwargs:
        context.kwargs = dict(client_kwargs)
    return ResponseStream(around_model(context, middleware, lambda: ask_client(context)), partial(whole_of, context))


def around_model(
    context: ChatContext,
    middleware: Sequence[Middleware[ChatContext]],
    send: Callable[[], AsyncGenerator[ChatResponseUpdate, None]],
) -> AsyncGenerator[ChatResponseUpdate, None]:
    """The parts of what `send` gives inside `middleware`; `send` reads the context's messages and options."""
    if OBSERVABILITY_SETTINGS.enable_instrumentation:
        send = partial(traced_call, context, send)
    if not middleware:
        return send()
    return through(middleware, context, send, partial(_fold, context), ChatResponse, partial(_said, context))


def whole_of(context: ChatContext, updates: Sequence[ChatResponseUpdate]) -> ChatResponse:
    """The whole of a call's parts: what middleware made of it, where there was any."""
    result = context.result
    if not isinstance(result, ChatResponse):
        return _said(context, updates)
    if result.response_format is None and context.options.get("response_format") is not None:
        return _fold(context, result.to_updates())
    return result


def _said(context: ChatContext, updates: Sequence[ChatResponseUpdate]) -> ChatResponse:
    """The whole of the client's own answer: as it says itself, or the fold of its parts."""
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
    """The parts of what a client answers, asked through the one method every client has."""
    given: JsonObject = {"options": context.options, **({"client_kwargs": context.kwargs} if context.kwargs else {})}
    return read(context, context.client.get_response(context.messages, stream=context.stream, **given))


async def read(context: ChatContext, answer: Any) -> AsyncGenerator[ChatResponseUpdate, None]:
    """The parts of an answer in any of its forms: a whole response, its parts, or what is still to be awaited for either.

    What a stream itself says the whole is, `context` remembers: a conversation's id may be there and in no part.
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
        context.said = whole if isinstance(whole, ChatResponse) else None  # without a finalizer it is the parts again
    finally:
        if hasattr(found, "aclose"):
            await found.aclose()
