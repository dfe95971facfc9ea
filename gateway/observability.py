"""Traces and metrics of agents, model calls and tool calls; off until a program or the environment turns them on."""

from __future__ import annotations

from gateway.telemetry.instrumentation import (
    OBSERVABILITY_SETTINGS,
    disable_instrumentation,
    enable_instrumentation,
    enable_sensitive_telemetry,
    get_meter,
    get_tracer,
)
from gateway.telemetry.providers import configure_otel_providers, create_metric_views, create_resource

__all__ = [
    "OBSERVABILITY_SETTINGS",
    "configure_otel_providers",
    "create_metric_views",
    "create_resource",
    "disable_instrumentation",
    "enable_instrumentation",
    "enable_sensitive_telemetry",
    "get_meter",
    "get_tracer",
]
