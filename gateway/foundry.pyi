from gateway.agents.providers.foundry_memory import FoundryMemoryProvider as FoundryMemoryProvider
from gateway.agents.remote.foundry_agents import AgentReference as AgentReference, FoundryAgentProvider as FoundryAgentProvider
from gateway.chat.foundry_client import (
    FoundryChatClient as FoundryChatClient,
    FoundryChatOptions as FoundryChatOptions,
    FoundryEmbeddingClient as FoundryEmbeddingClient,
)
