"""Remote agents over A2A (extra `a2a`). Stable import path; `a2a.pyi` lists the names."""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
