"""Creates OpenTelemetry spans for requests to remote servers, if instrumentation is enabled.

Sessions and carriers (classes that send the requests of a session, one class per transport) use this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.errors import Malformed, Rejected
from gateway.json_types import JsonMapping, JsonObject
from gateway.telemetry.mcp_operations import traced


async def request_in_span(
    method: str,
    params: JsonMapping,
    meta: JsonMapping | None,
    send: Callable[[JsonMapping | None], Awaitable[JsonObject]],
    *,
    protocol_version: str,
    is_pipe: bool,
    is_probing: bool,
) -> JsonObject:
    """Send a request to a server with `send` inside a new span, and return the result.

    `send` receives `meta` with the span's trace context added. `is_probing` is true if the request tests which MCP version the server
    supports. Then the span does not record a rejection, a malformed response or a timeout as an error.
    """
    return await traced(
        method,
        params,
        lambda trace_context: send({**(meta or {}), **trace_context}),
        protocol_version=protocol_version,
        transport="pipe" if is_pipe else "tcp",
        code_of=lambda error: error.code if isinstance(error, Rejected) else None,
        is_expected=lambda error: is_probing and (isinstance(error, Rejected | Malformed) or not isinstance(error, Exception)),
    )


def note_request_id(number: int) -> None:
    """Add the JSON-RPC id of a request to the active span."""
    from opentelemetry.trace import get_current_span

    get_current_span().set_attribute("jsonrpc.request.id", str(number))
