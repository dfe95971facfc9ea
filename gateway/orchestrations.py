"""Builders for workflows of several agents. Stable import path; `orchestrations.pyi` lists the names."""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
