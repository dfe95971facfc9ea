"""Chat and embedding clients for OpenAI and compatible servers; the stable import path of that integration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.lazy import lazy_names

if TYPE_CHECKING:
    from gateway.chat.completions import OpenAIChatCompletionClient
    from gateway.chat.embeddings import OpenAIEmbeddingClient, OpenAIEmbeddingOptions
    from gateway.chat.long_running import OpenAIContinuationToken
    from gateway.chat.openai_endpoint import OpenAISettings
    from gateway.chat.openai_options import OpenAIChatCompletionOptions, OpenAIChatOptions
    from gateway.chat.responses import OpenAIChatClient
    from gateway.errors import OpenAIContentFilterException

__all__ = [
    "OpenAIChatClient",
    "OpenAIChatCompletionClient",
    "OpenAIChatCompletionOptions",
    "OpenAIChatOptions",
    "OpenAIContentFilterException",
    "OpenAIContinuationToken",
    "OpenAIEmbeddingClient",
    "OpenAIEmbeddingOptions",
    "OpenAISettings",
]

__getattr__ = lazy_names(
    __name__,
    {
        "OpenAIChatClient": "chat.responses",
        "OpenAIChatCompletionClient": "chat.completions",
        "OpenAIChatCompletionOptions": "chat.openai_options",
        "OpenAIChatOptions": "chat.openai_options",
        "OpenAIContentFilterException": "errors",
        "OpenAIContinuationToken": "chat.long_running",
        "OpenAIEmbeddingClient": "chat.embeddings",
        "OpenAIEmbeddingOptions": "chat.embeddings",
        "OpenAISettings": "chat.openai_endpoint",
    },
    missing={
        "OpenAIAssistantsClient": "OpenAI's Assistants are not supported here. Use OpenAIChatClient, which speaks the Responses API.",
        "OpenAIResponsesClient": "agent-framework renamed it. Use OpenAIChatClient, its name now.",
    },
)
