"""`plain_entry`: converts an entry of a listing (a tool, resource or prompt) to the form that the MCP SDK's models would send.

It does this without the models. Like the models, it leaves out keys that the protocol does not define. It does not convert an entry that
the models might reject or change. Used by `plain_answers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue

Check = Callable[[JsonValue], JsonValue]
"""A function that returns a JSON value as the MCP SDK's models would send it; `None` if only these models can convert the value."""


def _text(value: JsonValue) -> JsonValue:
    return value if isinstance(value, str) else None


def _flag(value: JsonValue) -> JsonValue:
    return value if isinstance(value, bool) else None


def _whole(value: JsonValue) -> JsonValue:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _share(value: JsonValue) -> JsonValue:
    return value if isinstance(value, float) and 0.0 <= value <= 1.0 else None


def _one_of(*words: str) -> Check:
    return lambda value: value if value in words else None


def _list_of(check: Check) -> Check:
    def checked(value: JsonValue) -> JsonValue:
        if not isinstance(value, list):
            return None
        kept = [check(item) for item in cast("list[JsonValue]", value)]
        return None if any(item is None for item in kept) else kept

    return checked


def _open_object(value: JsonValue) -> JsonValue:
    """Return `value` if it is a JSON object without null values; else `None`, because the SDK's models would drop keys with null values."""
    if not isinstance(value, dict):
        return None
    fields = cast("JsonObject", value)
    return fields if None not in fields.values() else None


def _schema(value: JsonValue) -> JsonValue:
    if _open_object(value) is None or not isinstance(cast("JsonMapping", value).get("$schema", ""), str):
        return None
    return value


def _input_schema(value: JsonValue) -> JsonValue:
    return value if _schema(value) is not None and cast("JsonMapping", value).get("type") == "object" else None


def _object(required: Mapping[str, Check], optional: Mapping[str, Check]) -> Callable[[JsonValue], JsonObject | None]:
    checks = {**required, **optional}

    def checked(value: JsonValue) -> JsonObject | None:
        if not isinstance(value, dict) or not required.keys() <= value.keys():
            return None
        kept: JsonObject = {}
        for key, held in cast("JsonMapping", value).items():
            check = checks.get(key)
            if check is None or (held is None and key in optional):
                continue
            sent = check(held)
            if sent is None:
                return None
            kept[key] = sent
        return kept

    return checked


_ICON = _object({"src": _text}, {"mimeType": _text, "sizes": _list_of(_text), "theme": _one_of("light", "dark")})
_ICONS = _list_of(_ICON)
_ANNOTATIONS = _object({}, {"audience": _list_of(_one_of("assistant", "user")), "lastModified": _text, "priority": _share})
_HINTS = dict.fromkeys(("destructiveHint", "idempotentHint", "openWorldHint", "readOnlyHint"), _flag)
_SHARED: Mapping[str, Check] = {"title": _text, "description": _text, "icons": _ICONS, "_meta": _open_object}
_CONTENT: Mapping[str, Check] = {**_SHARED, "annotations": _ANNOTATIONS, "mimeType": _text}
_ARGUMENT = _object({"name": _text}, {"title": _text, "description": _text, "required": _flag})

_TOOL: tuple[Mapping[str, Check], Mapping[str, Check]] = (
    {"name": _text, "inputSchema": _input_schema},
    {**_SHARED, "outputSchema": _schema, "annotations": _object({}, {"title": _text, **_HINTS})},
)
_EXECUTION = _object({}, {"taskSupport": _one_of("forbidden", "optional", "required")})

_ENTRIES: Mapping[str, Callable[[JsonValue], JsonObject | None]] = {
    "tools": _object(*_TOOL),
    "resources": _object({"name": _text, "uri": _text}, {**_CONTENT, "size": _whole}),
    "templates": _object({"name": _text, "uriTemplate": _text}, _CONTENT),
    "prompts": _object({"name": _text}, {**_SHARED, "arguments": _list_of(_ARGUMENT)}),
}


_TOOL_OF_2025 = _object(_TOOL[0], {**_TOOL[1], "execution": _EXECUTION})


def are_icons(value: JsonValue) -> bool:
    """Whether `value` is a JSON list of icons that the MCP SDK's models would accept unchanged."""
    return _ICONS(value) is not None


def plain_entry(kind: str, entry: JsonObject, *, is_modern: bool) -> JsonObject | None:
    """Convert an entry of a listing to the form that the MCP SDK's models would send; `None` if the models might reject or change it.

    `kind` is `tools`, `resources`, `templates` or `prompts`. Tools have one more key, `execution`, for 2025 clients.
    """
    if is_modern:
        return _ENTRIES[kind](entry)
    if not _is_plain_schema(entry.get("inputSchema")) or not _is_plain_schema(entry.get("outputSchema")):
        return None
    return _TOOL_OF_2025(entry) if kind == "tools" else _ENTRIES[kind](entry)


def _is_plain_schema(value: JsonValue) -> bool:
    if not isinstance(value, dict):
        return value is None
    schema = cast("JsonMapping", value)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not all(isinstance(held, dict | bool) for held in cast("JsonMapping", properties).values()):
        return False
    return isinstance(required, list) and all(isinstance(name, str) for name in cast("list[JsonValue]", required))
