"""Reads the JSON Schemas of tools: which arguments a schema declares, and how much work it is to check arguments against the schema.

The module also merges an operator's rules into the schema that clients see. Schemas come from remote servers, so every walk over a schema
is bounded and none is recursive. Used by `policy.argument_policy`, `policy.schema_check` and other modules of `policy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote

from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_object, children_of, items_of, members_of

MAX_SCHEMA_DEPTH = 128
"""Maximum nesting of a tool's schema as JSON. The deepest schema seen in a published tool has 31 levels; the validator stops at 255."""

MAX_SCHEMA_NODES = 100_000
"""Maximum number of JSON values in a tool's schema. The largest schema seen in a published tool has about 9,000."""

MAX_SCHEMA_COST = 200_000
"""Maximum number of JSON values in a tool's schema after every `$ref` is expanded. Rejects schemas whose expansion grows exponentially."""

MAX_PATTERNS = 2_000
"""Maximum number of regular expressions in a tool's schema. Each takes up to a millisecond to compile."""

MAX_UNCERTAIN_REFS = 16
"""Maximum number of references whose target is unclear without resolving `$id` or relative URIs, so that their cost is not counted.

So few references cannot make the expanded schema exponentially large.
"""

APPLICATORS = ("if", "then", "else")
LISTS = ("allOf", "anyOf", "oneOf")
_MAPS = ("dependentSchemas", "dependencies")
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")

_FLAT = frozenset({
    "type", "enum", "const", "pattern", "format", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "required",
    "description", "title", "examples",
})  # fmt: skip
"""JSON Schema keywords whose meaning does not depend on neighbouring keywords, so that they can be moved from a rule into a schema."""


def is_2020_12(schema: JsonMapping) -> bool:
    """Return whether a JSON Schema has the dialect 2020-12: `$schema` names it or is absent (MCP's default dialect, SEP-1613)."""
    return "2020-12" in str(schema.get("$schema", "2020-12"))


# -- declared names ------------------------------------------------------------------------------------------------


def declared_names(schema: JsonValue) -> frozenset[str]:
    """Return the names of the arguments that a tool's input schema declares: the keys of `properties`, without `_meta`.

    `properties` in subschemas that apply to the same value count too: under `allOf`, `anyOf`, `oneOf`, `if`, `then`, `else`,
    `dependentSchemas` and a local `$ref`. `additionalProperties: true`, and `properties` that are not an object, declare nothing.
    """
    names: set[str] = set()
    for node in nodes_in_place(members_of(schema)):
        names.update(members_of(node.get("properties")))
    names.discard("_meta")
    return frozenset(names)


def nodes_in_place(root: JsonObject) -> Iterator[JsonObject]:
    """Yield `root` and every subschema that applies to the same value as `root`, such as the subschemas in `allOf`, each once."""
    stack: list[JsonValue] = [root]
    seen: set[int] = set()
    while stack:
        node = as_object(stack.pop())
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        stack.extend(_applied_in_place(node, root))


def _applied_in_place(node: JsonObject, root: JsonObject) -> Iterator[JsonValue]:
    for key in APPLICATORS:
        yield node.get(key)
    for key in LISTS:
        yield from items_of(node.get(key))
    for key in _MAPS:
        yield from members_of(node.get(key)).values()
    for key in _REFS:
        target = node.get(key)
        if isinstance(target, str):
            yield resolve_local(root, target)


def resolve_local(root: JsonObject, ref: str) -> JsonValue:
    """Return the part of the schema `root` to which the `$ref` value `ref` points, or `None` if it points elsewhere or to nothing.

    Supported are `#`, JSON pointers such as `#/a/b`, and `#name` for the `$anchor` of a definition.
    """
    if ref == "#":
        return root
    if ref.startswith("#/"):
        return _follow_pointer(root, ref[2:])
    if ref.startswith("#"):
        for key in ("$defs", "definitions"):
            for definition in members_of(root.get(key)).values():
                node = members_of(definition)
                if ref[1:] in (node.get("$anchor"), node.get("$dynamicAnchor")):
                    return node
    return None


def _follow_pointer(root: JsonObject, pointer: str) -> JsonValue:
    node: JsonValue = root
    for raw in pointer.split("/"):
        part = unquote(raw).replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = cast("JsonObject", node).get(part)
        elif isinstance(node, list) and part.isascii() and part.isdigit() and len(part) < 9:
            items = cast("list[JsonValue]", node)
            node = items[int(part)] if int(part) < len(items) else None
        else:
            return None
    return node


# -- cost ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SchemaCost:
    """How much work one check of a value against a schema can cost, estimated from the schema alone."""

    cost: int = 0
    """Number of JSON values in the schema with every local reference expanded; 0 if there is a `problem`.

    A recursion counts once, because the validator caches it."""
    patterns: int = 0
    """Number of regular expressions in the schema."""
    problem: str | None = None
    """Why the schema exceeds a limit and cannot be used, as the end of a sentence whose subject is the schema; `None` if it can be used."""


@dataclass(slots=True)
class _Reading:
    """Sizes of a part of a schema, counted in one walk: values, nesting, patterns, `$id`s below the root, and references in it."""

    nodes: int = 0
    depth: int = 0
    patterns: int = 0
    nested_ids: int = 0
    refs: list[str] = field(default_factory=lambda: cast("list[str]", []))


def read_cost(schema: JsonObject) -> SchemaCost:
    """Return the cost of a check against a schema, or the limit that the schema exceeds, such as `MAX_SCHEMA_NODES`."""
    whole = _read(schema)
    if whole.depth > MAX_SCHEMA_DEPTH:
        return SchemaCost(problem=f"is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    if whole.nodes > MAX_SCHEMA_NODES:
        return SchemaCost(problem=f"has more than {MAX_SCHEMA_NODES} values")
    if whole.patterns > MAX_PATTERNS:
        return SchemaCost(problem=f"has more than {MAX_PATTERNS} patterns")
    uncertain = len(whole.refs) if whole.nested_ids else sum(1 for ref in whole.refs if not ref.startswith("#"))
    if uncertain > MAX_UNCERTAIN_REFS:
        return SchemaCost(problem=f"has more than {MAX_UNCERTAIN_REFS} references that only `$id` resolves")
    cost = _expanded(schema, whole) if whole.refs else whole.nodes
    if cost > MAX_SCHEMA_COST:
        return SchemaCost(problem=f"has more than {MAX_SCHEMA_COST} values once its references are expanded")
    return SchemaCost(cost, whole.patterns)


def _read(schema: JsonValue) -> _Reading:
    found = _Reading()
    level: list[JsonValue] = [schema]
    root = True
    while level and found.depth <= MAX_SCHEMA_DEPTH and found.nodes <= MAX_SCHEMA_NODES:
        found.depth += 1
        below: list[JsonValue] = []
        for item in level:
            node = as_object(item)
            if node is not None:
                _note_keywords(node, found, is_root=root)
            below.extend(children_of(item))
        root = False
        found.nodes += len(level)
        level = below
    return found


def _note_keywords(node: JsonObject, found: _Reading, *, is_root: bool) -> None:
    found.refs.extend(node[key] for key in _REFS if isinstance(node.get(key), str))
    found.patterns += isinstance(node.get("pattern"), str) + len(members_of(node.get("patternProperties")))
    found.nested_ids += not is_root and isinstance(node.get("$id"), str)


def _expanded(schema: JsonObject, whole: _Reading) -> int:
    """Return the number of JSON values in a schema with its references expanded.

    A result above `MAX_SCHEMA_COST` is not exact: it only says that the limit is exceeded. `whole` contains the sizes of the schema without
    expansion.
    """
    readings: dict[str, _Reading] = {"": whole}
    waiting = list(whole.refs)
    work = whole.nodes
    while waiting:
        ref = waiting.pop()
        if ref in readings:
            continue
        readings[ref] = _read(resolve_local(schema, ref))
        work += readings[ref].nodes
        if work > 20 * MAX_SCHEMA_NODES:
            return MAX_SCHEMA_COST + 1
        waiting.extend(readings[ref].refs)
    return _total("", readings)


def _total(start: str, readings: Mapping[str, _Reading]) -> int:
    totals: dict[str, int] = {}
    open_: set[str] = set()
    stack = [start]
    while stack:
        name = stack[-1]
        missing = [ref for ref in set(readings[name].refs) if ref not in totals and ref not in open_]
        if name not in totals and missing:
            open_.add(name)
            stack.extend(missing)
            continue
        stack.pop()
        open_.discard(name)
        if name not in totals:
            total = readings[name].nodes + sum(totals.get(ref, 0) for ref in readings[name].refs)
            totals[name] = min(total, MAX_SCHEMA_COST + 1)
    return totals[start]


# -- narrowing -----------------------------------------------------------------------------------------------------


def narrow(schema: JsonObject, rules: Mapping[str, Sequence[JsonObject]]) -> JsonObject:
    """Return a tool's input schema with the operator's rules added, as a new object that shares unchanged parts with the original.

    `rules` maps arguments to JSON Schemas. A rule is merged into the argument's schema if the meaning stays the same, otherwise added under
    `allOf`, so that the schema never accepts more values of a declared argument. A rule for an undeclared argument declares it.
    """
    properties = dict(members_of(schema.get("properties")))
    declared = declared_names(schema)
    elsewhere: JsonObject = {}
    for name, fragments in rules.items():
        if name in properties or (name not in declared and "$ref" not in schema):
            for fragment in fragments:
                properties[name] = _merge(properties.get(name, True), fragment, modern=is_2020_12(schema))
        else:
            elsewhere[name] = fragments[0] if len(fragments) == 1 else {"allOf": list(fragments)}
    result = {**schema, "properties": properties} if properties else dict(schema)
    if not elsewhere:
        return result
    branches: list[JsonValue] = [{"properties": elsewhere}]
    if "$ref" in result and not is_2020_12(schema):  # dialects before 2019-09 ignore keywords beside `$ref`
        branches.insert(0, {"$ref": result.pop("$ref")})
    result["allOf"] = [*items_of(result.get("allOf")), *branches]
    return result


def _merge(schema: JsonValue, rule: JsonObject, *, modern: bool) -> JsonValue:
    """Return a schema that accepts only values that both `schema` and `rule` accept: as one object if possible, otherwise with `allOf`.

    `modern`: the dialect is 2020-12, in which keywords beside `$ref` count.
    """
    if schema is True or schema == {}:
        return dict(rule)
    node = as_object(schema)
    if node is None:
        return schema
    if node == rule and repr(node) == repr(rule):  # `1 == True` in Python, but not in JSON
        return node
    if "$ref" in node and not modern:
        return {"allOf": [node, rule]}
    merged = dict(node)
    rest: JsonObject = {}
    for key, wanted in rule.items():
        if key in _FLAT and key in node:
            fits, value = _tighter(key, node[key], wanted)
        else:
            fits, value = key in _FLAT, wanted
        (merged if fits else rest)[key] = value
    if rest:
        merged["allOf"] = [*items_of(node.get("allOf")), rest]
    return merged


def _tighter(key: str, present: JsonValue, wanted: JsonValue) -> tuple[bool, JsonValue]:
    """Combine two values of the JSON Schema keyword `key`, such as two maximums, into a single value that requires what both require.

    Return `True` and the combined value, or `False` and `wanted` if the two values cannot be combined.
    """
    if key == "description" and isinstance(present, str) and isinstance(wanted, str) and present != wanted:
        return True, f"{present} {wanted}".strip()
    if key in ("description", "title", "examples") or (present == wanted and type(present) is type(wanted)):
        return True, present
    numbers = isinstance(present, int | float) and isinstance(wanted, int | float)
    if numbers and not isinstance(present, bool) and not isinstance(wanted, bool):
        if key in ("minimum", "minLength", "minItems", "minProperties", "exclusiveMinimum"):
            return True, max(present, wanted)
        if key in ("maximum", "maxLength", "maxItems", "maxProperties", "exclusiveMaximum"):
            return True, min(present, wanted)
    return False, wanted
