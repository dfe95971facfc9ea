"""Converts the key `compaction` of an agent file to a compaction strategy, which shortens long conversations for the model."""

from __future__ import annotations

from collections.abc import Callable

from gateway.agents.definition import Compaction, KeepingCompaction, SummaryCompaction, WindowCompaction
from gateway.chat.chat_context import SupportsChatGetResponse
from gateway.sessions.compaction_strategies import (
    CompactionStrategy,
    ContextWindowCompactionStrategy,
    SelectiveToolCallCompactionStrategy,
    SlidingWindowStrategy,
    SummarizationStrategy,
    ToolResultCompactionStrategy,
)
from gateway.sessions.history import EXCLUDED_KEY, STORED_KEY
from gateway.types.messages import Message

KeepSummary = Callable[[str, int], None]
"""Function that stores the summary of a conversation's first messages; the second argument is the number of messages that it covers."""


class KeptSummaries:
    """Compaction strategy that stores the summaries of the strategy it wraps, so that the next turn need not summarize again."""

    def __init__(self, strategy: CompactionStrategy, keep: KeepSummary) -> None:
        self._strategy = strategy
        self._keep = keep

    async def __call__(self, messages: list[Message]) -> bool:
        """Apply the wrapped strategy to `messages` and return whether they changed.

        A new summary is stored only if the session already stores all messages that it covers.
        """
        before = {id(message) for message in messages}
        changed = await self._strategy(messages)
        made = [message for message in messages if id(message) not in before]
        out = [message for message in messages if message.additional_properties.get(EXCLUDED_KEY)]
        stored = [count for message in out if isinstance(count := message.additional_properties.get(STORED_KEY), int)]
        if len(made) == 1 and stored and len(stored) == len(out):
            self._keep(made[0].text, max(stored))
        return changed


def to_strategy(
    written: Compaction | None, client: SupportsChatGetResponse, keep: KeepSummary | None = None
) -> CompactionStrategy | None:
    """Return the compaction strategy that an agent file selects by its key `compaction`; `None` without the key.

    `written` is the key's value. `client` calls the model that writes summaries. `keep`, if given, stores the summaries in a session.
    """
    match written:
        case None:
            return None
        case WindowCompaction():
            return ContextWindowCompactionStrategy(max_context_window_tokens=written.max_tokens, max_output_tokens=written.output_tokens)
        case SummaryCompaction():
            summarise = SummarizationStrategy(client=client, target_count=written.keep, threshold=written.threshold)
            return summarise if keep is None else KeptSummaries(summarise, keep)
        case KeepingCompaction():
            if written.strategy == "sliding-window":
                return SlidingWindowStrategy(keep_last_groups=written.keep)
            if written.strategy == "tool-calls":
                return SelectiveToolCallCompactionStrategy(keep_last_tool_call_groups=written.keep)
            return ToolResultCompactionStrategy(keep_last_tool_call_groups=written.keep)
