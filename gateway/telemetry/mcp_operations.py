"""Records durations of MCP requests (received and sent) and spans of sent requests, following OpenTelemetry's MCP conventions
(https://github.com/open-telemetry/semantic-conventions-genai).

The MCP SDK creates the spans of received requests. Call `measured` and `traced` only if instrumentation is on. Unknown names of
methods and tools do not become metric labels, because each misspelt name would create a time series of its own.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from gateway.protocol import METHOD_NOT_FOUND
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS, Attributes, Operation

if TYPE_CHECKING:
    from opentelemetry.trace import Span

SERVER_DURATION = "mcp.server.operation.duration"
CLIENT_DURATION = "mcp.client.operation.duration"

BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Bucket boundaries of the duration histograms, in seconds, as OpenTelemetry's MCP conventions recommend."""

OTHER = "_OTHER"
"""Label that replaces the name of an unknown method."""

Transport = Literal["pipe", "tcp"]
ResultT = TypeVar("ResultT")


async def measured(
    method: str,
    params: Mapping[str, object] | None,
    work: Callable[[], Awaitable[ResultT]],
    *,
    protocol_version: str,
    transport: Transport | None = None,
    code_of: Callable[[BaseException], int | None],
) -> ResultT:
    """Call `work`, which serves a received MCP request, record its duration as a metric, and return its result.

    `code_of` returns the JSON-RPC code of an exception, or `None`.
    """
    labels: dict[str, str] = {"mcp.method.name": method, "mcp.protocol.version": protocol_version}
    if transport is not None:
        labels["network.transport"] = transport
    start = time.perf_counter()
    try:
        result = await work()
        labels |= _named(method, params) | _outcome(method, result)
        return result
    except BaseException as error:
        labels |= _failure(error, code_of(error))
        if labels.get("rpc.response.status_code") == str(METHOD_NOT_FOUND):
            labels["mcp.method.name"] = OTHER
        raise
    finally:
        OBSERVABILITY_SETTINGS.histogram(SERVER_DURATION, "s", BUCKETS).record(time.perf_counter() - start, labels)


async def traced(
    method: str,
    params: Mapping[str, object],
    send: Callable[[dict[str, str]], Awaitable[ResultT]],
    *,
    protocol_version: str,
    transport: Transport,
    code_of: Callable[[BaseException], int | None],
    is_expected: Callable[[BaseException], bool],
) -> ResultT:
    """Send a request to an MCP server within a client span, and record its duration.

    `send` receives the trace context for the request's `_meta`, and sends the request. `code_of` returns the JSON-RPC code of an exception,
    or `None`. An exception for which `is_expected` returns true does not mark the span as failed.
    """
    from opentelemetry.propagate import inject

    labels: dict[str, str] = {"mcp.method.name": method, "mcp.protocol.version": protocol_version, "network.transport": transport}
    labels |= _named(method, params)
    target = labels.get("gen_ai.tool.name") or labels.get("gen_ai.prompt.name")
    operation = Operation(f"{method} {target}" if target else method, labels, kind="client")
    start = time.perf_counter()
    try:
        with operation.active():
            carrier: dict[str, str] = {}
            inject(carrier)
            result = await send(carrier)
        labels |= _outcome(method, result)
        return result
    except BaseException as error:
        code = code_of(error)
        if not is_expected(error):
            labels |= _failure(error, code)
        elif code is not None:
            labels["rpc.response.status_code"] = str(code)
        raise
    finally:
        operation.add(labels)
        if "error.type" in labels:
            operation.fail(labels["error.type"])
        operation.end()
        OBSERVABILITY_SETTINGS.histogram(CLIENT_DURATION, "s", BUCKETS).record(time.perf_counter() - start, labels)


def note_unsent(method: str, params: Mapping[str, object], error: BaseException) -> None:
    """If instrumentation is on, record a failed span for a request that was not sent because no connection could be opened."""
    if not OBSERVABILITY_SETTINGS.enable_instrumentation:
        return
    labels = {"mcp.method.name": method, **_named(method, params)}
    target = params.get("name")
    operation = Operation(f"{method} {target}" if isinstance(target, str) else method, labels, kind="client")
    operation.fail(type(error).__qualname__)
    operation.end()


@contextmanager
def create_mcp_client_span(method_name: str, target: str | None = None, attributes: Attributes | None = None) -> Generator[Span]:
    """Context manager: open a span for a request to an MCP server, and make it active. For MCP clients that do not use the SDK.

    `target` is the name of the tool or prompt. If instrumentation is off, the span is not recorded. Of an exception, the span records the
    class; it records the text and stack only if sensitive data is recorded.
    """
    from opentelemetry.trace import INVALID_SPAN

    if not OBSERVABILITY_SETTINGS.enable_instrumentation:
        yield INVALID_SPAN
        return
    name = f"{method_name} {target}" if target else method_name
    operation = Operation(name, {"mcp.method.name": method_name, **(attributes or {})}, kind="client")
    with operation.running() as span:
        yield span


def set_mcp_span_error(span: Span, error_type: str, description: str | None = None) -> None:
    """Mark a request's span as failed. `error_type` is the text of the attribute `error.type`: an exception's class name or `tool_error`.

    `description` is the text of the span's status.
    """
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR, description)


def _named(method: str, params: Mapping[str, object] | None) -> dict[str, str]:
    name = (params or {}).get("name")
    if not isinstance(name, str):
        return {}
    if method == "tools/call":
        return {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    return {"gen_ai.prompt.name": name} if method == "prompts/get" else {}


def _outcome(method: str, result: object) -> dict[str, str]:
    """Return the metric labels that a result determines: the negotiated protocol version, or the error label of a failed tool."""
    if not isinstance(result, Mapping):
        return {}
    answer = cast("Mapping[str, object]", result)
    if method == "initialize" and isinstance(version := answer.get("protocolVersion"), str):
        return {"mcp.protocol.version": version}
    return {"error.type": "tool_error"} if method == "tools/call" and answer.get("isError") is True else {}


def _failure(error: BaseException, code: int | None) -> dict[str, str]:
    """Return the metric labels of an exception: its JSON-RPC code, or its class if it has no code."""
    if code is None:
        return {"error.type": type(error).__qualname__}
    return {"error.type": str(code), "rpc.response.status_code": str(code)}
