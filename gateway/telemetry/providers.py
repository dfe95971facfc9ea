"""Sets up OpenTelemetry's SDK with exporters for traces, metrics and logs. A program, or `moongate run`, calls this module once.

The extra `telemetry` installs OpenTelemetry's SDK and the OTLP exporter. A program with its own OpenTelemetry providers calls only
`enable_instrumentation`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gateway.env_file import read_env_file
from gateway.lazy import import_extra
from gateway.telemetry.instrumentation import SCOPE, enable_instrumentation, is_set

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
    from opentelemetry.sdk._logs.export import LogRecordExporter
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader
    from opentelemetry.sdk.metrics.view import View
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

_PURPOSE = "Exporting telemetry"
_SIGNALS = ("TRACES", "METRICS")


def create_resource(
    service_name: str | None = None,
    service_version: str | None = None,
    env_file_path: str | None = None,
    env_file_encoding: str | None = None,
    **attributes: str | int | float | bool,
) -> Resource:
    """Return the OpenTelemetry resource that describes this program, with additional `attributes`.

    `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` take precedence over arguments. First, each variable in the file `env_file_path` is
    set in the environment unless it is set already.

    Raises:
        FileNotFoundError: The file `env_file_path` does not exist.
        ModuleNotFoundError: The extra `telemetry` is not installed.
    """
    resources: Any = import_extra("opentelemetry.sdk.resources", extra="telemetry", purpose=_PURPOSE)
    _read_variables(env_file_path, env_file_encoding)
    given = {"service.name": service_name or SCOPE, **({"service.version": service_version} if service_version else {}), **attributes}
    named = os.environ.get("OTEL_SERVICE_NAME")
    return resources.Resource(given).merge(resources.OTELResourceDetector().detect()).merge(
        resources.Resource({"service.name": named} if named else {})
    )


def configure_otel_providers(
    *,
    enable_sensitive_data: bool | None = None,
    enable_console_exporters: bool | None = None,
    exporters: Sequence[SpanExporter | MetricExporter | LogRecordExporter] | None = None,
    views: Sequence[View] | None = None,
    env_file_path: str | None = None,
    env_file_encoding: str | None = None,
) -> None:
    """Set up the process's OpenTelemetry providers and enable instrumentation. Call this once, before the first span.

    Traces and metrics go to `exporters` and to the OTLP endpoints of the standard `OTEL_EXPORTER_OTLP_*` variables. With
    `enable_console_exporters` (or the variable `ENABLE_CONSOLE_EXPORTERS`), they also go to stderr. A log exporter receives Moongate's log.
    First, each variable in the file `env_file_path` is set in the environment unless it is set already.

    Raises:
        FileNotFoundError: The file `env_file_path` does not exist.
        ModuleNotFoundError: The extra `telemetry` is not installed.
    """
    _read_variables(env_file_path, env_file_encoding)
    set_up_providers(exporters or (), on_console=enable_console_exporters, views=views or ())
    enable_instrumentation(enable_sensitive_data=enable_sensitive_data)


def set_up_providers(
    exporters: Sequence[SpanExporter | MetricExporter | LogRecordExporter] = (),
    *,
    on_console: bool | None = None,
    views: Sequence[View] = (),
    mask: Callable[[str], str] | None = None,
    readers: Sequence[MetricReader] = (),
) -> None:
    """Set up the process's tracer, meter and logger providers, but do not enable instrumentation. `mask` masks secrets in spans.

    Metrics go to `readers` too.
    """
    from opentelemetry import metrics, trace

    sdk_trace: Any = import_extra("opentelemetry.sdk.trace", extra="telemetry", purpose=_PURPOSE)
    sdk_metrics: Any = import_extra("opentelemetry.sdk.metrics", extra="telemetry", purpose=_PURPOSE)
    trace_export: Any = import_extra("opentelemetry.sdk.trace.export", extra="telemetry", purpose=_PURPOSE)
    metric_export: Any = import_extra("opentelemetry.sdk.metrics.export", extra="telemetry", purpose=_PURPOSE)
    log_export: Any = import_extra("opentelemetry.sdk._logs.export", extra="telemetry", purpose=_PURPOSE)
    on_console = is_set("ENABLE_CONSOLE_EXPORTERS") if on_console is None else on_console
    chosen: list[Any] = [*exporters, *_otlp_exporters(), *(_console_exporters(trace_export, metric_export) if on_console else ())]
    resource = create_resource()
    provider = sdk_trace.TracerProvider(resource=resource)
    metric_readers: list[Any] = [*readers]
    log_exporters = [exporter for exporter in chosen if isinstance(exporter, log_export.LogRecordExporter)]
    for exporter in (exporter for exporter in chosen if exporter not in log_exporters):
        if isinstance(exporter, metric_export.MetricExporter):
            metric_readers.append(metric_export.PeriodicExportingMetricReader(exporter))
        else:
            provider.add_span_processor(trace_export.BatchSpanProcessor(exporter if mask is None else _masked(exporter, mask)))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(sdk_metrics.MeterProvider(metric_readers=metric_readers, resource=resource, views=list(views)))
    if log_exporters:
        _export_logs(resource, [log_export.BatchLogRecordProcessor(exporter) for exporter in log_exporters])


def set_up_metrics(readers: Sequence[MetricReader]) -> None:
    """Set up only the process's meter provider, so that metrics go to `readers`."""
    from opentelemetry import metrics

    sdk_metrics: Any = import_extra("opentelemetry.sdk.metrics", extra="telemetry", purpose=_PURPOSE)
    metrics.set_meter_provider(sdk_metrics.MeterProvider(metric_readers=list(readers), resource=create_resource()))


def _masked(exporter: SpanExporter, mask: Callable[[str], str]) -> SpanExporter:
    from gateway.telemetry.export_limits import MaskedSpans

    return MaskedSpans(exporter, mask)


def create_metric_views() -> list[View]:
    """Return views for `configure_otel_providers` that keep the metrics of models, agents and MCP, and drop all other metrics.

    Raises:
        ModuleNotFoundError: The extra `telemetry` is not installed.
    """
    view: Any = import_extra("opentelemetry.sdk.metrics.view", extra="telemetry", purpose=_PURPOSE)
    kept = [view.View(instrument_name=name) for name in ("gen_ai*", "agent.*", "mcp*", f"{SCOPE}*")]
    return [*kept, view.View(instrument_name="*", aggregation=view.DropAggregation())]


def _read_variables(path: str | None, encoding: str | None) -> None:
    for name, value in (read_env_file(path, encoding) if path is not None else {}).items():
        os.environ.setdefault(name, value)


class _ToProvider(logging.Handler):
    """Log handler that forwards records to OpenTelemetry. Log lines never contain the content of messages."""

    def __init__(self, provider: LoggerProvider) -> None:
        super().__init__()
        self._provider = provider

    def emit(self, record: logging.LogRecord) -> None:
        from opentelemetry._logs import SeverityNumber

        self._provider.get_logger(record.name).emit(
            timestamp=int(record.created * 1e9),
            severity_number=SeverityNumber(min(24, max(1, record.levelno // 10 * 4 + 1))),
            severity_text=record.levelname,
            body=record.getMessage(),
        )


def _export_logs(resource: Resource, processors: Sequence[LogRecordProcessor]) -> None:
    from opentelemetry._logs import set_logger_provider

    sdk_logs: Any = import_extra("opentelemetry.sdk._logs", extra="telemetry", purpose=_PURPOSE)
    provider = sdk_logs.LoggerProvider(resource=resource)
    for processor in processors:
        provider.add_log_record_processor(processor)
    set_logger_provider(provider)
    logging.getLogger("gateway").addHandler(_ToProvider(provider))


def _otlp_exporters() -> list[Any]:
    """Return OTLP exporters (protobuf over HTTP) for the signals that have an endpoint in the environment."""
    for_all = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    wanted = [signal for signal in _SIGNALS if for_all or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")]
    made: list[Any] = []
    for signal in wanted:
        name = "trace" if signal == "TRACES" else "metric"
        module: Any = import_extra(f"opentelemetry.exporter.otlp.proto.http.{name}_exporter", extra="telemetry", purpose=_PURPOSE)
        exporter = module.OTLPSpanExporter if signal == "TRACES" else module.OTLPMetricExporter
        made.append(exporter(session=otlp_session(signal)))
    return made


def otlp_session(signal: str) -> Any:
    """Return an HTTP session with limits for the exporter of `signal` (`TRACES`, `METRICS` or `LOGS`).

    Return `None` if the operator configured an OTLP credential provider, because this provider creates its own session.
    """
    from gateway.telemetry.export_limits import BoundedSession

    names = ("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{signal}_CREDENTIAL_PROVIDER")
    return None if any(os.environ.get(name) for name in names) else BoundedSession()


def _console_exporters(trace_export: Any, metric_export: Any) -> list[Any]:
    """Return exporters that write spans and metrics to stderr, because stdout may carry MCP messages."""
    import sys

    return [trace_export.ConsoleSpanExporter(out=sys.stderr), metric_export.ConsoleMetricExporter(out=sys.stderr)]
