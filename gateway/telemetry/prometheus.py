"""Metrics for Prometheus: how many calls and reads the gateway ran, how long they took, and what it does now. `server` serves them.

The gate queues each finished call (`call_counts`), and the calls are counted when the metrics are read. So plain requests stay on the fast
path and do not wait. If `ENABLE_INSTRUMENTATION` is set too, the same page has the metrics of that instrumentation.

Decided: labels are names of the configuration (`source`), values of closed sets (`outcome`, `method`), and bounded numbers of tools and
principals, of which the rest is `other`. Because: each value is a time series of its own, so names that a caller or a server chooses would
let it fill the memory. Durations have no label for tools or principals, because a histogram has sixteen series per combination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gateway.lazy import import_extra
from gateway.telemetry.call_counts import CallCounts, CountedCall
from gateway.telemetry.gateway_events import Event, EventStream
from gateway.telemetry.gateway_load import GAUGES, Load
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS, get_meter
from gateway.telemetry.mcp_operations import BUCKETS

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics.export import MetricReader
    from starlette.types import ASGIApp, Receive, Scope, Send

CALLS, READS, TASKS = "moongate.call.duration", "moongate.read.duration", "moongate.task_request.duration"
REFUSALS = "moongate.refusals"
TOOL_CALLS, PRINCIPAL_CALLS, RESULT_BYTES = "moongate.tool.calls", "moongate.principal.calls", "moongate.result.bytes"

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


def record_events(events: EventStream, counts: CallCounts, load: Callable[[], Load]) -> Callable[[], None]:
    """From now on, record calls, refusals and the gateway's load as metrics. Return a function that stops this.

    `counts` has the calls that passed the gate. `load` returns the numbers of `GAUGES`; it is called for each request for the metrics.
    """
    from opentelemetry.metrics import Observation

    meter = get_meter()
    counts.on_counted = _record

    def observe(read: Callable[[], Iterable[tuple[float, Mapping[str, str]]]]) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
        def callback(options: CallbackOptions) -> Iterable[Observation]:
            counts.count()
            return [Observation(value, dict(labels)) for value, labels in read()]

        return [callback]

    def gauge(name: str) -> Callable[[], Iterable[tuple[float, Mapping[str, str]]]]:
        return lambda: load().get(name, ())

    for name, text in GAUGES.items():
        meter.create_observable_gauge(name, observe(gauge(name)), description=text)
    meter.create_observable_counter(TOOL_CALLS, observe(counts.by_tool), description="Calls of tools")
    meter.create_observable_counter(PRINCIPAL_CALLS, observe(counts.by_principal), description="Calls and reads of principals")
    meter.create_observable_counter(RESULT_BYTES, observe(counts.result_bytes), unit="By", description="Bytes of results")
    unsubscribe = events.subscribe(_record_early_refusal, kinds=("call.refused", "read.refused"))

    def stop() -> None:
        counts.on_counted = None
        unsubscribe()

    return stop


def _record_early_refusal(event: Event) -> None:
    """Count a call that was refused before it reached the gate, and therefore has no duration."""
    if "milliseconds" not in event.fields:
        OBSERVABILITY_SETTINGS.counter(REFUSALS, "{request}").add(1, {"source": event.source})


def _record(call: CountedCall) -> None:
    fields = call.fields
    if call.kind in ("call.refused", "read.refused"):
        OBSERVABILITY_SETTINGS.counter(REFUSALS, "{request}").add(1, {"source": call.source})
    labels = {"source": call.source, "outcome": str(fields.get("outcome", "")), "endpoint": call.endpoint}
    if "method" in fields:
        labels["method"] = str(fields["method"])
    name = TASKS if call.kind == "call.refused" and "method" in fields else _DURATIONS[call.kind]
    milliseconds = fields.get("milliseconds")
    assert isinstance(milliseconds, int | float)
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
