"""OpenTelemetry traces and metrics of agents, model calls, tools and workflows; off by default. `observability.pyi` declares the names."""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
