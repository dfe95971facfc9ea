"""Chat and embedding clients for OpenAI and compatible servers. Stable import path; `openai.pyi` declares the names."""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    hints={
        "OpenAIAssistantsClient": "OpenAI's Assistants are not supported. Use OpenAIChatClient, which calls the Responses API.",
        "OpenAIResponsesClient": "it is now named OpenAIChatClient.",
    },
)
