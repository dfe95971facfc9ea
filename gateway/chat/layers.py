"""The layers that clients written for agent-framework are put together from; `BaseChatClient` already is all of them.

They are there so that such a class keeps its bases when its imports change, and they do nothing of their own.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from gateway.chat.base import OptionsT

EmbeddingInputT = TypeVar("EmbeddingInputT")
"""What is embedded."""
EmbeddingT = TypeVar("EmbeddingT")
"""The form of a vector."""
EmbeddingOptionsT = TypeVar("EmbeddingOptionsT")
"""What an embedding client takes as options."""


class ChatMiddlewareLayer(Generic[OptionsT]):
    """Chat middleware around each model call: `middleware` of `BaseChatClient`."""


class ChatTelemetryLayer(Generic[OptionsT]):
    """A span for each model call: on with `enable_instrumentation`."""


class EmbeddingTelemetryLayer(Generic[EmbeddingInputT, EmbeddingT, EmbeddingOptionsT]):
    """A span for each request for embeddings: on with `enable_instrumentation`."""
