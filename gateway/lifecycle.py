"""Lifecycle hooks for agent runs, and the types of the hooks' parameters and results; experimental. `lifecycle.pyi` declares the names.

`docs/middleware.md` describes when each hook is called and what it may change.
"""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
