"""Traces and metrics of agents, model calls, tool calls and workflows; off until a program or the environment turns them on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.lazy import lazy_names
from gateway.telemetry.attributes import OtelAttr
from gateway.telemetry.instrumentation import (
    OBSERVABILITY_SETTINGS,
    ObservabilitySettings,
    disable_instrumentation,
    enable_instrumentation,
    enable_sensitive_telemetry,
    get_meter,
    get_tracer,
)
from gateway.telemetry.operations import create_mcp_client_span, set_mcp_span_error
from gateway.telemetry.providers import configure_otel_providers, create_metric_views, create_resource

if TYPE_CHECKING:
    from gateway.agents.layers import AgentTelemetryLayer
    from gateway.chat.layers import ChatTelemetryLayer, EmbeddingTelemetryLayer

__all__ = [
    "OBSERVABILITY_SETTINGS",
    "AgentTelemetryLayer",
    "ChatTelemetryLayer",
    "EmbeddingTelemetryLayer",
    "ObservabilitySettings",
    "OtelAttr",
    "configure_otel_providers",
    "create_mcp_client_span",
    "create_metric_views",
    "create_resource",
    "disable_instrumentation",
    "enable_instrumentation",
    "enable_sensitive_telemetry",
    "get_meter",
    "get_tracer",
    "set_mcp_span_error",
]

__getattr__ = lazy_names(
    __name__,
    {"AgentTelemetryLayer": "agents.layers", "ChatTelemetryLayer": "chat.layers", "EmbeddingTelemetryLayer": "chat.layers"},
)
