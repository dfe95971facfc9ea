"""Documents of Azure AI Search; the stable import path of that integration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.lazy import lazy_names

if TYPE_CHECKING:
    from gateway.agents.providers.ai_search import AzureAISearchContextProvider

__all__ = ["AzureAISearchContextProvider"]

__getattr__ = lazy_names(
    __name__,
    {"AzureAISearchContextProvider": "agents.providers.ai_search"},
    missing={
        "AzureOpenAIAssistantsClient": "Assistants are not supported here. Use gateway.openai.OpenAIChatClient(azure_endpoint=…).",
        "AzureOpenAIChatClient": "agent-framework renamed it. Use gateway.openai.OpenAIChatCompletionClient(azure_endpoint=…).",
        "AzureOpenAIResponsesClient": "agent-framework renamed it. Use gateway.openai.OpenAIChatClient(azure_endpoint=…).",
        "CosmosHistoryProvider": "Cosmos DB is not supported here. Use gateway.SqlHistoryProvider with SQLite or PostgreSQL.",
    },
)
