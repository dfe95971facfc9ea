"""What may be attached to contents: where something comes from, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from gateway.json_types import JsonObject

UsageDetails = dict[str, int]
"""`input_token_count`, `output_token_count`, `total_token_count` and provider extras; missing means unknown."""


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
