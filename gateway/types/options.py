"""`ChatOptions`: the options of a model call, such as temperature and tools. Their names are the same for all chat clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from gateway.errors import ContentError
from gateway.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from pydantic import BaseModel


class ToolMode(TypedDict, total=False):
    """Tool choice of a model call: whether the model may (`auto`), must (`required`) or must not (`none`) call tools, and which tools."""

    mode: Literal["auto", "required", "none"]
    required_function_name: str
    """Name of the only tool that the model must call. Allowed only if the mode is `required`."""
    allowed_tools: list[str]
    """Names of the tools that the model may call. If the key is missing, the model may call all tools."""


class ChatOptions(TypedDict, total=False):
    """Options of a model call. Every key is optional.

    A chat client ignores options that its provider does not support, and may accept additional options.
    """

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
    """Tools that the model may call: functions, tool objects, sources of tools, and definitions of tools that the provider runs.

    Only the definitions of the tools are sent to the provider."""
    tool_choice: ToolMode | Literal["auto", "required", "none"] | None
    allow_multiple_tool_calls: bool
    response_format: type[BaseModel] | JsonObject | None
    """Required format of the answer: a pydantic model, a JSON Schema (sent unchanged), or an object as the provider's API defines it."""
    instructions: str
    """Instructions for the model, sent as a system message before the other messages, or in the provider's own field for instructions."""
    metadata: JsonObject
    user: str
    store: bool
    """Whether the provider stores the conversation."""
    conversation_id: str
    """Id of a conversation that the provider stores and the call continues."""
    additional_properties: JsonObject
    loop: JsonMapping
    """Limits of the function loop, which runs the tools that the model calls.

    These limits replace the agent's limits, and are not sent to the provider.
    """


def tool_mode(choice: ToolMode | str | None) -> ToolMode | None:
    """Validate the tool choice of a model call, and return it as an object with the key `mode`. `None` is returned unchanged.

    Raises:
        ContentError: The mode is not `auto`, `required` or `none`; `required_function_name` is given with another mode than `required`; or
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
"""Alias of `tool_mode`, which validates a tool choice, under its name in Microsoft's agent-framework."""
