"""Support for the AG-UI protocol: a chat client for AG-UI agents, and hosting of agents. Stable import path; `ag_ui.pyi` declares the
names.
"""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
