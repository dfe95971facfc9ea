"""Metrics for Prometheus: how many calls and reads the gateway ran, how long they took, and which sources work. `server` serves them.

The metrics come from the gateway's events, so plain requests stay on the fast path. If `ENABLE_INSTRUMENTATION` is set too, the same page
has the metrics of that instrumentation.

Decided: labels are names of the configuration (`source`) and values of closed sets (`outcome`, `method`). Because: each value is a time
series of its own, so names that a caller or a server chooses (tools, resources, sessions, principals) would let it fill the memory.
Revisit when operators need a figure per tool; the audit log has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gateway.lazy import import_extra
from gateway.telemetry.gateway_events import Event, EventStream
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS, get_meter
from gateway.telemetry.mcp_operations import BUCKETS

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics.export import MetricReader
    from starlette.types import ASGIApp, Receive, Scope, Send

CALLS, READS, TASKS = "moongate.call.duration", "moongate.read.duration", "moongate.task_request.duration"
REFUSALS = "moongate.refusals"
SOURCES = "moongate.source.ready"

_DURATIONS = {
    **dict.fromkeys(("call.finished", "call.input_required", "call.refused"), CALLS),
    **dict.fromkeys(("read.finished", "read.refused"), READS),
    "task.finished": TASKS,
}
"""The histogram of each kind of event that ends a call, a read or a request about a task."""

_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})


def prometheus_reader() -> MetricReader:
    """Return a reader that gives all metrics of a meter provider to the registry of the Prometheus client library.

    Raises:
        ModuleNotFoundError: The extra `telemetry` is not installed.
    """
    exporter: Any = import_extra("opentelemetry.exporter.prometheus", extra="telemetry", purpose="Serving metrics for Prometheus")
    return exporter.PrometheusMetricReader(scope_info_enabled=False)


def record_events(events: EventStream, sources: Callable[[], Mapping[str, bool]]) -> Callable[[], None]:
    """From now on, record the gateway's events as metrics. Return a function that stops this.

    `sources` returns whether each source of tools is ready, by its name. It is called for each request for the metrics.
    """

    def observe(options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        return [Observation(int(is_ready), {"source": name}) for name, is_ready in sources().items()]

    get_meter().create_observable_gauge(SOURCES, [observe], description="1 if the gateway can use the source of tools, else 0")
    return events.subscribe(_record, kinds=_DURATIONS)


def _record(event: Event) -> None:
    fields = event.fields
    labels = {"source": event.source, "outcome": str(fields.get("outcome", ""))}
    if event.kind in ("call.refused", "read.refused"):
        OBSERVABILITY_SETTINGS.counter(REFUSALS, "{request}").add(1, {"source": event.source})
    milliseconds = fields.get("milliseconds")
    if not isinstance(milliseconds, int | float):  # the call was refused before it began
        return
    if "method" in fields:
        labels["method"] = str(fields["method"])
    name = TASKS if event.kind == "call.refused" and "method" in fields else _DURATIONS[event.kind]
    OBSERVABILITY_SETTINGS.histogram(name, "s", BUCKETS).record(milliseconds / 1000, labels)


def metrics_page(*, only_loopback: bool) -> ASGIApp:
    """Return an ASGI application that answers `GET /metrics` with all metrics of this process, and any other request with an error.

    With `only_loopback`, the `Host` header must name this machine, so that a web page cannot read the metrics by DNS rebinding.
    """
    from prometheus_client import REGISTRY, generate_latest
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", CONTENT_TYPE_PLAIN_0_0_4.encode()), (b"cache-control", b"no-store")]
        if only_loopback and _host_of(scope) not in _LOOPBACK_NAMES:
            status, body = 421, b"The Host header does not name this machine. Use 127.0.0.1 or localhost.\n"
        elif scope["path"] != "/metrics":
            status, body = 404, b"The metrics are at /metrics.\n"
        elif scope["method"] not in ("GET", "HEAD"):
            status, body, headers = 405, b"Use GET.\n", [*headers, (b"allow", b"GET, HEAD")]
        else:
            status, body = 200, generate_latest(REGISTRY)
        await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return answer


def _host_of(scope: Scope) -> str:
    """Return the host name of the `Host` header, without its port; an empty string if the header is missing."""
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
