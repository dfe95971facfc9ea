"""Determines which JSON types a JSON Schema accepts. Used to complete and examine the operator's rules for arguments.

Used by `policy.confinement`, `policy.lint`, `policy.open_rules`, `policy.argument_kinds` and `policy.schema_check`. Schemas come from
remote servers: every walk over a schema is bounded, and a part that cannot be read counts as accepting every type.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.json_types import JsonObject, JsonValue, as_object, items_of, members_of
from gateway.policy.tool_schemas import nodes_in_place, resolve_local

ALL_TYPES = frozenset({"string", "number", "array", "object", "boolean", "null"})
"""All JSON types, as named in JSON Schema; an integer counts as a number."""

_MAX_DEPTH = 8
"""Maximum nesting of `allOf`, `anyOf`, `oneOf` and `$ref` that is followed; a deeper part counts as accepting every type."""


def declared_schema(schema: JsonObject, name: str) -> JsonValue:
    """Return the schema of the argument `name` from a tool's input schema; `True` if the argument is not declared.

    If several parts of the input schema declare the argument, such as branches of `anyOf`, the result is an `anyOf` of their schemas.
    """
    found = [part[name] for node in nodes_in_place(schema) if name in (part := members_of(node.get("properties")))]
    if not found:
        return True
    return found[0] if len(found) == 1 else {"anyOf": found}


def types_of(schema: JsonValue, root: JsonObject) -> frozenset[str]:
    """Return the JSON types that `schema` may accept. `root` is the document that contains it, in which `$ref` is resolved.

    Only `type`, `enum`, `const`, `anyOf`, `oneOf`, `allOf` and `$ref` are examined: a type that `not` excludes, for example, is included.
    """
    return _types(schema, root, {}, 0)


def _types(schema: JsonValue, root: JsonObject, known: dict[int, frozenset[str]], depth: int) -> frozenset[str]:
    """Return the JSON types that `schema` may accept, as `types_of` does.

    `known` caches the types by `id` of the schema's part, so that a part to which many references point is read once.
    """
    node = as_object(schema)
    if node is None or depth > _MAX_DEPTH:
        return ALL_TYPES
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = ALL_TYPES  # result for a reference from inside this part back to it
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
    """Return the JSON types that `schema` accepts for the elements of a list; an empty set if it accepts no list.

    `root` is the document that contains `schema`, in which `$ref` is resolved.
    """
    if "array" not in types_of(schema, root):
        return frozenset()
    known: dict[int, frozenset[str]] = {}
    found = [_types(items, root, known, 0) for items in _item_schemas(schema, root)]
    return frozenset[str]().union(*found) if found else ALL_TYPES


def _item_schemas(schema: JsonValue, root: JsonObject) -> Iterator[JsonValue]:
    """Yield the schemas for the elements of a list: `items` of `schema`, and of its subschemas for the same list (`allOf`, `$ref`, …).

    Where elements at different positions have different schemas (`prefixItems`), yield `True`: any value.
    """
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
