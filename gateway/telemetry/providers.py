"""Where traces, metrics and logs go: OpenTelemetry's SDK with exporters, set up once by a program or by `app`.

The SDK and the OTLP exporter come with the extra `telemetry`. A program that has providers of its own only calls
`enable_instrumentation`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gateway.lazy import import_extra
from gateway.telemetry.instrumentation import SCOPE, enable_instrumentation, is_set

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.metrics.view import View
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

_PURPOSE = "Exporting telemetry"
_SIGNALS = ("TRACES", "METRICS")


def is_wanted() -> bool:
    """Whether the environment asks for telemetry of the gateway itself."""
    return is_set("ENABLE_INSTRUMENTATION")


def create_resource(service_name: str | None = None, service_version: str | None = None) -> Resource:
    """What the telemetry is of; `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` go before what is given.

    Raises:
        ModuleNotFoundError: The extra `telemetry` is not installed.
    """
    resources: Any = import_extra("opentelemetry.sdk.resources", extra="telemetry", purpose=_PURPOSE)
    given = {"service.name": service_name or SCOPE, **({"service.version": service_version} if service_version else {})}
    named = os.environ.get("OTEL_SERVICE_NAME")
    return resources.Resource(given).merge(resources.OTELResourceDetector().detect()).merge(
        resources.Resource({"service.name": named} if named else {})
    )


def configure_otel_providers(
    *,
    enable_sensitive_data: bool | None = None,
    enable_console_exporters: bool | None = None,
    exporters: Sequence[SpanExporter | MetricExporter] | None = None,
    views: Sequence[View] | None = None,
) -> None:
    """Set up the process's providers and turn instrumentation on. Call it once, before anything is traced.

    Traces and metrics go to `exporters`, to the OTLP endpoints of the standard `OTEL_EXPORTER_OTLP_*` variables, and
    with `enable_console_exporters` (or the variable `ENABLE_CONSOLE_EXPORTERS`) to stderr.

    Raises:
        ModuleNotFoundError: The extra `telemetry` is not installed.
    """
    from opentelemetry import metrics, trace

    sdk_trace: Any = import_extra("opentelemetry.sdk.trace", extra="telemetry", purpose=_PURPOSE)
    sdk_metrics: Any = import_extra("opentelemetry.sdk.metrics", extra="telemetry", purpose=_PURPOSE)
    trace_export: Any = import_extra("opentelemetry.sdk.trace.export", extra="telemetry", purpose=_PURPOSE)
    metric_export: Any = import_extra("opentelemetry.sdk.metrics.export", extra="telemetry", purpose=_PURPOSE)
    on_console = is_set("ENABLE_CONSOLE_EXPORTERS") if enable_console_exporters is None else enable_console_exporters
    chosen: list[Any] = [*(exporters or ()), *_otlp_exporters(), *(_console_exporters(trace_export, metric_export) if on_console else ())]
    resource = create_resource()
    provider = sdk_trace.TracerProvider(resource=resource)
    readers: list[Any] = []
    for exporter in chosen:
        if isinstance(exporter, metric_export.MetricExporter):
            readers.append(metric_export.PeriodicExportingMetricReader(exporter))
        else:
            provider.add_span_processor(trace_export.BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(sdk_metrics.MeterProvider(metric_readers=readers, resource=resource, views=list(views or ())))
    enable_instrumentation(enable_sensitive_data=enable_sensitive_data)


def _otlp_exporters() -> list[Any]:
    """For each signal that has an endpoint in the environment; protobuf over HTTP."""
    for_all = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    wanted = [signal for signal in _SIGNALS if for_all or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")]
    made: list[Any] = []
    for signal in wanted:
        name = "trace" if signal == "TRACES" else "metric"
        module: Any = import_extra(f"opentelemetry.exporter.otlp.proto.http.{name}_exporter", extra="telemetry", purpose=_PURPOSE)
        made.append(module.OTLPSpanExporter() if signal == "TRACES" else module.OTLPMetricExporter())
    return made


def _console_exporters(trace_export: Any, metric_export: Any) -> list[Any]:
    """On stderr, because stdout may be the protocol's."""
    import sys

    return [trace_export.ConsoleSpanExporter(out=sys.stderr), metric_export.ConsoleMetricExporter(out=sys.stderr)]
