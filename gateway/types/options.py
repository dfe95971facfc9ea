"""`ChatOptions`: what a caller may ask of a chat client, in names every client understands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from gateway.errors import ContentError
from gateway.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from pydantic import BaseModel


class ToolMode(TypedDict, total=False):
    """Which tools the model may or must call."""

    mode: Literal["auto", "required", "none"]
    required_function_name: str
    """With `required`: this tool and no other."""
    allowed_tools: list[str]
    """The tools it may choose from; all where left out."""


class ChatOptions(TypedDict, total=False):
    """Every key is optional; a client translates what it can and ignores the rest. Clients extend it with their own."""

    model: str
    temperature: float
    top_p: float
    max_tokens: int
    stop: str | Sequence[str]
    seed: int
    logit_bias: Mapping[str, float]
    frequency_penalty: float
    presence_penalty: float
    tools: Any
    """Tools of a call: what `normalize_tools` takes. Only definitions are sent."""
    tool_choice: ToolMode | Literal["auto", "required", "none"] | None
    allow_multiple_tool_calls: bool
    response_format: type[BaseModel] | JsonObject | None
    """What the answer must satisfy: a pydantic model, or a JSON Schema, which is passed as it is (requirements SO1)."""
    instructions: str
    """Put before the messages as a system message."""
    metadata: JsonObject
    user: str
    store: bool
    """Whether the provider keeps the conversation."""
    conversation_id: str
    """A conversation that the provider keeps."""
    additional_properties: JsonObject
    loop: JsonMapping
    """Limits of this run's function loop, over the agent's (requirements C11); never sent."""


def tool_mode(choice: ToolMode | str | None) -> ToolMode | None:
    """A tool choice in its long form; `None` where nothing was chosen.

    Raises:
        ContentError: It is none of `auto`, `required`, `none`, names a function without `required`, or allows what are no names.
    """
    if choice is None:
        return None
    mode = cast("ToolMode", {"mode": choice}) if isinstance(choice, str) else choice
    if mode.get("mode") not in ("auto", "required", "none"):
        raise ContentError(f"tool_choice must be 'auto', 'required' or 'none', not {mode.get('mode')!r}.")
    if mode.get("required_function_name") and mode.get("mode") != "required":
        raise ContentError("required_function_name needs the mode 'required'.")
    allowed: object = mode.get("allowed_tools", [])
    if not isinstance(allowed, list | tuple) or not all(isinstance(name, str) for name in cast("Sequence[object]", allowed)):
        raise ContentError(f"allowed_tools must be a list of names, not {allowed!r}.")
    return mode


validate_tool_mode = tool_mode
"""Agent-framework's name."""
