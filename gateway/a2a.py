"""Agents that speak A2A; the stable import path of that integration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.lazy import lazy_names

if TYPE_CHECKING:
    from gateway.agents.remote.a2a import A2AAgent

__all__ = [
    "A2AAgent",
]

__getattr__ = lazy_names(
    __name__,
    {
        "A2AAgent": "agents.remote.a2a",
    },
)
