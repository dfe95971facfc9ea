"""Agents over AG-UI, in both directions; the stable import path of that integration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.lazy import lazy_names

if TYPE_CHECKING:
    from gateway.agents.agui.hosting import AgentFrameworkAgent, add_agent_framework_fastapi_endpoint
    from gateway.chat.agui import AGUIChatClient

__all__ = [
    "AGUIChatClient",
    "AgentFrameworkAgent",
    "add_agent_framework_fastapi_endpoint",
]

__getattr__ = lazy_names(
    __name__,
    {
        "AGUIChatClient": "chat.agui",
        "AgentFrameworkAgent": "agents.agui.hosting",
        "add_agent_framework_fastapi_endpoint": "agents.agui.hosting",
    },
)
