from gateway.agents.layers import AgentTelemetryLayer as AgentTelemetryLayer
from gateway.chat.framework_layers import ChatTelemetryLayer as ChatTelemetryLayer, EmbeddingTelemetryLayer as EmbeddingTelemetryLayer
from gateway.telemetry.span_attributes import OtelAttr as OtelAttr
from gateway.telemetry.instrumentation import (
    OBSERVABILITY_SETTINGS as OBSERVABILITY_SETTINGS,
    ObservabilitySettings as ObservabilitySettings,
    disable_instrumentation as disable_instrumentation,
    enable_instrumentation as enable_instrumentation,
    enable_sensitive_telemetry as enable_sensitive_telemetry,
    get_meter as get_meter,
    get_tracer as get_tracer,
)
from gateway.telemetry.mcp_operations import create_mcp_client_span as create_mcp_client_span, set_mcp_span_error as set_mcp_span_error
from gateway.telemetry.providers import (
    configure_otel_providers as configure_otel_providers,
    create_metric_views as create_metric_views,
    create_resource as create_resource,
)
