"""AG-UI in both directions: a chat client, and hosting of agents. Stable import path; `ag_ui.pyi` lists the names."""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
