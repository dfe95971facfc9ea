"""Limits on exports to a collector: bounded responses, no redirects, masked secrets."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode

from gateway.telemetry.export_limits import MAX_ANSWER_BYTES, BoundedSession, MaskedSpans

pytestmark = pytest.mark.attack(3)


class Collector(ThreadingHTTPServer):
    """A collector that answers according to its `path` and records requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers["Accept-Encoding"]))
        moved = self.path == "/moved"
        body = b"x" * (2 * MAX_ANSWER_BYTES if self.path == "/large" else 10)
        self.send_response(307 if moved else 200)
        if moved:
            self.send_header("Location", "/inside")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:  # a caller that had enough
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def collector() -> Generator[Collector]:
    with Collector() as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def test_response_is_bounded_and_redirects_are_not_followed() -> None:
    with collector() as server, BoundedSession() as session:
        assert session.post(f"{server.url}/fine", data=b"x", timeout=20).content == b"x" * 10
        with pytest.raises(requests.exceptions.TooManyRedirects):
            session.post(f"{server.url}/moved", data=b"x", timeout=20)
        with pytest.raises(requests.exceptions.ConnectionError, match="longer than"):
            session.post(f"{server.url}/large", data=b"x", timeout=20)
    assert server.asked == [("/fine", "identity"), ("/moved", "identity"), ("/large", "identity")]


def test_span_exporter_uses_the_limited_transport() -> None:
    with collector() as server:
        exporter = OTLPSpanExporter(endpoint=f"{server.url}/moved", session=BoundedSession())
        with TracerProvider().get_tracer("t").start_as_current_span("one") as span:
            pass
        assert isinstance(span, ReadableSpan)
        assert exporter.export([span]) is SpanExportResult.FAILURE
    assert {path for path, _ in server.asked} == {"/moved"}


class Kept(SpanExporter):
    """An exporter that keeps its spans."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Any) -> SpanExportResult:
        self.spans.extend(spans)
        return SpanExportResult.SUCCESS


@pytest.mark.attack(28)
def test_spans_are_exported_unchanged_except_for_secrets() -> None:
    kept, provider = Kept(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(MaskedSpans(kept, lambda text: text.replace("hunter2", "[secret]"))))
    with provider.get_tracer("t").start_as_current_span("outer") as outer:
        with provider.get_tracer("t").start_as_current_span("say hunter2", attributes={"a": "b hunter2", "n": 3}) as span:
            span.add_event("failed", {"why": "hunter2 is wrong"})
            span.set_status(StatusCode.ERROR, "no hunter2")
    [masked, plain] = kept.spans
    assert (masked.name, dict(masked.attributes or {})) == ("say [secret]", {"a": "b [secret]", "n": 3})
    assert [(event.name, dict(event.attributes or {})) for event in masked.events] == [("failed", {"why": "[secret] is wrong"})]
    assert (masked.status.status_code, masked.status.description) == (StatusCode.ERROR, "no [secret]")
    assert masked.context == span.get_span_context() and masked.parent == outer.get_span_context()
    assert (plain.name, plain.parent, masked.start_time is not None) == ("outer", None, True)
