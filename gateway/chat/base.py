"""`BaseChatClient`: one model endpoint behind one method; what every chat client shares.

A client implements a single hook, an async generator of updates; the whole response is the folded stream. Clients
keep no conversation. Errors become `ModelError` with what to set or do, and never carry a key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Literal, Protocol, cast, overload

from gateway.chat.middleware import ChatContext, ChatStream, around_model
from gateway.json_types import JsonMapping
from gateway.middleware import Middleware, sort_middleware
from gateway.types.messages import Message, to_messages
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream


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


class BaseChatClient(ABC):
    """Base of the clients here. Subclasses implement `_updates`."""

    def __init__(
        self,
        model: str,
        middleware: Sequence[object] = (),
        *,
        function_invocation_configuration: JsonMapping | None = None,
    ) -> None:
        """`middleware` is a mixed list, outermost first: chat middleware runs around every model call, function middleware
        around the tool calls of agents over this client. `function_invocation_configuration` limits their loop.
        """
        given = sort_middleware(list(middleware))
        self._model = model
        self._middleware: Sequence[Middleware[ChatContext]] = given.chat
        self.function_middleware = given.function
        self.function_invocation_configuration = dict(function_invocation_configuration or {})

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
        response = self.answer(to_messages(messages), stream=stream, options=options or {})
        return response if stream else response.get_final_response()

    def answer(
        self, messages: Sequence[Message], *, stream: bool, options: ChatOptions, middleware: Sequence[Middleware[ChatContext]] = ()
    ) -> ChatStream:
        """One model call as parts, also where it is asked for whole (`stream` off); what the run loop uses.

        `middleware` runs inside the client's own.
        """
        context = ChatContext(self, list(messages), cast("ChatOptions", dict(options)), stream)
        layers = [*self._middleware, *middleware] if self._middleware else middleware

        def send() -> AsyncGenerator[ChatResponseUpdate, None]:
            return self._updates(context.messages, stream=context.stream, options=context.options)

        return ResponseStream(around_model(context, layers, send), _folded(options))


def _folded(options: ChatOptions) -> Callable[[Sequence[ChatResponseUpdate]], ChatResponse]:
    wanted = options.get("response_format")
    return lambda updates: ChatResponse.from_updates(updates, output_format_type=wanted)

