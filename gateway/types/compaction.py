"""The interfaces of compaction, for `chat`, `sessions` and `agents`: strategies that shorten a conversation, and tokenizers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gateway.types.messages import Message


@runtime_checkable
class CompactionStrategy(Protocol):
    """An async callable that compacts a whole conversation, given in order."""

    async def __call__(self, messages: list[Message]) -> bool:
        """Mark messages as excluded or insert summaries; return whether anything changed."""
        ...


@runtime_checkable
class TokenizerProtocol(Protocol):
    """Counts tokens; for example an adapter of a model's own tokenizer."""

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens in `text`."""
        ...
