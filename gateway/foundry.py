"""Chat client, agents and memory for Foundry projects (extra `foundry`). Stable import path; `foundry.pyi` lists the names."""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
