"""Context for agents from Azure AI Search. Stable import path; `azure.pyi` declares the names."""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    hints={
        "AzureOpenAIAssistantsClient": "Assistants are not supported. Use gateway.openai.OpenAIChatClient(azure_endpoint=…).",
        "AzureOpenAIChatClient": "use gateway.openai.OpenAIChatCompletionClient(azure_endpoint=…).",
        "AzureOpenAIResponsesClient": "use gateway.openai.OpenAIChatClient(azure_endpoint=…).",
        "CosmosHistoryProvider": "Cosmos DB is not supported. Use gateway.SqlHistoryProvider with SQLite or PostgreSQL.",
    },
)
