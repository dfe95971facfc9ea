"""Makes the HTTP headers of an MCP 2026 request that repeat parts of its body: arguments that a tool's schema marks with `x-mcp-header`.

The rules are those of MCP 2026-07-28 (transports, "Custom Headers"). The MCP SDK implements them too, but importing the SDK takes longer
than starting a gateway; `tests/upstream/test_param_headers.py` compares the two implementations. `encode_header_value` also encodes
`Mcp-Name`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Generator, Mapping
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_object, items_of, members_of

MARK = "x-mcp-header"
"""Keyword in a tool's input schema: the property's value is repeated in the HTTP header `Mcp-Param-<value of the keyword>`."""

PREFIX = "Mcp-Param-"
"""Prefix of the names of HTTP headers that repeat arguments of a call."""

Path = tuple[str, ...]
"""Path of an argument in the arguments of a call: the names of the nested properties, outermost first."""

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
"""JSON Schema keywords that contain schemas: one schema (`_ONE`), a list of schemas (`_LISTS`), or an object of schemas by name (`_MAPS`).

A value that one of these schemas describes has no fixed path in the arguments, so it cannot be repeated in a header.
"""


def encode_header_value(value: str) -> str:
    """Encode a text as the value of an HTTP header: `=?base64?…?=`, or unchanged if it is printable ASCII without spaces at its ends.

    A text that already looks like `=?base64?…?=` is encoded too.
    """
    if _PLAIN.fullmatch(value) and not _ENCODED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode('ascii')}?="


def marked_headers(schema: JsonMapping) -> dict[Path, str] | None:
    """Return the arguments that a tool's input schema marks with `x-mcp-header`: argument path → header name without `PREFIX`.

    Return `None` if a mark is invalid. A valid mark is on a string, integer or boolean whose path in the arguments is fixed. The value of
    the mark is valid as part of a header name, and differs from the values of all other marks.
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
    """Return the HTTP headers that repeat the `marked` arguments of a call: header name → encoded value.

    An argument that is missing, or is not a string, number or boolean, gets no header.
    """
    headers: dict[str, str] = {}
    for path, header in marked.items():
        text = _text_of(_value_at(arguments, path))
        if text is not None:
            headers[PREFIX + header] = encode_header_value(text)
    return headers


def _places(schema: JsonMapping) -> Generator[tuple[Path | None, JsonObject]]:
    """Yield `schema` and each nested schema, with the path of the argument that the schema describes; `None` if the path is not fixed.

    Not a recursive function, because a server's schema may be nested deeply.
    """
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
