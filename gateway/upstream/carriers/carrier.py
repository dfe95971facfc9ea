"""`Carrier`: the interface between a session with a remote server and its transport, with types and functions for all implementations."""

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
"""HTTP headers of one request that are sent in addition to those of the server's configuration entry.

Pass the same tuple object for equal headers, because `HttpCarrier` caches the encoded headers by this object.
"""

Progress = Callable[[float, float | None, str | None], None]
"""Function that receives a progress report of a request: progress, total, message. It must return at once."""

FIRST_REQUEST_ID = 1_000_000_001
"""First JSON-RPC request id of a carrier (an object that sends requests) that may share an MCP 2025 session with `SdkCarrier`.

The number is high, so that the ids of the two carriers differ: the ids of `SdkCarrier` begin with 1.
"""

ACKNOWLEDGE_SECONDS = 5.0
"""Timeout for a server to accept an HTTP message that has no JSON-RPC response: a notification, a response, the end of a session."""


CANCELLATION = "notifications/cancelled"


@dataclass(slots=True)  # not frozen: that would triple the cost of creating one, and every call creates one
class OutgoingRequest:
    """One request that a session passes to its carrier, which sends it. Carriers do not change the object."""

    method: str
    params: JsonMapping
    """The request's parameters without `_meta`, which is in `meta`."""
    meta: JsonMapping | None
    """The `_meta` of the parameters. If two requests have the same object here, carriers may reuse its JSON."""
    headers: Headers
    """HTTP headers of this request, in addition to those of the configuration; empty if the carrier's `has_headers` is false."""
    is_modern: bool
    ctx: CallContext | None = None
    """The call for which the request is sent; `None` outside calls."""
    progress: Progress | None = None

    def begin(self, number: int) -> JsonMapping | None:
        """Return the `_meta` to send with the request: `meta`, with a progress token if `progress` is set. `number` is the request id.

        If instrumentation is enabled, also add the request id to the active span.
        """
        if OBSERVABILITY_SETTINGS.enable_instrumentation:
            note_request_id(number)
        return self.meta if self.progress is None else {**(self.meta or {}), "progressToken": number}


class Receiver(Protocol):
    """The interface that receives the requests and notifications of a server.

    `ctx` is the call to which a message belongs, or `None` if the transport does not show to which call it belongs.
    """

    async def answer_request(self, method: str, params: JsonMapping, ctx: CallContext | None) -> JsonObject:
        """Return the result of a server's request. Raises `RpcError` to answer with an error."""
        ...

    async def receive_notification(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """Process a notification of the server. Never raises."""
        ...


class Carrier(Protocol):
    """The interface of a carrier, which sends the requests of one session over one transport. `upstream.transport` opens and closes it."""

    is_single_stream: bool
    """Whether messages for all calls arrive on one stream, so that a server's message may not show to which call it belongs."""
    has_headers: bool
    """Whether the transport sends the HTTP headers of a request (`OutgoingRequest.headers`)."""

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        ...

    async def request(self, request: OutgoingRequest) -> JsonObject:
        """Send one request and return its result. Cancelling this method cancels the request at the server, except `initialize`.

        Raises:
            RequestFailure: The request failed. If its text is only the cause, `describe` makes the message for the caller.
            ToolFailed: The parameters cannot be encoded as JSON.
        """
        ...

    async def notify(self, method: str, params: JsonMapping | None, headers: Headers) -> None:
        """Send a notification to an MCP 2025 server. Raises nothing if it cannot be sent."""
        ...

    async def serve(self, receiver: Receiver, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Pass the server's requests and notifications to `receiver` until the connection ends.

        Requests may be sent to the server as soon as `task_status` is set.
        """
        ...

    def close(self) -> None:
        """Fail the pending requests and release the carrier's resources."""
        ...


def rejected(server: str, error: RpcError) -> Rejected:
    """Convert a JSON-RPC error of the server to a `Rejected` failure.

    Hidden (invisible) characters are removed. Keys that only this gateway may set are removed from the error's data.
    """
    data = received_data(strip_value(error.data))
    return Rejected(strip_text(error.message), server=server, code=error.code, data=data)


def describe(failure: RequestFailure, method: str) -> RequestFailure:
    """Return `failure`, which a carrier raised for a request with `method`, with a message for the caller that names the server.

    The text of a `Malformed`, `OutcomeUnknown` or `TooLarge` failure gives only the cause, so a new failure replaces it. Any other failure
    is returned as it is.
    """
    server = failure.server
    match failure:
        case Malformed():
            cause = strip_text(str(failure))
            text = f"Server {server!r} answered {method!r} with something that is not MCP ({cause}); the call may have run."
            return Malformed(text, server=server)
        case OutcomeUnknown():
            return OutcomeUnknown(f"The connection to {server!r} broke during {method!r}; the call may have run.", server=server)
        case TooLarge():
            return TooLarge(f"Server {server!r}: {failure}.", server=server)
        case _:
            return failure


def cancellation(number: int) -> bytes:
    """Return the JSON of `notifications/cancelled` for the request with the id `number`."""
    params = {"requestId": number, "reason": "caller cancelled"}
    return to_json(notification(CANCELLATION, params))


def report(params: JsonMapping, progress: Progress) -> None:
    """Pass the values of a progress notification to the function `progress`. Drop the notification if its progress is not a number."""
    value, total, message = params.get("progress"), params.get("total"), params.get("message")
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer that is too large for a float
            of = float(total) if isinstance(total, int | float) else None
            progress(float(value), of, message if isinstance(message, str) else None)
