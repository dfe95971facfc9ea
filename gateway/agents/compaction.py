"""The `compaction` of an agent file as a strategy."""

from __future__ import annotations

from collections.abc import Callable

from gateway.agents.definition import Compaction, KeepingCompaction, SummaryCompaction, WindowCompaction
from gateway.chat.base import SupportsChatGetResponse
from gateway.sessions.compaction import (
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
"""Takes a summary, and how many of the stored messages it is of."""


class KeptSummaries:
    """A strategy whose summaries of what is stored are kept, so that the next turn goes on from them and pays for none again."""

    def __init__(self, strategy: CompactionStrategy, keep: KeepSummary) -> None:
        self._strategy = strategy
        self._keep = keep

    async def __call__(self, messages: list[Message]) -> bool:
        """As the strategy. A summary that is also of messages which are not stored yet is not kept."""
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
    """What the key says; `client` writes summaries, and `keep` takes those of a session."""
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
