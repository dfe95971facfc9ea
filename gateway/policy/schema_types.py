"""Determines which types of values a schema accepts. Used by `policy.confinement`, `policy.lint` and its helpers.

Schemas come from peers: every walk is bounded, and an unreadable part accepts every type.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.json_types import JsonObject, JsonValue, as_object, items_of, members_of
from gateway.policy.tool_schemas import nodes_in_place, resolve_local

ALL_TYPES = frozenset({"string", "number", "array", "object", "boolean", "null"})
"""The types of JSON; an integer counts as a number."""

_MAX_DEPTH = 8
"""Maximum nesting of combinators and references that is followed."""


def declared_schema(schema: JsonObject, name: str) -> JsonValue:
    """Return the schema of argument `name` of a tool, from every place that declares it; `True` for an undeclared argument."""
    found = [part[name] for node in nodes_in_place(schema) if name in (part := members_of(node.get("properties")))]
    if not found:
        return True
    return found[0] if len(found) == 1 else {"anyOf": found}


def types_of(schema: JsonValue, root: JsonObject) -> frozenset[str]:
    """Return the types that `schema`, a part of the document `root`, accepts."""
    return _types(schema, root, {}, 0)


def _types(schema: JsonValue, root: JsonObject, known: dict[int, frozenset[str]], depth: int) -> frozenset[str]:
    """Return the types that `schema` accepts. `known` caches them by `id` of the part, so that a part with many references is read once."""
    node = as_object(schema)
    if node is None or depth > _MAX_DEPTH:
        return ALL_TYPES
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = ALL_TYPES  # for a reference back to this part
    admitted = ALL_TYPES
    written = node.get("type")
    if isinstance(written, str | list):
        names = [written] if isinstance(written, str) else [str(item) for item in items_of(written)]
        admitted &= {"number" if item == "integer" else item for item in names}
    values = [node["const"]] if "const" in node else node.get("enum")
    if isinstance(values, list):
        admitted &= {type_name(value) for value in items_of(values)}
    for key in ("anyOf", "oneOf"):
        if branches := items_of(node.get(key)):
            admitted &= frozenset[str]().union(*(_types(branch, root, known, depth + 1) for branch in branches))
    for branch in items_of(node.get("allOf")):
        admitted &= _types(branch, root, known, depth + 1)
    ref = node.get("$ref")
    if isinstance(ref, str):
        admitted &= _types(resolve_local(root, ref), root, known, depth + 1)
    known[id(node)] = admitted
    return admitted


def element_types(schema: JsonValue, root: JsonObject) -> frozenset[str]:
    """Return the types of a list's elements: every type if `schema` does not restrict them, an empty set if it accepts no list."""
    if "array" not in types_of(schema, root):
        return frozenset()
    known: dict[int, frozenset[str]] = {}
    found = [_types(items, root, known, 0) for items in _item_schemas(schema, root)]
    return frozenset[str]().union(*found) if found else ALL_TYPES


def _item_schemas(schema: JsonValue, root: JsonObject) -> Iterator[JsonValue]:
    """Yield the schemas for elements of a list, from `schema` and from its subschemas for the same value (`allOf`, `$ref` and others)."""
    waiting, seen = [schema], set[int]()
    while waiting:
        node = as_object(waiting.pop())
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if "prefixItems" in node or isinstance(node.get("items"), list):
            yield True
        elif "items" in node:
            yield node["items"]
        for key in ("anyOf", "oneOf", "allOf"):
            waiting += items_of(node.get(key))
        ref = node.get("$ref")
        if isinstance(ref, str):
            waiting.append(resolve_local(root, ref))


def type_name(value: JsonValue) -> str:
    """Return the JSON type of a value."""
    match value:
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "null"
