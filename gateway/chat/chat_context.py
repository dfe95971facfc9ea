"""`ChatContext`, the data of one model call for chat middleware, and `SupportsChatGetResponse`, the interface of chat clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast, overload, runtime_checkable

from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.invocation import SessionData
from gateway.types.compaction import CompactionStrategy, TokenizerProtocol
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream

ChatStream = ResponseStream[ChatResponseUpdate, ChatResponse]


@runtime_checkable
class SupportsChatGetResponse(Protocol):
    """Interface of a chat client, as agents and middleware use it."""

    @overload
    def get_response(
        self, messages: Sequence[Message], *, stream: Literal[False] = False, options: ChatOptions | None = None
    ) -> Awaitable[ChatResponse]: ...
    @overload
    def get_response(self, messages: Sequence[Message], *, stream: Literal[True], options: ChatOptions | None = None) -> ChatStream: ...
    def get_response(
        self, messages: Sequence[Message], *, stream: bool = False, options: ChatOptions | None = None
    ) -> Awaitable[ChatResponse] | ChatStream:
        """Return an awaitable of the whole response, or with `stream` a stream of its parts.

        The request to the model is sent when the result is first awaited or read.
        """
        ...


@dataclass
class ChatContext:
    """The data of one model call. Middleware may change `messages` and `options` before `call_next`, and `result` after it.

    `result` is a `ChatResponse` or, with `stream`, a `ResponseStream` that was not read yet; to change its parts, add hooks to it.
    """

    client: SupportsChatGetResponse
    messages: list[Message]
    options: ChatOptions
    stream: bool = False
    metadata: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Values that the middleware of this model call can share. They are not sent to the model."""
    result: ChatStream | ChatResponse | None = None
    kwargs: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Keyword arguments that the caller passed for the client itself (`client_kwargs`)."""
    function_invocation_kwargs: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    stream_transform_hooks: list[Callable[[ChatResponseUpdate], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    """Functions that are called with each part of a streamed result. `stream_result_hooks` are called with the whole response,
    `stream_cleanup_hooks` at the end of the stream."""
    stream_result_hooks: list[Callable[[ChatResponse], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    stream_cleanup_hooks: list[Callable[[], Any]] = field(default_factory=lambda: cast("list[Any]", []))
    session: SessionData | None = None
    """The session of the agent run that makes the call, or the one in the caller's `client_kwargs`; `None` if there is neither."""
    said: ChatResponse | None = field(default=None, init=False, repr=False)
    """Whole response from a client that joins the parts of its stream itself. Set when all parts have arrived; otherwise `None`."""
    terminate: bool = False
    """Set to `True` by middleware to skip the inner middleware and the model call. Only for middleware written for early versions of
    agent-framework; new middleware raises `MiddlewareTermination`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """The arguments of one call of `get_response`. The call may have to run tools, or to shorten the conversation (compaction)."""

    client: SupportsChatGetResponse
    client_limits: JsonMapping
    """The client's limits on the loop of model and tool calls."""
    messages: list[Message]
    options: ChatOptions
    stream: bool
    limits: JsonMapping | None
    """Limits on the loop of model and tool calls. They override the limits of the client for this call."""
    middleware: Sequence[object]
    compaction_strategy: CompactionStrategy | None
    tokenizer: TokenizerProtocol | None
    client_kwargs: JsonMapping
    function_invocation_kwargs: JsonMapping
    session: SessionData | None
