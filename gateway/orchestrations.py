"""Builders for workflows that combine several agents. Stable import path; `orchestrations.pyi` declares the names."""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
