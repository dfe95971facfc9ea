"""Chat client, agents and memory for Microsoft Foundry projects (extra `foundry`). Stable import path; `foundry.pyi` declares the names."""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
