"""`AuditLogs`: sends entries of the audit log as log records to an OTLP endpoint (`audit.otlp`). `moongate run` opens it.

The entries are in the database already. They are sent in the background, at most once: what a collector does not accept, or what is not
sent when the process is killed, is missing there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Protocol

import anyio.lowlevel

from gateway.errors import ConfigError
from gateway.json_types import JsonObject
from gateway.lazy import import_extra
from gateway.telemetry.providers import create_resource, otlp_session

SCOPE = "moongate.audit"
"""Name of the OpenTelemetry instrumentation scope of audit entries."""

MAX_QUEUED = 8_192
"""Maximum number of entries that wait to be sent. The SDK drops older entries beyond it, and logs this."""

SEND_MILLISECONDS = 1_000
"""Milliseconds for which entries are collected before they are sent."""

_SLICE = 32
"""Number of entries that are queued before other tasks of the event loop run."""

_VARIABLES = ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Entry(Protocol):
    """Protocol of an entry of the audit log."""

    @property
    def at(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    @property
    def kind(self) -> str:
        """Kind of the event, such as `call.finished`."""
        ...

    def to_json(self) -> JsonObject:
        """Return the entry as a JSON object."""
        ...


class AuditLogs:
    """Sends entries of the audit log to an OTLP endpoint, in a thread of its own."""

    def __init__(self) -> None:
        """Read the endpoint from the `OTEL_EXPORTER_OTLP_…` variables.

        Raises:
            ConfigError: No variable names an endpoint, or the extra `telemetry` is not installed.
        """
        if not any(os.environ.get(name) for name in _VARIABLES):
            raise ConfigError(f"audit.otlp is set, but no endpoint: set the variable {' or '.join(_VARIABLES)}.", path="audit.otlp")
        try:
            purpose = "Sending the audit log by OTLP"
            logs: Any = import_extra("opentelemetry.sdk._logs", extra="telemetry", purpose=purpose)
            processors: Any = import_extra("opentelemetry.sdk._logs.export", extra="telemetry", purpose=purpose)
            exporters: Any = import_extra("opentelemetry.exporter.otlp.proto.http._log_exporter", extra="telemetry", purpose=purpose)
        except ModuleNotFoundError as error:
            raise ConfigError(f"audit.otlp is set: {error}", path="audit.otlp") from None
        exporter = exporters.OTLPLogExporter(session=otlp_session("LOGS"))
        self._provider = logs.LoggerProvider(resource=create_resource())
        self._provider.add_log_record_processor(
            processors.BatchLogRecordProcessor(exporter, schedule_delay_millis=SEND_MILLISECONDS, max_queue_size=MAX_QUEUED)
        )
        self._logger = self._provider.get_logger(SCOPE)

    async def export(self, entries: Sequence[Entry]) -> None:
        """Queue entries to be sent. Refusals have the severity WARN, all others INFO."""
        from opentelemetry._logs import SeverityNumber

        for number, entry in enumerate(entries, 1):
            is_refused = entry.kind.endswith(".refused")
            self._logger.emit(
                timestamp=int(entry.at * 1e9),
                severity_number=SeverityNumber.WARN if is_refused else SeverityNumber.INFO,
                severity_text="WARN" if is_refused else "INFO",
                event_name=f"{SCOPE}.{entry.kind}",
                body=entry.kind,
                attributes={key: _attribute(value) for key, value in entry.to_json().items() if value is not None},
            )
            if not number % _SLICE:
                await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        """Send what waits, and stop. Blocks, at most as long as the exporter's timeout."""
        self._provider.shutdown()


def _attribute(value: object) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else json.dumps(value, ensure_ascii=False)
