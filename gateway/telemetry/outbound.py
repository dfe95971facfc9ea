"""What keeps exported telemetry within bounds: whose it is to see, and what the collector may make of the request.

For `providers`. The OTLP exporter is OpenTelemetry's own and speaks through `requests`, so `egress` is not around it; its session is
ours instead. The collector's address is the operator's, as every address in the configuration. Imports the exporter's packages, so it
is imported where something is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import requests
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import Status
from opentelemetry.util.types import Attributes, AttributeValue

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExportResult

MAX_ANSWER_BYTES = 1 << 20
"""Of a collector's answer, which says at most what it did not take."""

EXPORT_SECONDS = 10.0
"""Longest silence of a collector; the exporter's own deadline where that is shorter."""

_CHUNK_BYTES = 1 << 16


class BoundedSession(requests.Session):
    """A session that follows no redirect, asks for no compression, and reads no more than `MAX_ANSWER_BYTES` of an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.headers["Accept-Encoding"] = "identity"

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """As `requests` does, within the bounds. Raises `requests.exceptions.RequestException` for an answer beyond them."""
        wanted = kwargs.get("timeout")
        timeout = min(wanted, EXPORT_SECONDS) if isinstance(wanted, int | float) else EXPORT_SECONDS
        answer = super().send(request, **{**kwargs, "allow_redirects": False, "stream": True, "timeout": timeout})
        if answer.is_redirect:  # the exporter takes it for a success
            answer.close()
            raise requests.exceptions.TooManyRedirects("the collector answers with a redirect, which is not followed")
        body = bytearray()
        for chunk in answer.raw.stream(_CHUNK_BYTES, decode_content=False):
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                answer.close()
                raise requests.exceptions.ConnectionError(f"the collector's answer is longer than {MAX_ANSWER_BYTES} bytes")
        answer._content = bytes(body)  # pyright: ignore[reportPrivateUsage]  # where `requests` keeps a body that was read
        return answer


class MaskedSpans(SpanExporter):
    """An exporter behind a mask: what a server said of its failure may repeat what it was given."""

    def __init__(self, exporter: SpanExporter, mask: Callable[[str], str]) -> None:
        self._exporter = exporter
        self._mask = mask

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export copies without secrets."""
        return self._exporter.export([self._masked(span) for span in spans])

    def shutdown(self) -> None:
        """As the exporter's."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """As the exporter's."""
        return self._exporter.force_flush(timeout_millis)

    def _masked(self, span: ReadableSpan) -> ReadableSpan:
        events = [Event(event.name, self._clean(event.attributes), event.timestamp) for event in span.events]
        status = span.status
        if status.description:
            status = Status(status.status_code, self._mask(status.description))
        return ReadableSpan(
            self._mask(span.name),
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=self._clean(span.attributes),
            events=events,
            links=span.links,
            kind=span.kind,
            status=status,
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )

    def _clean(self, attributes: Attributes) -> dict[str, AttributeValue]:
        return {name: self._masked_value(value) for name, value in (attributes or {}).items()}

    def _masked_value(self, value: AttributeValue) -> AttributeValue:
        if isinstance(value, str):
            return self._mask(value)
        if isinstance(value, Sequence) and value and isinstance(value[0], str):
            return [self._mask(str(part)) for part in value]
        return value
