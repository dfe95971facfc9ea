"""`ChatOptions`: the settings of a model request under provider-neutral names.

A partial dict: a missing key means the provider's default. Providers translate the names and may read keys
of their own; nothing here checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict, cast

from gateway.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from pydantic import BaseModel


class RequiredFunction(TypedDict, total=False):
    """A `tool_choice` that names the function to call."""

    mode: Literal["auto", "none", "required"]
    required_function_name: str


class PublishedTool(Protocol):
    """What a model client reads of a tool: its published definition."""

    @property
    def name(self) -> str:
        """The function name that the model uses."""
        ...

    @property
    def description(self) -> str | None:
        """What it does, for the model."""
        ...

    @property
    def input_schema(self) -> JsonObject:
        """JSON Schema of its arguments."""
        ...


class DefinedTool(Protocol):
    """Anything with a definition; every `gateway.tools.Tool` is one."""

    @property
    def definition(self) -> PublishedTool:
        """What is published of the tool."""
        ...


ToolLike = DefinedTool | Callable[..., object]
"""A tool, or a function that an `Agent` turns into one."""

ToolChoice = Literal["auto", "none", "required"] | RequiredFunction


class ChatOptions(TypedDict, total=False):
    """Settings of a model request."""

    model: str
    temperature: float
    top_p: float
    max_tokens: int
    stop: str | Sequence[str]
    seed: int
    logit_bias: Mapping[str, float]
    frequency_penalty: float
    presence_penalty: float
    tools: Sequence[ToolLike]
    tool_choice: ToolChoice
    allow_multiple_tool_calls: bool
    response_format: type[BaseModel] | JsonMapping | None
    metadata: Mapping[str, str]
    user: str
    store: bool
    conversation_id: str
    instructions: str
    additional_properties: JsonMapping
    """Sent to the provider as they are, for settings that have no neutral name."""


def merge_options(base: ChatOptions | None, override: ChatOptions | None) -> ChatOptions:
    """`base` overlaid by `override`: tools are joined, instructions too (a line between), metadata merged.

    A key set to `None` in `override` takes the base's value away. Neither argument is changed.
    """
    merged = cast("JsonObject", dict(base or {}))
    for key, value in (override or {}).items():
        current = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif key == "tools" and current:
            merged[key] = [*current, *(tool for tool in cast("Sequence[ToolLike]", value) if tool not in current)]
        elif key == "instructions" and current:
            merged[key] = f"{current}\n{value}"
        elif key in ("metadata", "additional_properties", "logit_bias") and current:
            merged[key] = {**current, **cast("JsonMapping", value)}
        else:
            merged[key] = value
    return cast("ChatOptions", merged)


@dataclass(frozen=True, slots=True)
class ToolDeclaration:
    """A function as a model client declares it to its model."""

    name: str
    description: str
    parameters: JsonObject = field(default_factory=lambda: cast("JsonObject", {"type": "object", "properties": {}}))


def declared_tools(options: ChatOptions) -> list[ToolDeclaration]:
    """The tools of `options` as declarations, in order.

    Raises:
        TypeError: One of them is a bare function; only an `Agent` turns those into tools.
    """
    declared: list[ToolDeclaration] = []
    for tool in options.get("tools") or ():
        definition = getattr(tool, "definition", None)
        if definition is None:
            raise TypeError(f"{tool!r} is not a tool; decorate the function with @tool, or pass it to an Agent")
        published = cast("PublishedTool", definition)
        schema = published.input_schema
        if "properties" not in schema:
            schema = {**schema, "properties": {}}
        declared.append(ToolDeclaration(published.name, published.description or "", schema))
    return declared


def response_schema(response_format: type[BaseModel] | JsonMapping | None) -> tuple[str, JsonObject] | None:
    """Name and JSON Schema of a response format, or `None` where free text is wanted.

    A mapping may be the schema itself or the form `{"type": "json_schema", "json_schema": {"name", "schema"}}`.
    """
    if response_format is None:
        return None
    if isinstance(response_format, Mapping):
        wrapped = response_format.get("json_schema") if response_format.get("type") == "json_schema" else None
        if isinstance(wrapped, Mapping):
            inner = cast("JsonMapping", wrapped)
            return str(inner.get("name") or "output"), dict(inner["schema"])
        return str(response_format.get("title") or "output"), dict(response_format)
    return response_format.__name__, response_format.model_json_schema()
