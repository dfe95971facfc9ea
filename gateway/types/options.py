"""`ChatOptions`: options of a model call, with the same names for every chat client."""

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
    """Only if the mode is `required`: the one tool that the model must call."""
    allowed_tools: list[str]
    """Tools that the model may choose from; all tools if absent."""


class ChatOptions(TypedDict, total=False):
    """Options of a model call, all optional. A client ignores options that its provider does not support, and may add its own."""

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
    """Tools for this call, in any form that `normalize_tools` accepts. Only their definitions are sent."""
    tool_choice: ToolMode | Literal["auto", "required", "none"] | None
    allow_multiple_tool_calls: bool
    response_format: type[BaseModel] | JsonObject | None
    """Format of the answer: a pydantic model, or a JSON Schema, which is sent unchanged."""
    instructions: str
    """Sent as a system message before the other messages."""
    metadata: JsonObject
    user: str
    store: bool
    """Whether the provider stores the conversation."""
    conversation_id: str
    """Id of a conversation that the provider stores."""
    additional_properties: JsonObject
    loop: JsonMapping
    """Limits of the function loop for this run; override the agent's limits. Never sent."""


def tool_mode(choice: ToolMode | str | None) -> ToolMode | None:
    """Return a tool choice as an object, or `None` if the caller chose nothing.

    Raises:
        ContentError: The mode is not `auto`, `required` or `none`; a function is named without `required`; or
            `allowed_tools` is not a list of names.
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
"""The same function under its name in agent-framework."""
