"""Remote agents over the A2A protocol (extra `a2a`). Stable import path; `a2a.pyi` declares the names."""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
