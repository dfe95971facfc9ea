"""Conversion of `ChatOptions`, the options of a model call, for OpenAI's two APIs: tools, tool choice and response format.

The clients for both APIs use this module for the common options. They send all other options unchanged, because each provider has its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from gateway.errors import ChatClientInvalidRequestException
from gateway.json_types import JsonMapping, JsonObject, JsonValue, members_of
from gateway.tools.base import ToolDefinition
from gateway.tools.function import FunctionTool
from gateway.types.options import ChatOptions


class _Model(Protocol):
    def model_json_schema(self) -> JsonObject: ...


OURS = frozenset({"type", "model", "instructions", "tools", "tool_choice", "response_format", "conversation_id", "continuation_token"})
"""Options that the clients convert or handle themselves, so that they are not sent unchanged."""

_NEVER_SENT = frozenset({"loop", "additional_properties"})
"""Options that are for Moongate itself or for the caller, and are never sent to the provider."""

RENAMED = {"allow_multiple_tool_calls": "parallel_tool_calls"}
"""Option of `ChatOptions` → its name in both APIs of OpenAI."""

_SCHEMA_KEYWORDS = frozenset({"properties", "anyOf", "oneOf", "allOf", "$ref", "$defs", "enum", "const", "items"})
_ENVELOPES = frozenset({"json_schema", "json_object", "text"})


def passed_on(options: ChatOptions, renamed: Mapping[str, str], without: frozenset[str]) -> JsonObject:
    """Return the options that are sent to the provider with unchanged values, under the names of the API.

    `renamed` maps names of options to names of the API. `without` has the options that the API does not support; they are left out.
    """
    names = {**RENAMED, **renamed}
    return {names.get(k, k): v for k, v in options.items() if v is not None and k not in OURS | _NEVER_SENT | without}


# -- tools -------------------------------------------------------------------------------------------------------


def offered(options: ChatOptions) -> tuple[list[ToolDefinition], list[JsonObject]]:
    """Return the tools in the options: definitions of tools that this program runs, and settings of hosted tools, which the provider runs.

    Raises:
        ChatClientInvalidRequestException: An item is not a tool.
    """
    ours: list[ToolDefinition] = []
    hosted: list[JsonObject] = []
    given = options.get("tools")
    if not given:
        return ours, hosted
    for tool in cast("Sequence[object]", given if isinstance(given, list | tuple) else [given]):
        definition = getattr(tool, "definition", None)
        if isinstance(definition, ToolDefinition):
            ours.append(definition)
        elif isinstance(tool, Mapping):
            hosted.append(dict(cast("JsonMapping", tool)))
        elif inspect.isroutine(tool):
            ours.append(FunctionTool(cast("Callable[..., object]", tool)).definition)
        else:
            text = f"{tool!r} is not a tool: pass a function, a FunctionTool or a hosted tool's settings."
            raise ChatClientInvalidRequestException(text)
    return ours, hosted


def tool_definitions(options: ChatOptions) -> list[tuple[str, str, JsonObject]]:
    """Return name, description and JSON Schema of the arguments of each tool in the options, without hosted tools."""
    return [(tool.name, tool.description or "", tool.input_schema) for tool in offered(options)[0]]


def tool_mode(options: ChatOptions) -> JsonObject:
    """Return the option `tool_choice` as an object: `{"mode": …}`, with `required_function_name` and `allowed_tools` if given.

    Raises:
        ChatClientInvalidRequestException: The mode is not `auto`, `none` or `required`, or a function is named in a mode other than
            `required`.
    """
    choice: object = options.get("tool_choice") or "auto"
    mode: JsonObject = dict(cast("JsonMapping", choice)) if isinstance(choice, Mapping) else {"mode": choice}
    if mode.get("mode") not in ("auto", "none", "required"):
        raise ChatClientInvalidRequestException(f"tool_choice {choice!r} is unknown: use 'auto', 'none', 'required' or a ToolMode.")
    if mode.get("required_function_name") is not None and mode["mode"] != "required":
        raise ChatClientInvalidRequestException("tool_choice names a required function, so its mode must be 'required'.")
    return mode


# -- answer format -----------------------------------------------------------------------------------------------


def answer_format(options: ChatOptions) -> JsonObject | None:
    """Return the option `response_format` in a common form, with `type` `json_schema`, `json_object` or `text`; `None` if it is not set.

    A JSON Schema is under the key `schema`, with a `name`: unchanged, or made from a pydantic model (`strictly`). `strict` is set if every
    object in the schema forbids additional properties and requires all its properties. A format of the API keeps the caller's `strict`.

    Raises:
        ChatClientInvalidRequestException: The value is not a pydantic model, a JSON Schema or a format of the API.
    """
    given: object = options.get("response_format")
    if given is None:
        return None
    if isinstance(given, type) and hasattr(given, "model_json_schema"):
        return _format(given.__name__, strictly(cast("_Model", given).model_json_schema()))
    if not isinstance(given, Mapping):
        raise ChatClientInvalidRequestException("response_format must be a pydantic model, a JSON Schema, or a format of the API.")
    form = dict(cast("JsonMapping", given))
    if isinstance(form.get("format"), Mapping):
        return dict(cast("JsonMapping", form["format"]))
    if form.get("type") in _ENVELOPES:
        return _envelope(form)
    if "type" not in form and not _SCHEMA_KEYWORDS & form.keys():
        raise ChatClientInvalidRequestException("response_format is neither a JSON Schema nor a format of the API.")
    return _format(str(form.get("title") or "answer"), form)


def _envelope(form: JsonObject) -> JsonObject:
    if form["type"] != "json_schema":
        return {"type": form["type"]}
    section: JsonObject = dict(form.get("json_schema") or {k: v for k, v in form.items() if k != "type"})
    if section.get("schema") is None:
        raise ChatClientInvalidRequestException("response_format of type json_schema needs a `schema`.")
    return {"type": "json_schema", **section, "name": section.get("name") or "answer"}


def _format(name: str, schema: JsonObject) -> JsonObject:
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:64] or "answer"
    return {"type": "json_schema", "name": safe, "schema": schema, **({"strict": True} if is_strict(schema) else {})}


def strictly(node: JsonValue) -> JsonValue:
    """Return a pydantic model's schema with `additionalProperties: false` in objects without this key, as the API's strict mode requires.

    Strict mode also requires that every property is required. A schema with an optional property is therefore sent without `strict`.
    """
    if isinstance(node, list):
        return [strictly(item) for item in cast("list[JsonValue]", node)]
    if not isinstance(node, dict):
        return node
    found: JsonObject = {key: strictly(value) for key, value in cast("JsonObject", node).items()}
    if found.get("type") == "object" and "properties" in found and "additionalProperties" not in found:
        found["additionalProperties"] = False
    return found


def is_strict(schema: JsonValue) -> bool:
    """Return whether every object in the schema forbids additional properties and requires all its properties."""
    if isinstance(schema, list):
        return all(is_strict(item) for item in cast("list[JsonValue]", schema))
    if not isinstance(schema, dict):
        return True
    node = cast("JsonObject", schema)
    properties = node.get("properties")
    if node.get("type") == "object" or isinstance(properties, dict):
        named = members_of(properties)
        if node.get("additionalProperties") is not False or set(named) != set(node.get("required") or ()):
            return False
        if not all(is_strict(child) for child in named.values()):
            return False
    return all(is_strict(value) for key, value in node.items() if key not in ("properties", "enum", "const", "default", "required"))


# -- provider options --------------------------------------------------------------------------------------------


class OpenAIChatOptions(ChatOptions, total=False):
    """Options of a call of OpenAI's Responses API, for type checkers. Options that this class does not declare are sent, too."""

    include: list[str]
    max_tool_calls: int
    prompt: JsonMapping
    prompt_cache_key: str
    prompt_cache_retention: str
    reasoning: JsonMapping
    """Settings of reasoning models: an object with `effort` and `summary`."""
    verbosity: str
    safety_identifier: str
    service_tier: str
    stream_options: JsonMapping
    top_logprobs: int
    truncation: str
    background: bool
    """Whether the provider continues the response if the connection ends. The response can be read later by its continuation token."""
    continuation_token: JsonMapping
    """Token of a background response. The call then returns the state of this response or streams its rest, instead of sending a new
    request."""


class OpenAIChatCompletionOptions(ChatOptions, total=False):
    """Options of a call of OpenAI's Chat Completions API, for type checkers. Options that this class does not declare are sent, too."""

    logprobs: bool
    top_logprobs: int
    prediction: JsonMapping
    modalities: list[str]
    audio: JsonMapping
    reasoning_effort: str
    prompt_cache_key: str
    safety_identifier: str
    service_tier: str
    verbosity: str
