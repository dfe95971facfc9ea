"""`Dispatcher`: requests over the SDK's `JSONRPCDispatcher` and its message streams.

For what the short way of a `Link` does not do: traces, and what goes over the SDK's transports, such as 2025 servers over HTTP.
Loaded when a session first needs it (`gateway.sdk`). The SDK's `ClientSession` is not used, because a relay needs what that one fixes:
per-request client capabilities, results passed through unmodelled, no output re-validation, no hidden `tools/list` (protocol.md
§5.2). The dispatcher's lifecycle is provisional in the SDK, so nothing outside this module touches it.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextvars import ContextVar
from types import FunctionType, TracebackType
from typing import Any, Self, cast

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse, jsonrpc_message_adapter
from opentelemetry.trace import INVALID_SPAN, Span, get_current_span

from gateway.json_types import JsonMapping, JsonObject
from gateway.protocol import CONNECTION_CLOSED, RpcError
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.context import CallContext
from gateway.upstream.link import Streams, Taker
from gateway.upstream.pipe import Pipe
from gateway.upstream.standins import MAX_MESSAGE_BYTES, TOO_LARGE, too_large

logger = logging.getLogger(__name__)

_calling: ContextVar[CallContext | None] = ContextVar("moongate_calling", default=None)
"""The call on whose behalf a request goes out. The SDK's HTTP transport carries it along to whatever the server
sends on that request's stream, which is the only way to know whom an ask or log line is for (protocol.md §5.3)."""

_TOO_LARGE_EVENT = "SSE stream failed: Server-sent event exceeded"
"""How the SDK's HTTP transport begins to say that an answer on a stream is larger than is taken."""


@contextlib.contextmanager
def _note_request_id(name: str, *, attributes: Mapping[str, str], **_: object) -> Generator[Span]:
    """Add the request's id to the active span, which `tracing` made, and make no span of the SDK."""
    if OBSERVABILITY_SETTINGS.enable_instrumentation:
        get_current_span().set_attribute("jsonrpc.request.id", attributes["jsonrpc.request.id"])
    yield INVALID_SPAN


def _inject_nothing(meta: object) -> None:
    """Leave `_meta` as it is: `Session` adds the trace context of its own span."""


def _untraced(function: Any) -> Any:
    """Return a function of the SDK's dispatcher without its span and its trace context.

    The SDK makes both as soon as the process has a tracer provider, whether the program turned our instrumentation on or not, and its
    span has no `mcp.protocol.version` and no `error.type`. It has no switch for them yet; a copy with other globals leaves the SDK's
    own clients as they are.
    """
    names = {**function.__globals__, "otel_span": _note_request_id, "inject_trace_context": _inject_nothing}
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class _UntracedDispatcher(JSONRPCDispatcher[TransportContext]):
    """The SDK's dispatcher, without spans of its own."""

    send_raw_request = _untraced(JSONRPCDispatcher.send_raw_request)


class Dispatcher:
    """One dispatcher over one pair of streams; `run` must be going."""

    def __init__(self, server: str, streams: Streams, taker: Taker) -> None:
        async def note(error: Exception) -> None:
            logger.debug("%s: transport said %s", server, type(error).__name__)

        read, write = streams
        self._taker = taker
        self._inner: JSONRPCDispatcher[TransportContext] = _UntracedDispatcher(
            cast("contextlib.AbstractAsyncContextManager[SessionMessage]", read),  # pyright: ignore[reportArgumentType]  # a private Protocol of the SDK
            write,
            on_stream_exception=note,
        )

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Read until the streams end."""
        await self._inner.run(self._on_request, self._on_notify, task_status=task_status)

    async def request(
        self, method: str, params: JsonMapping, headers: Mapping[str, str], ctx: CallContext | None, name: str | None = None
    ) -> JsonObject:
        """Send one request and return its result. Cancelling it cancels it at the server, but for `initialize`.

        `name` is its id, else it gets a number.

        Raises:
            RpcError: An error came back, or the connection ended.
        """
        options: CallOptions = {"headers": dict(headers)}
        if ctx is not None and ctx.wants_progress:
            options["on_progress"] = ctx.progress
        if name is not None:
            options["request_id"] = name
        if method == "initialize":
            options = {"cancel_on_abandon": False}
        token = _calling.set(ctx)
        try:
            return await self._inner.send_raw_request(method, params, options)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and error.message.startswith(_TOO_LARGE_EVENT):
                raise RpcError(TOO_LARGE, too_large(MAX_MESSAGE_BYTES)) from None
            raise RpcError(error.code, error.message, error.data) from None
        finally:
            _calling.reset(token)

    async def notify(self, method: str, params: JsonMapping | None, headers: Mapping[str, str]) -> None:
        """Send a notification."""
        await self._inner.notify(method, params, {"headers": dict(headers)})

    async def _on_request(self, dctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None) -> JsonObject:
        try:
            return await self._taker.answer(method, params or {}, _calling.get())
        except RpcError as error:
            raise MCPError(error.code, error.message, error.data) from None

    async def _on_notify(self, dctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None) -> None:
        await self._taker.hear(method, params or {}, _calling.get())


class Writer(ABC):
    """What the dispatcher writes to (the SDK's `WriteStream`). Who made it owns what is below it, and closes that."""

    async def send(self, item: SessionMessage, /) -> None:
        """Write one message. Raises `BrokenResourceError` where none is taken any more."""
        await self.deliver(item.message, item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    @abstractmethod
    async def deliver(self, message: JSONRPCMessage, content: bytes) -> None:
        """As `send`; `content` is the message as it is sent."""

    async def aclose(self) -> None:  # noqa: B027  # nothing is held here, whatever is below
        """Nothing is written any more."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


class PipeWriter(Writer):
    """Writes to a child process."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    async def deliver(self, message: JSONRPCMessage, content: bytes) -> None:
        """As `Writer`."""
        is_answer = isinstance(message, JSONRPCResponse | JSONRPCError)
        await (self._pipe.answer(content) if is_answer else self._pipe.write(content))


def message_streams() -> tuple[
    MemoryObjectSendStream[SessionMessage | Exception],
    MemoryObjectReceiveStream[SessionMessage | Exception],
    Callable[[JsonObject], Awaitable[None]],
]:
    """A stream to the dispatcher, unbuffered: its ends, and what puts a decoded message in."""
    out, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)

    async def put(message: JsonObject) -> None:
        try:
            item = SessionMessage(jsonrpc_message_adapter.validate_python(message, by_name=False))
        except ValueError:
            logger.debug("a message that the SDK does not take was dropped")
            return
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # nobody hears it any more
            await out.send(item)

    return out, read, put
