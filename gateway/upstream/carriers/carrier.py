"""`Carrier`, the interface between a session and its transport, with the types and functions that all carriers share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio.abc
from pydantic_core import to_json

from gateway.errors import Malformed, OutcomeUnknown, Rejected, RequestFailure, TooLarge
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.hidden_text import strip_text, strip_value
from gateway.protocol import RpcError
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.upstream.gateway_chain import received_data
from gateway.upstream.tracing import note_request_id
from gateway.wire.rpc_envelope import notification

if TYPE_CHECKING:
    from gateway.tools.context import CallContext

Headers = tuple[tuple[str, str], ...]
"""HTTP headers of one request besides those of the configuration. Reuse the tuple for equal headers: `HttpCarrier` caches by it."""

Progress = Callable[[float, float | None, str | None], None]
"""Receives a progress report of a request (progress, total, message). Must not wait."""

FIRST_REQUEST_ID = 1_000_000_001
"""First request id of carriers that share a 2025 session with the SDK, which counts from 1."""

ACKNOWLEDGE_SECONDS = 5.0
"""Timeout for a server to accept a message without a response: a notification, an answer to its request, the end of a session."""


CANCELLATION = "notifications/cancelled"


@dataclass(slots=True)  # not frozen: that would triple the cost of creating one, and every call creates one
class OutgoingRequest:
    """One request of a session. Carriers do not change it."""

    method: str
    params: JsonMapping
    """The request's parameters without `_meta`, which is in `meta`."""
    meta: JsonMapping | None
    """The `_meta` of the parameters. If two requests have the same object here, carriers may reuse its JSON."""
    headers: Headers
    """HTTP headers for this request alone; empty if the carrier's `has_headers` is false."""
    is_modern: bool
    ctx: CallContext | None = None
    """The call that the request belongs to."""
    progress: Progress | None = None

    def begin(self, number: int) -> JsonMapping | None:
        """Add the request's id `number` to the active span. Return the `_meta` to send, with a progress token if progress is wanted."""
        if OBSERVABILITY_SETTINGS.enable_instrumentation:
            note_request_id(number)
        return self.meta if self.progress is None else {**(self.meta or {}), "progressToken": number}


class Receiver(Protocol):
    """Receives the messages that a server sends on its own initiative. `ctx` is the call of a message, if the transport tells it."""

    async def answer_request(self, method: str, params: JsonMapping, ctx: CallContext | None) -> JsonObject:
        """Return the result of a server's request. Raises `RpcError`."""
        ...

    async def receive_notification(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """Process a notification. Never raises."""
        ...


class Carrier(Protocol):
    """Sends the requests of one session. Opened and closed by `transport`."""

    is_single_stream: bool
    """Whether messages of all calls arrive on one stream, so that a message may not tell which call it belongs to."""
    has_headers: bool
    """Whether requests have HTTP headers."""

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        ...

    async def request(self, request: OutgoingRequest) -> JsonObject:
        """Send one request and return its result. Cancelling it cancels the request at the server.

        Raises:
            RequestFailure: The request failed. The text is only the cause; `describe` makes the message for the caller.
            ToolFailed: The parameters cannot be encoded as JSON.
        """
        ...

    async def notify(self, method: str, params: JsonMapping | None, headers: Headers) -> None:
        """Send a notification to a 2025 server. A failure is not reported."""
        ...

    async def serve(self, receiver: Receiver, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Pass the server's own messages to `receiver` until the connection ends. Requests may be sent once `task_status` is set."""
        ...

    def close(self) -> None:
        """Fail the pending requests and release the carrier's resources."""
        ...


def rejected(server: str, error: RpcError) -> Rejected:
    """Return the failure for a JSON-RPC error of the server, without hidden text and without the gateway's own metadata keys."""
    data = received_data(strip_value(error.data))
    return Rejected(strip_text(error.message), server=server, code=error.code, data=data)


def describe(failure: RequestFailure, method: str) -> RequestFailure:
    """Return the failure of a request with a message that names the server and the method. Carriers give only the cause."""
    server = failure.server
    match failure:
        case Malformed():
            text = f"Server {server!r} answered {method!r} with something that is not MCP; the call may have run."
            return Malformed(text, server=server)
        case OutcomeUnknown():
            return OutcomeUnknown(f"The connection to {server!r} broke during {method!r}; the call may have run.", server=server)
        case TooLarge():
            return TooLarge(f"Server {server!r}: {failure}.", server=server)
        case _:
            return failure


def cancellation(number: int) -> bytes:
    """Return the JSON of the notification that cancels the request with the id `number`."""
    params = {"requestId": number, "reason": "caller cancelled"}
    return to_json(notification(CANCELLATION, params))


def report(params: JsonMapping, progress: Progress) -> None:
    """Pass a progress notification to `progress`, or drop it if it has no usable value."""
    value, total, message = params.get("progress"), params.get("total"), params.get("message")
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer that no float holds
            of = float(total) if isinstance(total, int | float) else None
            progress(float(value), of, message if isinstance(message, str) else None)
