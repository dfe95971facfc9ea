"""Durations of MCP requests, on the side that serves them and on the side that sends them, by OpenTelemetry's MCP conventions.

The SDK makes the spans of both sides (https://github.com/open-telemetry/semantic-conventions-genai, `docs/gen-ai/mcp.md`); metrics
it leaves out. Called only when instrumentation is on. What callers choose freely is no label: a method or a tool that does not exist
would give every typing error a time series of its own.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS, Attributes, Operation

if TYPE_CHECKING:
    from opentelemetry.trace import Span

SERVER_DURATION = "mcp.server.operation.duration"
CLIENT_DURATION = "mcp.client.operation.duration"

BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Seconds, as the conventions advise."""

OTHER = "_OTHER"
"""In place of a method that does not exist."""

METHOD_NOT_FOUND = -32601

Transport = Literal["pipe", "tcp"]
ResultT = TypeVar("ResultT")


async def measured(
    metric: str,
    method: str,
    params: Mapping[str, object] | None,
    work: Callable[[], Awaitable[ResultT]],
    *,
    protocol_version: str,
    transport: Transport | None = None,
    code_of: Callable[[BaseException], int | None],
) -> ResultT:
    """Do the work of one request and record how long it took. `code_of` gives the JSON-RPC code of an error that has one."""
    labels: dict[str, str] = {"mcp.method.name": method, "mcp.protocol.version": protocol_version}
    if transport is not None:
        labels["network.transport"] = transport
    start = time.perf_counter()
    try:
        result = await work()
        labels |= _named(method, params)
        if method == "tools/call" and _is_error(result):
            labels["error.type"] = "tool_error"
        return result
    except BaseException as error:
        code = code_of(error)
        labels["error.type"] = type(error).__qualname__ if code is None else str(code)
        if code is not None:
            labels["rpc.response.status_code"] = str(code)
        if code == METHOD_NOT_FOUND:
            labels["mcp.method.name"] = OTHER
        raise
    finally:
        OBSERVABILITY_SETTINGS.histogram(metric, "s", BUCKETS).record(time.perf_counter() - start, labels)


@contextmanager
def create_mcp_client_span(method_name: str, target: str | None = None, attributes: Attributes | None = None) -> Generator[Span]:
    """A span of one's own around a request to an MCP server, for clients that are not made with the SDK; active inside.

    `target` is the tool or the prompt. Where instrumentation is off the span goes nowhere. An error that passes is told by its class.
    """
    from opentelemetry.trace import INVALID_SPAN

    if not OBSERVABILITY_SETTINGS.enable_instrumentation:
        yield INVALID_SPAN
        return
    name = f"{method_name} {target}" if target else method_name
    operation = Operation(name, {"mcp.method.name": method_name, **(attributes or {})}, kind="client")
    try:
        with operation.active() as span:
            yield span
    except BaseException as error:
        operation.fail(error)
        raise
    finally:
        operation.end()


def set_mcp_span_error(span: Span, error_type: str, description: str | None = None) -> None:
    """Say on a span of a request that it failed, and how: the class of an error, or `tool_error`."""
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


def _is_error(result: object) -> bool:
    return isinstance(result, Mapping) and cast("Mapping[str, object]", result).get("isError") is True
