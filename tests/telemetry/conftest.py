"""OpenTelemetry providers that record exported data; set up once, because a process can have only one set."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway import disable_instrumentation, enable_instrumentation


class Switched(trace.NoOpTracerProvider):
    """The process's tracer provider: records while a test needs it and discards spans of other tests."""

    def __init__(self, inner: TracerProvider) -> None:
        self.inner = inner
        self.is_on = False

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **more: Any) -> trace.Tracer:
        return SwitchedTracer(self, self.inner.get_tracer(instrumenting_module_name, *args, **more))


class SwitchedTracer(trace.Tracer):
    """A tracer that modules may cache for the whole process."""

    def __init__(self, provider: Switched, inner: trace.Tracer) -> None:
        self._provider = provider
        self._inner = inner
        self._none = trace.NoOpTracer()

    def start_span(self, *args: Any, **more: Any) -> trace.Span:
        return (self._inner if self._provider.is_on else self._none).start_span(*args, **more)

    def start_as_current_span(self, *args: Any, **more: Any) -> Any:
        return (self._inner if self._provider.is_on else self._none).start_as_current_span(*args, **more)


@dataclass
class Recorded:
    """The exported data."""

    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader
    switch: Switched

    def spans(self) -> dict[str, ReadableSpan]:
        """Return finished spans by name; the last one of each name."""
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def points(self, name: str) -> list[tuple[Mapping[str, Any], float, int]]:
        """Return labels, sum and count of a histogram since metrics were last read."""
        return self.all_points().get(name, [])

    def all_points(self) -> dict[str, list[tuple[Mapping[str, Any], float, int]]]:
        """Return labels, sum and count of each metric since they were last read; for a counter its value and 1."""
        data = self.reader.get_metrics_data()
        found: dict[str, list[tuple[Mapping[str, Any], float, int]]] = {}
        for metric in (m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics) if data else ():
            points: list[Any] = list(metric.data.data_points)
            found[metric.name] = [(dict(p.attributes), p.sum if hasattr(p, "sum") else p.value, getattr(p, "count", 1)) for p in points]
        return found


@pytest.fixture(scope="session")
def providers() -> Recorded:
    tracing = TracerProvider()
    reader = InMemoryMetricReader(dict.fromkeys((Histogram, Counter), AggregationTemporality.DELTA))
    recorded = Recorded(InMemorySpanExporter(), reader, Switched(tracing))
    tracing.add_span_processor(SimpleSpanProcessor(recorded.exporter))
    trace.set_tracer_provider(recorded.switch)
    metrics.set_meter_provider(MeterProvider([reader]))
    return recorded


@pytest.fixture
def recorded(providers: Recorded) -> Generator[Recorded]:
    providers.exporter.clear()
    providers.reader.get_metrics_data()
    enable_instrumentation(enable_sensitive_data=False, force=True)
    providers.switch.is_on = True
    yield providers
    providers.switch.is_on = False
    disable_instrumentation()
