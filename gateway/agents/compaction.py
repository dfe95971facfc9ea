"""The `compaction` of an agent file as a strategy."""

from __future__ import annotations

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


def to_strategy(written: Compaction | None, client: SupportsChatGetResponse) -> CompactionStrategy | None:
    """What the key says; `client` writes summaries."""
    match written:
        case None:
            return None
        case WindowCompaction():
            return ContextWindowCompactionStrategy(max_context_window_tokens=written.max_tokens, max_output_tokens=written.output_tokens)
        case SummaryCompaction():
            return SummarizationStrategy(client=client, target_count=written.keep, threshold=written.threshold)
        case KeepingCompaction():
            if written.strategy == "sliding-window":
                return SlidingWindowStrategy(keep_last_groups=written.keep)
            if written.strategy == "tool-calls":
                return SelectiveToolCallCompactionStrategy(keep_last_tool_call_groups=written.keep)
            return ToolResultCompactionStrategy(keep_last_tool_call_groups=written.keep)
