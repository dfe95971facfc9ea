"""`ChatContext`, one model call as chat middleware sees it, and `SupportsChatGetResponse`, the interface of the client that it calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast, overload, runtime_checkable

from gateway.json_types import JsonObject
from gateway.tools.invocation import SessionData
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream

ChatStream = ResponseStream[ChatResponseUpdate, ChatResponse]


@runtime_checkable
class SupportsChatGetResponse(Protocol):
    """Interface of a chat client as agents use it."""

    @overload
    def get_response(
        self, messages: Sequence[Message], *, stream: Literal[False] = False, options: ChatOptions | None = None
    ) -> Awaitable[ChatResponse]: ...
    @overload
    def get_response(self, messages: Sequence[Message], *, stream: Literal[True], options: ChatOptions | None = None) -> ChatStream: ...
    def get_response(
        self, messages: Sequence[Message], *, stream: bool = False, options: ChatOptions | None = None
    ) -> Awaitable[ChatResponse] | ChatStream:
        """Return an awaitable whole response, or with `stream` a stream of its parts. The request is sent on the first await or read."""
        ...


@dataclass
class ChatContext:
    """A model call. Middleware changes `messages` and `options` before `call_next`, and `result` after it.

    `result` is a `ChatResponse` or, with `stream`, a `ResponseStream` that was not read yet: add hooks to change its parts.
    """

    client: SupportsChatGetResponse
    messages: list[Message]
    options: ChatOptions
    stream: bool = False
    metadata: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Values that the middleware of this call may share with each other."""
    result: ChatStream | ChatResponse | None = None
    kwargs: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Keyword arguments that the caller gave for the client itself (`client_kwargs`)."""
    function_invocation_kwargs: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    stream_transform_hooks: list[Callable[[ChatResponseUpdate], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    """Hooks that are added to a streamed result, as are `stream_result_hooks` and `stream_cleanup_hooks`."""
    stream_result_hooks: list[Callable[[ChatResponse], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    stream_cleanup_hooks: list[Callable[[], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    session: SessionData | None = None
    """Session of the run, if an agent with a session makes the call."""
    said: ChatResponse | None = field(default=None, init=False, repr=False)
    """Whole response of a client that joins the parts of its stream itself; set when all parts have arrived."""
    terminate: bool = False
    """Set to `True` to skip inner middleware and the call. Only for middleware written for early versions of agent-framework; new
    middleware raises `MiddlewareTermination`."""
