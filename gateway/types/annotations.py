"""Types for annotations of contents, such as cited sources, and for the token counts of model responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, cast

from gateway.json_types import JsonObject

UsageDetails = dict[str, int]
"""Token counts of a model response, by name. A missing key means that the count is unknown.

The names are `input_token_count`, `output_token_count`, `total_token_count`, and names that only one provider uses."""


def add_usage(first: UsageDetails | None, second: UsageDetails | None) -> UsageDetails | None:
    """Return the sum of the token counts of two responses, name by name.

    If one is `None`, the other is returned unchanged. A name is left out if one of its counts is not an integer, as some providers send.
    """
    if first is None or second is None:
        return first or second
    added: UsageDetails = {}
    for key in {**first, **second}:
        counts: list[object] = [details[key] for details in (first, second) if details.get(key) is not None]
        if all(isinstance(count, int) for count in counts):
            added[key] = sum(cast("list[int]", counts))
    return added


add_usage_details = add_usage
"""Alias of `add_usage`, the sum of two responses' token counts, under its name in Microsoft's agent-framework."""


class TextSpanRegion(TypedDict, total=False):
    """The range of characters of a text to which an annotation applies: `start_index` is inclusive, `end_index` exclusive."""

    type: Literal["text_span"]
    start_index: int
    end_index: int


class Annotation(TypedDict, total=False):
    """An annotation of a content, such as the source that a text of a model cites. Every key is optional."""

    type: Literal["citation"]
    title: str
    url: str
    file_id: str
    tool_name: str
    snippet: str
    annotated_regions: Sequence[TextSpanRegion]
    additional_properties: JsonObject
    raw_representation: object
