"""OpenTelemetry providers that keep what they get; set up once, because a process can only have one set."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway import disable_instrumentation, enable_instrumentation


@dataclass
class Recorded:
    """What was exported."""

    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    def spans(self) -> dict[str, ReadableSpan]:
        """Finished spans by name; of several with one name the last."""
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def points(self, name: str) -> list[tuple[Mapping[str, Any], float, int]]:
        """Labels, sum and count of a histogram since it was last asked."""
        data = self.reader.get_metrics_data()
        found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics if m.name == name] if data else []
        points: list[Any] = [point for metric in found for point in metric.data.data_points]
        return [(dict(point.attributes), point.sum, point.count) for point in points]


@pytest.fixture(scope="session")
def providers() -> Recorded:
    recorded = Recorded(InMemorySpanExporter(), InMemoryMetricReader({Histogram: AggregationTemporality.DELTA}))
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(recorded.exporter))
    trace.set_tracer_provider(tracing)
    metrics.set_meter_provider(MeterProvider([recorded.reader]))
    return recorded


@pytest.fixture
def recorded(providers: Recorded) -> Generator[Recorded]:
    providers.exporter.clear()
    providers.reader.get_metrics_data()
    enable_instrumentation(enable_sensitive_data=False, force=True)
    yield providers
    disable_instrumentation()
