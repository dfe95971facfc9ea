"""Generates JSON Schemas of Moongate's file formats from their pydantic models, for completion in editors.

`build_schema("gateway")` generates the schema of `gateway.json`; `schema_of` generates schemas from models of other packages, such as
agent and workflow files, in the same style. Used by `moongate schema`, which also writes the schemas in `config/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from gateway.config.docstrings import docstrings_of, models_within
from gateway.config.hosts import HEADER_VARIABLES, IGNORED_KEYS, IGNORED_ROOT_KEYS, KEY_ALIASES, TOOL_FILTERS, TYPE_ALIASES
from gateway.config.models import SOURCE_NAME_PATTERN, GatewayConfig
from gateway.json_types import JsonObject, JsonValue

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Untitled(GenerateJsonSchema):
    """Generator of JSON Schemas that omits the titles that pydantic makes from the keys."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def build_schema(kind: Literal["gateway"] = "gateway") -> JsonObject:
    """Return the JSON Schema of `gateway.json`, which also accepts the spellings of keys that other MCP hosts use."""
    schema = schema_of(GatewayConfig, title="Moongate: gateway.json")
    properties = cast("JsonObject", schema["properties"])
    servers = cast("JsonObject", properties["mcpServers"])
    servers["propertyNames"] = {"pattern": SOURCE_NAME_PATTERN}
    properties["servers"] = {**servers, "description": "VS Code's name for `mcpServers`."}
    schema["patternProperties"] = {_any_of(IGNORED_ROOT_KEYS): True}
    definitions = cast("JsonObject", schema["$defs"])
    for name in ("StdioServer", "HttpServer", "SseServer"):
        _admit_host_spellings(cast("JsonObject", definitions[name]))
    extras = definitions["SourcePolicy"]["properties"]["additionalArguments"]
    extras["anyOf"].append({"type": "string"})
    return schema


def schema_of(model: type[BaseModel], *, title: str) -> JsonObject:
    """Return the JSON Schema of a file format that the pydantic class `model` defines. Docstrings of fields become descriptions."""
    schema = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Untitled)
    definitions = cast("JsonObject", schema.get("$defs", {}))
    for definition in definitions.values():
        definition.pop("title", None)
    for name, cls in models_within(model).items():
        _describe(schema if cls is model else definitions.get(name, {}), docstrings_of(cls))
    return {"$schema": DIALECT, **schema, "title": title}


def _describe(definition: JsonObject, docstrings: Mapping[str, str]) -> None:
    """Add docstrings of fields as descriptions of an object schema's properties.

    `docstrings` maps the key of each field to its docstring. Keywords stay in alphabetical order, as pydantic writes them.
    """
    properties = cast("JsonObject", definition.get("properties", {}))
    for key, shape in properties.items():
        if key in docstrings:
            properties[key] = dict(sorted({"description": docstrings[key], **shape}.items()))


def _admit_host_spellings(entry: JsonObject) -> None:
    properties = cast("JsonObject", entry["properties"])
    kind = cast("JsonObject", properties["type"])
    own = cast("str", kind.pop("const"))
    kind["enum"] = [own, *(alias for alias, target in TYPE_ALIASES.items() if target == own)]
    if "env" in properties:
        properties["env"]["additionalProperties"] = {"type": ["string", "number", "null"]}
    foreign = [*IGNORED_KEYS, *TOOL_FILTERS, "enabled"]
    if "url" in properties:
        foreign += [*KEY_ALIASES, *HEADER_VARIABLES]
        entry["required"] = [key for key in cast("list[str]", entry["required"]) if key != "url"]
        spellings: list[JsonValue] = [{"required": [key]} for key in ("url", *(k for k, own in KEY_ALIASES.items() if own == "url"))]
        entry["anyOf"] = spellings
    entry["patternProperties"] = {_any_of(foreign): True}


def _any_of(names: Iterable[str]) -> str:
    return f"^(?:{'|'.join(re.escape(name) for name in sorted(names))})$"
