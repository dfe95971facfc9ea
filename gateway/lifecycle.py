"""Lifecycle hooks for an agent's runs, and the types of their parameters and results; experimental. `lifecycle.pyi` lists the names.

`docs/middleware.md` describes when each hook is called and what it may change.
"""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
