"""Token counts of model calls, and how they add up over a run."""

from __future__ import annotations

from typing import TypedDict


class UsageDetails(TypedDict, total=False):
    """Token counts; a count that the model did not report is absent."""

    input_token_count: int
    output_token_count: int
    total_token_count: int
    cache_read_input_token_count: int
    """Part of the input that came from the provider's prompt cache."""
    reasoning_output_token_count: int
    """Part of the output that was reasoning."""


def add_usage_details(first: UsageDetails | None, second: UsageDetails | None) -> UsageDetails:
    """The sum of two counts; a count that only one side has is kept."""
    total: dict[str, int] = {}
    for usage in (first, second):
        for key, count in (usage or {}).items():
            if isinstance(count, int):
                total[key] = total.get(key, 0) + count
    return UsageDetails(**total)
