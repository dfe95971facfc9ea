"""The chat client for Foundry projects; the stable import path of that integration (extra `foundry` for credentials)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.lazy import lazy_names

if TYPE_CHECKING:
    from gateway.agents.providers.foundry_memory import FoundryMemoryProvider
    from gateway.agents.remote.foundry import AgentReference, FoundryAgentProvider
    from gateway.chat.foundry import FoundryChatClient, FoundryEmbeddingClient
    from gateway.chat.openai_options import OpenAIChatOptions as FoundryChatOptions

__all__ = [
    "AgentReference",
    "FoundryAgentProvider",
    "FoundryChatClient",
    "FoundryChatOptions",
    "FoundryEmbeddingClient",
    "FoundryMemoryProvider",
]

__getattr__ = lazy_names(
    __name__,
    {
        "AgentReference": "agents.remote.foundry",
        "FoundryAgentProvider": "agents.remote.foundry",
        "FoundryChatClient": "chat.foundry",
        "FoundryChatOptions": "chat.foundry",
        "FoundryEmbeddingClient": "chat.foundry",
        "FoundryMemoryProvider": "agents.providers.foundry_memory",
    },
)
