"""Limits on exported telemetry: masking of secrets in spans, and bounded requests to the collector. Used by `providers`.

The OTLP exporter sends its requests with the library `requests`, which `gateway.egress` cannot limit. The exporter therefore receives a
session with limits. The collector's address is not checked, because the operator chose it. Import this module only if telemetry is
exported, because it imports the exporter's packages.
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
"""Maximum size of a collector's response in bytes. A response contains at most a list of rejected data."""

EXPORT_SECONDS = 10.0
"""Maximum seconds to connect to a collector, and to wait for each next part of its response; the exporter's own timeout applies if it is
shorter."""

_CHUNK_BYTES = 1 << 16


class BoundedSession(requests.Session):
    """An HTTP session that follows no redirects, requests no compression, and reads at most `MAX_ANSWER_BYTES` of a response."""

    def __init__(self) -> None:
        super().__init__()
        self.headers["Accept-Encoding"] = "identity"

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """Send a request to the collector and return the response with its body.

        Raises:
            requests.exceptions.RequestException: The response is a redirect or too long, or the request failed.
        """
        wanted = kwargs.get("timeout")
        timeout = min(wanted, EXPORT_SECONDS) if isinstance(wanted, int | float) else EXPORT_SECONDS
        answer = super().send(request, **{**kwargs, "allow_redirects": False, "stream": True, "timeout": timeout})
        if answer.is_redirect:  # the exporter would treat it as success
            answer.close()
            raise requests.exceptions.TooManyRedirects("the collector responded with a redirect, which is not followed")
        body = bytearray()
        for chunk in answer.raw.stream(_CHUNK_BYTES, decode_content=False):
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                answer.close()
                raise requests.exceptions.ConnectionError(f"the collector's response is longer than {MAX_ANSWER_BYTES} bytes")
        answer._content = bytes(body)  # pyright: ignore[reportPrivateUsage]  # `requests` stores a read body here
        return answer


class MaskedSpans(SpanExporter):
    """Wraps a span exporter, and masks secrets in the spans' names, attributes and errors. A server's error text may repeat its input."""

    def __init__(self, exporter: SpanExporter, mask: Callable[[str], str]) -> None:
        self._exporter = exporter
        self._mask = mask

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export copies of the spans with secrets masked."""
        return self._exporter.export([self._masked(span) for span in spans])

    def shutdown(self) -> None:
        """Shut the wrapped exporter down."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the wrapped exporter."""
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
