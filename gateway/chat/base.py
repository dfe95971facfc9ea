"""`BaseChatClient`: one model endpoint behind one method; what every chat client shares.

A client implements a single hook, an async generator of updates; the whole response is the folded stream. Clients
keep no conversation. Errors become `ModelError` with what to set or do, and never carry a key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast, overload

from gateway.json_types import JsonObject
from gateway.middleware import Middleware, MiddlewareTermination, compose
from gateway.types.messages import Message, to_messages
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse, ChatResponseUpdate, ResponseStream, Run

ChatStream = ResponseStream[ChatResponseUpdate, ChatResponse]


@dataclass(slots=True)
class ChatContext:
    """One model call, as chat middleware sees it. Replace `messages` and `options` before, `result` after."""

    client: SupportsChatGetResponse
    messages: list[Message]
    options: ChatOptions
    stream: bool
    metadata: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Shared by all middleware of this call."""
    result: ChatStream | ChatResponse | None = None


class SupportsChatGetResponse(Protocol):
    """Anything that answers messages: what agents need of a chat client."""

    @property
    def model(self) -> str:
        """The model's name, for people and telemetry."""
        ...

    def get_response(
        self, messages: str | Message | Sequence[str | Message], *, stream: Literal[True], options: ChatOptions | None = None
    ) -> ChatStream:
        """Answer in parts; nothing is sent before the first part is asked for."""
        ...


class BaseChatClient(ABC):
    """Base of the clients here. Subclasses implement `_updates`."""

    def __init__(self, model: str, middleware: Sequence[Middleware[ChatContext]] = ()) -> None:
        """`middleware` runs around every model call, outermost first."""
        self._model = model
        self._middleware = tuple(middleware)

    @property
    def model(self) -> str:
        """The model's name."""
        return self._model

    @abstractmethod
    def _updates(self, messages: Sequence[Message], *, stream: bool, options: ChatOptions) -> AsyncGenerator[ChatResponseUpdate, None]:
        """Send one request and yield what comes back; one part where `stream` is false.

        Raises:
            ModelError: The endpoint failed; the text says what to set or do.
        """
        ...

    @overload
    def get_response(
        self, messages: str | Message | Sequence[str | Message], *, stream: Literal[False] = False, options: ChatOptions | None = None
    ) -> Awaitable[ChatResponse]: ...
    @overload
    def get_response(
        self, messages: str | Message | Sequence[str | Message], *, stream: Literal[True], options: ChatOptions | None = None
    ) -> ChatStream: ...
    def get_response(
        self, messages: str | Message | Sequence[str | Message], *, stream: bool = False, options: ChatOptions | None = None
    ) -> Awaitable[ChatResponse] | ChatStream:
        """Answer `messages`: an awaitable of the whole response, or at once a stream of its parts."""
        context = ChatContext(self, to_messages(messages), cast("ChatOptions", dict(options or {})), stream)
        response = ResponseStream(self._through_middleware(context), ChatResponse.from_updates)
        return response if stream else Run(response)

    async def _through_middleware(self, context: ChatContext) -> AsyncGenerator[ChatResponseUpdate, None]:
        async def call() -> None:
            updates = self._updates(context.messages, stream=context.stream, options=context.options)
            context.result = ResponseStream(updates, ChatResponse.from_updates)

        try:
            await compose(self._middleware, context, call)
        except MiddlewareTermination as stop:
            context.result = context.result or cast("ChatResponse | None", stop.result)
        result = context.result
        if isinstance(result, ResponseStream):
            try:
                async for update in result:
                    yield update
            finally:
                await result.aclose()
        elif result is not None:
            for message in result.messages:
                yield ChatResponseUpdate(message.contents, message.role, result.response_id, result.model, result.finish_reason)
