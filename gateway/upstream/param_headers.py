"""The headers of a 2026 request that mirror its body: `Mcp-Name`, and arguments that a tool's schema marks with `x-mcp-header`.

The rules are the SDK's (MCP 2026-07-28, transports, "Custom Headers"). They are repeated here because importing the SDK takes longer than
starting a gateway; `tests/upstream/test_param_headers.py` compares both.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Generator, Mapping
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_object, items_of, members_of

MARK = "x-mcp-header"
"""Keyword of a property whose value is mirrored in the header that it names."""

PREFIX = "Mcp-Param-"
"""Prefix of the names of headers that mirror arguments."""

Path = tuple[str, ...]
"""Property names from the arguments object inwards."""

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
"""Schema keywords that hold a schema, a list of schemas, or schemas by name, and describe values at no fixed path in the arguments."""


def encode_header_value(value: str) -> str:
    """Return the value as a header carries it: unchanged if that is safe, else as `=?base64?…?=`."""
    if _PLAIN.fullmatch(value) and not _ENCODED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode('ascii')}?="


def marked_headers(schema: JsonMapping) -> dict[Path, str] | None:
    """Return which arguments are mirrored in which headers (without `PREFIX`), or `None` if the schema marks properties in an invalid way.
    """
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
    """Return the headers for these arguments. An argument that is missing, or neither text, number nor boolean, has no header."""
    headers: dict[str, str] = {}
    for path, header in marked.items():
        text = _text_of(_value_at(arguments, path))
        if text is not None:
            headers[PREFIX + header] = encode_header_value(text)
    return headers


def _places(schema: JsonMapping) -> Generator[tuple[Path | None, JsonObject]]:
    """Yield `schema` and every schema inside it, with the path of the argument that it describes, if any. Not recursive: it may be deep."""
    waiting: list[tuple[Path | None, JsonValue]] = [((), cast("JsonObject", schema))]
    while waiting:
        path, node = waiting.pop()
        place = as_object(node)
        if place is None:
            continue
        yield path, place
        for keyword, value in place.items():
            if keyword == "properties":
                waiting += [((*path, name) if path is not None else None, inner) for name, inner in members_of(value).items()]
            elif keyword in _ONE:
                waiting.append((None, value))
            elif keyword in _LISTS:
                waiting += [(None, inner) for inner in items_of(value)]
            elif keyword in _MAPS:
                waiting += [(None, inner) for inner in members_of(value).values()]


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
    except ValueError:  # an integer with thousands of digits
        return None
