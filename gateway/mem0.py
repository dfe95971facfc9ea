"""Memories of mem0; the stable import path of that integration (extra `mem0`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.lazy import lazy_names

if TYPE_CHECKING:
    from gateway.agents.providers.mem0 import Mem0ContextProvider

__all__ = ["Mem0ContextProvider"]

__getattr__ = lazy_names(__name__, {"Mem0ContextProvider": "agents.providers.mem0"})
