"""What may be attached to contents: where something comes from, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, cast

from gateway.json_types import JsonObject

UsageDetails = dict[str, int]
"""`input_token_count`, `output_token_count`, `total_token_count` and provider extras; missing means unknown."""


def add_usage(first: UsageDetails | None, second: UsageDetails | None) -> UsageDetails | None:
    """Both counts together; `None` where neither is known. What is no number, as some providers send, is left out."""
    if first is None or second is None:
        return first or second
    added: UsageDetails = {}
    for key in {**first, **second}:
        counts: list[object] = [details[key] for details in (first, second) if details.get(key) is not None]
        if all(isinstance(count, int) for count in counts):
            added[key] = sum(cast("list[int]", counts))
    return added


add_usage_details = add_usage
"""Agent-framework's name."""


class TextSpanRegion(TypedDict, total=False):
    """The part of a text that an annotation is about: `start_index` inclusive, `end_index` exclusive."""

    type: Literal["text_span"]
    start_index: int
    end_index: int


class Annotation(TypedDict, total=False):
    """Where something in a content comes from. Every key is optional."""

    type: Literal["citation"]
    title: str
    url: str
    file_id: str
    tool_name: str
    snippet: str
    annotated_regions: Sequence[TextSpanRegion]
    additional_properties: JsonObject
    raw_representation: object
