"""Annotations (sources of a content) and token counts of a response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, cast

from gateway.json_types import JsonObject

UsageDetails = dict[str, int]
"""`input_token_count`, `output_token_count`, `total_token_count` and a provider's own counts. A missing key means unknown."""


def add_usage(first: UsageDetails | None, second: UsageDetails | None) -> UsageDetails | None:
    """Add two token counts key by key; `None` if both are unknown. Values that are not integers, which some providers send, are dropped."""
    if first is None or second is None:
        return first or second
    added: UsageDetails = {}
    for key in {**first, **second}:
        counts: list[object] = [details[key] for details in (first, second) if details.get(key) is not None]
        if all(isinstance(count, int) for count in counts):
            added[key] = sum(cast("list[int]", counts))
    return added


add_usage_details = add_usage
"""The same function under its name in agent-framework."""


class TextSpanRegion(TypedDict, total=False):
    """A range of characters: `start_index` inclusive, `end_index` exclusive."""

    type: Literal["text_span"]
    start_index: int
    end_index: int


class Annotation(TypedDict, total=False):
    """An annotation of a content, such as the source that a text cites. Every key is optional."""

    type: Literal["citation"]
    title: str
    url: str
    file_id: str
    tool_name: str
    snippet: str
    annotated_regions: Sequence[TextSpanRegion]
    additional_properties: JsonObject
    raw_representation: object
