"""Interfaces for the compaction of conversations, used by `chat`, `sessions` and `agents`: compaction strategies and tokenizers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gateway.types.messages import Message


@runtime_checkable
class CompactionStrategy(Protocol):
    """Interface of an async function that shortens a conversation, so that it fits into the context of a model."""

    async def __call__(self, messages: list[Message]) -> bool:
        """Shorten the conversation in place: mark messages as excluded, or insert summaries. Return whether anything changed.

        `messages` is the whole conversation, oldest first.
        """
        ...


@runtime_checkable
class TokenizerProtocol(Protocol):
    """Interface of objects that count the tokens of a text, such as an adapter of a model's tokenizer."""

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens in `text`."""
        ...
