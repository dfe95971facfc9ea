"""Agent-framework's import path for its exceptions. `exceptions.pyi` declares the names; the package `gateway` exports them too.

`gateway.errors` contains the complete exception tree under Moongate's names.
"""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
