"""`SdkCarrier`: sends the requests of a session over the MCP SDK's transports, and recognizes errors of the SDK by their texts.

Decided: the carrier matches responses to requests itself and uses only the SDK's transports. Because: a gateway sends other client
capabilities with each request and relays results of any form, for which the SDK's `ClientSession` is too strict, and the SDK's dispatcher
creates spans that cannot be switched off. Revisit when: the SDK has outbound middleware.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import ContextVar
from typing import Any, cast

import anyio

from gateway.errors import Malformed, NotSent, OutcomeUnknown, RequestFailure, TooLarge
from gateway.json_types import JsonObject
from gateway.protocol import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, RpcError
from gateway.sdk import load
from gateway.tools.context import CallContext
from gateway.upstream.carriers.carrier import Headers, rejected
from gateway.upstream.carriers.http_failures import NEVER_MISSING, no_endpoint, session_gone
from gateway.upstream.carriers.in_band import from_rpc_error
from gateway.upstream.carriers.message_carrier import MessageCarrier
from gateway.wire.message_sizes import MAX_MESSAGE_BYTES, too_large

logger = logging.getLogger(__name__)

Streams = tuple[Any, Any]
"""The SDK's pair of message streams to a server: the stream to read from, and the stream to write to."""

_call: ContextVar[CallContext | None] = ContextVar("moongate_call", default=None)
"""The call for which a message is sent.

The SDK's HTTP transport sends each request in a context, and delivers each message on the response stream of the request in a copy of this
context. Only the context shows to which call a request for input or a log message belongs.
"""

_MALFORMED = frozenset(
    {
        (PARSE_ERROR, "Failed to parse JSON response"),
        (PARSE_ERROR, "Failed to parse SSE message"),
        (INVALID_REQUEST, "Unexpected content type"),
        (INTERNAL_ERROR, "Server returned an error response"),
    }
)
"""Errors of the SDK for a response that is not JSON-RPC: error code, and message up to the first colon."""

_BARE_404 = (METHOD_NOT_FOUND, "Not Found")
"""Error of the SDK for a 404 response outside a session: error code and message."""

_SESSION_GONE = frozenset({(INVALID_REQUEST, "Session terminated"), (INVALID_REQUEST, "Session not found")})
"""Errors for a request in a session that does not exist: the error of the SDK's client for a 404 response, and of the SDK's server."""

_TOO_LARGE_EVENT = "SSE stream failed: Server-sent event exceeded"
_STREAM_BROKE = "SSE stream "


def sdk_failure(server: str, method: str, error: RpcError) -> RequestFailure:
    """Convert a JSON-RPC error that the SDK delivered to a failure of the request with the method `method`.

    The SDK's own errors about the transport are recognized by their texts. Any other error comes from the server.
    """
    code, text = error.code, error.message
    beginning = (code, text.partition(":")[0])
    if code == CONNECTION_CLOSED and text.startswith(_TOO_LARGE_EVENT):
        return TooLarge(too_large(MAX_MESSAGE_BYTES), server=server)
    if code == CONNECTION_CLOSED and text.startswith(_STREAM_BROKE):
        return OutcomeUnknown("the event stream broke", server=server)
    if beginning in _SESSION_GONE:
        return session_gone(server)
    if beginning == _BARE_404 and method == "initialize":
        return NotSent(no_endpoint(404), server=server)
    if beginning in _MALFORMED or (beginning == _BARE_404 and method in NEVER_MISSING):
        return Malformed("the response is not JSON-RPC", server=server)
    return rejected(server, error)


def is_closed(error: RpcError) -> bool:
    """Return whether `error` is the error of the SDK's `ClientSession` for a request without a response because the session has ended."""
    return (error.code, error.message) == (CONNECTION_CLOSED, "Connection closed")


class SdkCarrier(MessageCarrier):
    """Sends the requests of one session over message streams of the MCP SDK. The first request imports the SDK and opens the streams."""

    def __init__(self, server: str, open_streams: Callable[[], AbstractAsyncContextManager[Streams]]) -> None:
        """`open_streams` opens the SDK's streams to the server. It is not called before the first request."""
        super().__init__(server)
        self._open_streams = open_streams
        self._streams: Streams | None = None
        self._is_wanted = anyio.Event()
        self._is_opened = anyio.Event()

    @property
    def is_used(self) -> bool:
        """Whether the SDK's streams were opened, because a request needed them."""
        return self._streams is not None

    async def until_open(self) -> None:
        """Wait until the task that runs `serve` has opened the SDK's streams, or the carrier is closed."""
        self._is_wanted.set()
        await self._is_opened.wait()

    def failure(self, method: str, error: RpcError) -> RequestFailure:
        """Convert a JSON-RPC error, received in response to a request with the method `method`, to a failure of the request."""
        return from_rpc_error(error, self.server) or sdk_failure(self.server, method, error)

    async def listen(self) -> None:
        """Open the SDK's streams when a request needs them, and pass the server's messages to `receive` until the streams end."""
        await self._is_wanted.wait()
        await load("mcp.shared.message", "mcp_types")
        async with self._open_streams() as streams:
            self._streams = streams
            read, write = streams
            async with write, read:
                self._is_opened.set()
                with suppress(anyio.ClosedResourceError):
                    async for item in read:
                        if isinstance(item, Exception):
                            logger.debug("transport error server=%s error=%s", self.server, type(item).__name__)
                        else:
                            self.receive(_to_json(item.message))

    def call_of_message(self) -> CallContext | None:
        """Return the call on whose response stream the last message arrived; `None` if the SDK's transport does not show it."""
        context = getattr(cast("Streams", self._streams)[0], "last_context", None)
        return None if context is None else context.get(_call)

    async def send(self, message: JsonObject, headers: Headers, ctx: CallContext | None) -> None:
        """Send one message for the call `ctx` (`MessageCarrier.send`)."""
        from mcp.shared.message import ClientMessageMetadata, SessionMessage
        from mcp_types import jsonrpc_message_adapter

        metadata = ClientMessageMetadata(headers=dict(headers)) if headers else None
        item = SessionMessage(jsonrpc_message_adapter.validate_python(message, by_name=False), metadata)
        token = _call.set(ctx)
        try:
            await cast("Streams", self._streams)[1].send(item)
        finally:
            _call.reset(token)

    async def send_answer(self, message: bytes) -> None:
        """Send the JSON of a response to a request of the server. Raises nothing if it cannot be sent."""
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await cast("Streams", self._streams)[1].send(SessionMessage(jsonrpc_message_adapter.validate_json(message)))

    def close(self) -> None:
        """Fail all pending requests, and accept no further requests (`Carrier.close`)."""
        super().close()
        self._is_opened.set()


def _to_json(message: Any) -> JsonObject:
    """Convert a JSON-RPC message object of the SDK to a JSON object. The result or parameters inside are not copied."""
    fields = {name: getattr(message, name) for name in message.model_fields_set}
    if "error" in fields:
        fields["error"] = message.error.model_dump(mode="json", exclude_unset=True)
    return fields
