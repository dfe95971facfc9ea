"""Memories of agents in the service mem0 (extra `mem0`). Stable import path; `mem0.pyi` declares the names."""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
