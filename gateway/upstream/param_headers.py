"""The headers in which a modern request repeats what it holds: `Mcp-Name`, and arguments that a tool's schema marks with `x-mcp-header`.

The same rules as the SDK's, which takes longer to load than a gateway takes to start (`tests/upstream/test_param_headers.py` compares).
Source: the 2026-07-28 transport specification, "Custom Headers".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Generator, Mapping
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue

MARK = "x-mcp-header"
"""Keyword of a property whose value is repeated in the header that it names."""

PREFIX = "Mcp-Param-"
"""Begins the names of such headers."""

Path = tuple[str, ...]
"""Names of properties, from the whole of the arguments inwards."""

_PLAIN = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
_ENCODED = re.compile(r"=\?base64\?.*\?=")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TYPES = ("string", "integer", "boolean")

_ONE = frozenset(
    {
        "items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties",
        "not", "if", "then", "else", "contentSchema",
    }
)  # fmt: skip
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords that hold schemas: one, a list, by name. What they hold has no place in the arguments that could be named."""


def encode_header_value(value: str) -> str:
    """The value as a header carries it: as it is where that is safe, else in the form that says so itself."""
    if _PLAIN.fullmatch(value) and not _ENCODED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode('ascii')}?="


def marked_headers(schema: JsonMapping) -> dict[Path, str] | None:
    """Which arguments are repeated in which headers (without `PREFIX`); `None` where the schema marks in a way that is not allowed."""
    found: dict[Path, str] = {}
    for path, place in _places(schema):
        if MARK not in place:
            continue
        header = place[MARK]
        if not path or not isinstance(header, str) or not _TOKEN.fullmatch(header) or place.get("type") not in _TYPES:
            return None
        found[path] = header
    return found if len({header.lower() for header in found.values()}) == len(found) else None


def param_headers(marked: Mapping[Path, str], arguments: JsonMapping) -> dict[str, str]:
    """The headers that repeat these arguments; none for one that is absent, null, or no plain value."""
    headers: dict[str, str] = {}
    for path, header in marked.items():
        text = _text_of(_value_at(arguments, path))
        if text is not None:
            headers[PREFIX + header] = encode_header_value(text)
    return headers


def _places(schema: JsonMapping) -> Generator[tuple[Path | None, JsonObject]]:
    """Every schema within, with the path of the arguments it describes where it has one. Not recursive: a schema may be deep."""
    waiting: list[tuple[Path | None, JsonValue]] = [((), cast("JsonObject", schema))]
    while waiting:
        path, node = waiting.pop()
        if not isinstance(node, dict):
            continue
        place = cast("JsonObject", node)
        yield path, place
        for keyword, value in place.items():
            if keyword == "properties" and isinstance(value, dict):
                named = cast("JsonObject", value).items()
                waiting += [((*path, name) if path is not None else None, inner) for name, inner in named]
            elif keyword in _ONE:
                waiting.append((None, value))
            elif keyword in _LISTS and isinstance(value, list):
                waiting += [(None, inner) for inner in cast("list[JsonValue]", value)]
            elif keyword in _MAPS and isinstance(value, dict):
                waiting += [(None, inner) for inner in cast("JsonObject", value).values()]


def _value_at(arguments: JsonMapping, path: Path) -> JsonValue:
    node: JsonValue = cast("JsonObject", arguments)
    for name in path:
        if not isinstance(node, dict):
            return None
        node = cast("JsonObject", node).get(name)
    return node


def _text_of(value: JsonValue) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        return None
    try:
        return str(value)
    except ValueError:  # a number of thousands of digits
        return None
