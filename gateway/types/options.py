"""`ChatOptions`: what a caller may ask of a chat client, in names every client understands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from gateway.json_types import JsonObject


class ChatOptions(TypedDict, total=False):
    """Every key is optional; a client translates what it can and ignores the rest."""

    model: str
    temperature: float
    top_p: float
    max_tokens: int
    stop: Sequence[str]
    seed: int
    tools: Sequence[Any]
    """`Tool` objects; only their definitions are sent."""
    tool_choice: str
    """`auto`, `none` or `required`."""
    response_format: JsonObject
    """A JSON Schema the answer must satisfy; passed as it is (requirements SO1)."""
    instructions: str
    """Put before the messages as a system message."""
    metadata: JsonObject
