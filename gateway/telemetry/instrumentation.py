"""Whether traces and metrics are made, and one timed operation of them. OpenTelemetry's API only, loaded when turned on.

OpenTelemetry's providers are the process's, so the switch is too: `OBSERVABILITY_SETTINGS` is the one object of the
package that a process shares (house rules except tracing). Off is the default, and then a call costs one attribute read.
Names and attributes follow the GenAI conventions (https://opentelemetry.io/docs/specs/semconv/gen-ai/); what people and
models said is left out unless it is asked for.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.metrics import Counter, Histogram, Meter
    from opentelemetry.trace import Span, SpanContext, Tracer

SCOPE = "moongate"
"""Name of the instrumentation in what is exported."""

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]
Kind = Literal["internal", "client", "server", "producer"]
PartT = TypeVar("PartT")
InstrumentT = TypeVar("InstrumentT")

DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Seconds, as the conventions advise."""

TOKEN_BUCKETS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
"""Tokens, as the conventions advise."""

_TRUE = frozenset({"true", "1", "yes", "on"})


class ObservabilitySettings:
    """The switch. Read `enable_instrumentation` on the path; turn it with the functions below."""

    __slots__ = ("_instruments", "_is_refused", "enable_instrumentation", "enable_sensitive_data")

    def __init__(self) -> None:
        """Off, and not refused."""
        self.enable_instrumentation = False
        self.enable_sensitive_data = False
        """Whether what was said, tool arguments and results are recorded as well."""
        self._is_refused = False
        self._instruments: dict[str, tuple[object, Any]] = {}

    @property
    def ENABLED(self) -> bool:  # agent-framework's name
        """Whether traces and metrics are made."""
        return self.enable_instrumentation

    @property
    def SENSITIVE_DATA_ENABLED(self) -> bool:  # agent-framework's name
        """Whether they hold what was said."""
        return self.enable_instrumentation and self.enable_sensitive_data

    @property
    def is_user_disabled(self) -> bool:
        """Whether the program refused them for good; whoever sets exporters up by the way should ask."""
        return self._is_refused

    def turn_on(self, *, with_content: bool, force: bool) -> None:
        """Make traces and metrics from now on, unless the program refused them for good."""
        self._is_refused = self._is_refused and not force
        if not self._is_refused:
            self.enable_instrumentation, self.enable_sensitive_data = True, with_content

    def refuse(self) -> None:
        """Make none any more, whoever else turns them on."""
        self.enable_instrumentation, self.enable_sensitive_data, self._is_refused = False, False, True

    def histogram(self, name: str, unit: str, buckets: Sequence[float]) -> Histogram:
        """Return a histogram of the process's current meter provider; the same one each time."""
        return self._instrument(name, lambda: get_meter().create_histogram(name, unit, explicit_bucket_boundaries_advisory=list(buckets)))

    def counter(self, name: str, unit: str) -> Counter:
        """Return a counter of the process's current meter provider; the same one each time."""
        return self._instrument(name, lambda: get_meter().create_counter(name, unit))

    def _instrument(self, name: str, make: Callable[[], InstrumentT]) -> InstrumentT:
        from opentelemetry import metrics

        provider = metrics.get_meter_provider()
        known = self._instruments.get(name)
        if known is None or known[0] is not provider:
            known = self._instruments[name] = (provider, make())
        return known[1]


OBSERVABILITY_SETTINGS = ObservabilitySettings()
"""This process's."""


def is_set(variable: str) -> bool:
    """Whether an environment variable says yes."""
    return os.environ.get(variable, "").lower() in _TRUE


def enable_instrumentation(*, enable_sensitive_data: bool | None = None, force: bool = False) -> None:
    """Make traces and metrics with whatever providers the process has.

    With `enable_sensitive_data` (else the variable `ENABLE_SENSITIVE_DATA`) they hold what was said. After
    `disable_instrumentation` this does nothing without `force`.
    """
    with_content = is_set("ENABLE_SENSITIVE_DATA") if enable_sensitive_data is None else enable_sensitive_data
    OBSERVABILITY_SETTINGS.turn_on(with_content=with_content, force=force)


def enable_sensitive_telemetry(*, force: bool = False) -> None:
    """`enable_instrumentation` with what was said."""
    enable_instrumentation(enable_sensitive_data=True, force=force)


def disable_instrumentation() -> None:
    """Make no traces and metrics, for good: turning them on again needs `force`."""
    OBSERVABILITY_SETTINGS.refuse()


def is_traced() -> bool:
    """Whether spans and durations of requests are made. If they are, every request takes the SDK path, which makes them."""
    return OBSERVABILITY_SETTINGS.enable_instrumentation


def get_tracer(
    instrumenting_module_name: str = SCOPE,
    instrumenting_library_version: str | None = None,
    schema_url: str | None = None,
    attributes: Attributes | None = None,
) -> Tracer:
    """A tracer of the process's provider."""
    from opentelemetry import trace

    return trace.get_tracer(instrumenting_module_name, instrumenting_library_version, schema_url=schema_url, attributes=attributes)


def get_meter(
    name: str = SCOPE, version: str | None = None, schema_url: str | None = None, attributes: Attributes | None = None
) -> Meter:
    """A meter of the process's provider."""
    from opentelemetry import metrics

    return metrics.get_meter_provider().get_meter(name, version or "", schema_url, attributes)


class Operation:
    """One operation: a span, and its duration. `active` it while something is done for it, and `end` it once."""

    __slots__ = ("_attributes", "_metric", "_span", "_start")

    def __init__(
        self, name: str, attributes: Attributes, *, kind: Kind = "internal", metric: str = "", links: Sequence[SpanContext] = ()
    ) -> None:
        """Start it below whatever span is active. `metric` is the histogram of its duration, `links` what it came from."""
        from opentelemetry.trace import Link, SpanKind

        self._attributes: dict[str, str | int | float | bool | Sequence[str]] = dict(attributes)
        self._metric = metric
        self._start = time.perf_counter()
        causes = [Link(context) for context in links]
        self._span: Span = get_tracer().start_span(name, kind=SpanKind[kind.upper()], attributes=self._attributes, links=causes)

    @property
    def context(self) -> SpanContext:
        """What others link to."""
        return self._span.get_span_context()

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """Something happened in it, now."""
        self._span.add_event(name, attributes)

    def active(self) -> AbstractContextManager[Span]:
        """What is begun inside belongs to this operation."""
        from opentelemetry.trace import use_span

        return use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False)

    def add(self, attributes: Attributes) -> None:
        """Say more about it."""
        self._attributes |= attributes
        self._span.set_attributes(attributes)

    def fail(self, error: BaseException | str) -> None:
        """Mark the operation as failed, with an `exception` event for an error.

        The event has the error's class. Its text and stack are recorded with sensitive data only: they may hold what was said.
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
        """It is over; `labels` are the attributes that the duration is told apart by."""
        if self._metric:
            seconds = time.perf_counter() - self._start
            OBSERVABILITY_SETTINGS.histogram(self._metric, "s", DURATION_BUCKETS).record(seconds, self.labels(labels))
        self._span.end()

    def labels(self, names: Sequence[str]) -> dict[str, str | int | float | bool | Sequence[str]]:
        """Return those of these attributes that are set, and the type of its error, for metrics."""
        return {key: self._attributes[key] for key in (*names, "error.type") if key in self._attributes}


async def follow(
    operation: Operation, parts: AsyncGenerator[PartT, None], finish: Callable[[Sequence[PartT]], None]
) -> AsyncGenerator[PartT, None]:
    """The parts of an operation's stream: it is active while a part is made, and not while a reader has one.

    `finish` gets all parts and ends the operation, however it went.
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
        raise  # the reader had enough, which is no failure
    except BaseException as error:
        operation.fail(error)
        raise
    finally:
        await parts.aclose()
        finish(seen)
