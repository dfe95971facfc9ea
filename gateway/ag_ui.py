"""Agents that speak AG-UI; the stable import path of that integration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.lazy import lazy_names

if TYPE_CHECKING:
    from gateway.chat.agui import AGUIChatClient

__all__ = [
    "AGUIChatClient",
]

__getattr__ = lazy_names(
    __name__,
    {
        "AGUIChatClient": "chat.agui",
    },
)
