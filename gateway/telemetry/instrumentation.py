"""Switches traces and metrics on and off, and defines `Operation`, a span whose duration can also be recorded as a metric.

The module uses only OpenTelemetry's API, and imports it when a span, metric, tracer or meter is first requested.

OpenTelemetry's providers belong to the process, so the switch, `OBSERVABILITY_SETTINGS`, is an object at module level. By default
instrumentation is off, and costs each call one attribute read. Names and attributes follow the GenAI conventions
(https://opentelemetry.io/docs/specs/semconv/gen-ai/). The content of messages is recorded only if the operator or program requests it.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.metrics import Counter, Histogram, Meter
    from opentelemetry.trace import Span, SpanContext, Tracer

SCOPE = "moongate"
"""Name of the OpenTelemetry instrumentation scope that the exported data carries."""

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]
Kind = Literal["internal", "client", "server", "producer"]
PartT = TypeVar("PartT")
InstrumentT = TypeVar("InstrumentT")

DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Bucket boundaries of duration histograms, in seconds, as OpenTelemetry's GenAI conventions recommend."""

TOKEN_BUCKETS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
"""Bucket boundaries of the token histogram, as OpenTelemetry's GenAI conventions recommend."""

_TRUE = frozenset({"true", "1", "yes", "on"})


class ObservabilitySettings:
    """Whether this process records traces and metrics, and whether they contain the content of messages.

    Each request, model call and tool call reads `enable_instrumentation`, and records nothing if it is false.
    """

    __slots__ = ("_instruments", "_is_refused", "enable_instrumentation", "enable_sensitive_data")

    def __init__(self) -> None:
        """Start with instrumentation off. A program may switch it on, or disable it permanently (`refuse`)."""
        self.enable_instrumentation = False
        """Whether traces and metrics are recorded. If so, the fast path, which serves plain requests without the MCP SDK, is not used."""
        self.enable_sensitive_data = False
        """Whether messages, tool arguments and results are recorded in traces and metrics."""
        self._is_refused = False
        self._instruments: dict[str, tuple[object, Any]] = {}

    @property
    def ENABLED(self) -> bool:  # agent-framework's name
        """Whether traces and metrics are recorded."""
        return self.enable_instrumentation

    @property
    def SENSITIVE_DATA_ENABLED(self) -> bool:  # agent-framework's name
        """Whether traces contain the content of messages."""
        return self.enable_instrumentation and self.enable_sensitive_data

    @property
    def is_user_disabled(self) -> bool:
        """Whether the program disabled instrumentation permanently. Code that sets up exporters automatically checks this first."""
        return self._is_refused

    def turn_on(self, *, with_content: bool, force: bool) -> None:
        """Start recording traces and metrics, unless the program disabled them permanently and `force` is false."""
        self._is_refused = self._is_refused and not force
        if not self._is_refused:
            self.enable_instrumentation, self.enable_sensitive_data = True, with_content

    def refuse(self) -> None:
        """Stop recording traces and metrics permanently: later calls of `turn_on` have no effect without `force`."""
        self.enable_instrumentation, self.enable_sensitive_data, self._is_refused = False, False, True

    def histogram(self, name: str, unit: str, buckets: Sequence[float]) -> Histogram:
        """Return the histogram `name` from the process's current meter provider, from a cache. `buckets` are its boundaries."""
        return self._instrument(name, lambda: get_meter().create_histogram(name, unit, explicit_bucket_boundaries_advisory=list(buckets)))

    def counter(self, name: str, unit: str) -> Counter:
        """Return the counter `name` from the process's current meter provider, from a cache."""
        return self._instrument(name, lambda: get_meter().create_counter(name, unit))

    def _instrument(self, name: str, make: Callable[[], InstrumentT]) -> InstrumentT:
        from opentelemetry import metrics

        provider = metrics.get_meter_provider()
        known = self._instruments.get(name)
        if known is None or known[0] is not provider:
            known = self._instruments[name] = (provider, make())
        return known[1]


OBSERVABILITY_SETTINGS = ObservabilitySettings()
"""The settings of this process for traces and metrics."""


def is_set(variable: str) -> bool:
    """Return whether an environment variable is `true`, `1`, `yes` or `on`."""
    return os.environ.get(variable, "").lower() in _TRUE


def enable_instrumentation(*, enable_sensitive_data: bool | None = None, force: bool = False) -> None:
    """Record traces and metrics with OpenTelemetry's providers of this process.

    If `enable_sensitive_data` is true (default: the variable `ENABLE_SENSITIVE_DATA`), traces contain the content of messages. After
    `disable_instrumentation` this function has no effect without `force`.
    """
    with_content = is_set("ENABLE_SENSITIVE_DATA") if enable_sensitive_data is None else enable_sensitive_data
    OBSERVABILITY_SETTINGS.turn_on(with_content=with_content, force=force)


def enable_sensitive_telemetry(*, force: bool = False) -> None:
    """Record traces and metrics, including the content of messages. No effect after `disable_instrumentation` without `force`."""
    enable_instrumentation(enable_sensitive_data=True, force=force)


def disable_instrumentation() -> None:
    """Stop recording traces and metrics. Afterwards, `enable_instrumentation` has no effect without `force`."""
    OBSERVABILITY_SETTINGS.refuse()


def get_tracer(
    instrumenting_module_name: str = SCOPE,
    instrumenting_library_version: str | None = None,
    schema_url: str | None = None,
    attributes: Attributes | None = None,
) -> Tracer:
    """Return a tracer of the process's OpenTelemetry tracer provider."""
    from opentelemetry import trace

    return trace.get_tracer(instrumenting_module_name, instrumenting_library_version, schema_url=schema_url, attributes=attributes)


def get_meter(
    name: str = SCOPE, version: str | None = None, schema_url: str | None = None, attributes: Attributes | None = None
) -> Meter:
    """Return a meter of the process's OpenTelemetry meter provider."""
    from opentelemetry import metrics

    return metrics.get_meter_provider().get_meter(name, version or "", schema_url, attributes)


class Operation:
    """An OpenTelemetry span, whose duration can also be recorded as a metric.

    Run the measured code inside the context `running`; or inside the context `active`, and then call `end` once.
    """

    __slots__ = ("_attributes", "_metric", "_span", "_start")

    def __init__(
        self, name: str, attributes: Attributes, *, kind: Kind = "internal", metric: str = "", links: Sequence[SpanContext] = ()
    ) -> None:
        """Start a span as a child of the active span.

        `metric` is the name of the histogram that records the span's duration; empty for no histogram. `links` refer to the spans that
        caused this span.
        """
        from opentelemetry.trace import Link, SpanKind

        self._attributes: dict[str, str | int | float | bool | Sequence[str]] = dict(attributes)
        self._metric = metric
        self._start = time.perf_counter()
        causes = [Link(context) for context in links]
        self._span: Span = get_tracer().start_span(name, kind=SpanKind[kind.upper()], attributes=self._attributes, links=causes)

    @property
    def context(self) -> SpanContext:
        """Context of this span, which other spans need to link to it."""
        return self._span.get_span_context()

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """Add an event with the current time to the span."""
        self._span.add_event(name, attributes)

    def active(self) -> AbstractContextManager[Span]:
        """Make this span the active span: spans that are started inside the context become its children."""
        from opentelemetry.trace import use_span

        return use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False)

    @contextmanager
    def running(self, *, labels: Sequence[str] = ()) -> Generator[Span]:
        """Make this span the active span, and end it when the context exits; an exception marks it as failed.

        `labels` are the names of the attributes that become labels of the duration metric.
        """
        try:
            with self.active() as span:
                yield span
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self.end(labels=labels)

    def add(self, attributes: Attributes) -> None:
        """Add attributes to the span."""
        self._attributes |= attributes
        self._span.set_attributes(attributes)

    def fail(self, error: BaseException | str) -> None:
        """Mark the operation as failed and add an `exception` event for an exception.

        The event contains the exception's class. It contains the exception's text and stack only if sensitive data is recorded, because
        they may contain the content of messages.
        """
        from opentelemetry.trace import StatusCode

        kind = type(error)
        self.add({"error.type": error if isinstance(error, str) else kind.__qualname__})
        self._span.set_status(StatusCode.ERROR)
        if isinstance(error, str):
            return
        if OBSERVABILITY_SETTINGS.enable_sensitive_data:
            self._span.record_exception(error)
        else:
            module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
            self._span.add_event("exception", {"exception.type": f"{module}{kind.__qualname__}"})

    def end(self, *, labels: Sequence[str] = ()) -> None:
        """End the span and record its duration. `labels` are the names of the attributes that become labels of the duration metric."""
        if self._metric:
            seconds = time.perf_counter() - self._start
            OBSERVABILITY_SETTINGS.histogram(self._metric, "s", DURATION_BUCKETS).record(seconds, self.labels(labels))
        self._span.end()

    def labels(self, names: Sequence[str]) -> dict[str, str | int | float | bool | Sequence[str]]:
        """Return the attributes in `names` that are set, and `error.type`, as labels of a metric."""
        return {key: self._attributes[key] for key in (*names, "error.type") if key in self._attributes}


async def follow(
    operation: Operation, parts: AsyncGenerator[PartT, None], finish: Callable[[Sequence[PartT]], None]
) -> AsyncGenerator[PartT, None]:
    """Yield the parts of a stream that an operation produces. The operation's span is active only while a part is produced.

    `finish` receives all parts that were produced, and must end the operation. It is called even if the stream fails or is not read to its
    end.
    """
    seen: list[PartT] = []
    try:
        while True:
            with operation.active():
                try:
                    part = await anext(parts)
                except StopAsyncIteration:
                    return
            seen.append(part)
            yield part
    except GeneratorExit:
        raise  # the reader stopped early, which is not a failure
    except BaseException as error:
        operation.fail(error)
        raise
    finally:
        await parts.aclose()
        finish(seen)
