"""What a value rule lets through although its author probably meant to stop it.

JSON Schema ignores what it does not know and what does not concern a value's type, so a rule with a typo, without a
type or with a pattern that may match anywhere fails open without a sound. Used by `policy.lint` only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import cast

from gateway.json_types import JsonObject, JsonValue
from gateway.policy.checking import SchemaCheck, measure
from gateway.policy.schemas import as_object, resolve_local

_CONCERNS: dict[str, frozenset[str]] = {
    "string": frozenset({"pattern", "minLength", "maxLength", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "array": frozenset({
        "items", "prefixItems", "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems", "additionalItems",
    }),
    "object": frozenset({
        "properties", "patternProperties", "additionalProperties", "propertyNames", "required", "minProperties", "maxProperties",
        "dependentRequired", "dependentSchemas", "unevaluatedProperties",
    }),
}  # fmt: skip
"""Type → keywords that say nothing about values of other types."""

_ANY_TYPE = frozenset({"type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
_SILENT = frozenset({
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$defs", "definitions",
    "contentEncoding", "contentMediaType", "contentSchema",
})  # fmt: skip
"""Known keywords that refuse nothing."""

_DEMANDING = _ANY_TYPE.union(*_CONCERNS.values()) | {"unevaluatedItems"}
_WORDS = {"string": "texts", "number": "numbers", "array": "lists", "object": "objects"}
_ALL_TYPES = frozenset({"string", "number", "array", "object", "boolean"})
_LITERAL_START = re.compile(r"\^((?:[A-Za-z0-9_/ ,:=@~-]|\\[./-])+)")


def left_open(name: str, rule: JsonObject, schema: JsonObject) -> Iterator[str]:
    """How `rule` for argument `name` of a tool with `schema` fails open, a sentence each."""
    for keyword in rule:
        if keyword not in _DEMANDING and keyword not in _SILENT and not keyword.startswith(("x-", "$")):
            close = get_close_matches(keyword, sorted(_DEMANDING), 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            yield f"{keyword!r} is no keyword of JSON Schema, so it is ignored.{hint}"
    if _DEMANDING.isdisjoint(rule):
        yield "the rule demands nothing, so it lets every value through."
        return
    possible = types_of(rule, rule) & types_of((as_object(schema.get("properties")) or {}).get(name, True), schema)
    for kind, keywords in _CONCERNS.items():
        used = sorted(keywords & rule.keys())
        others = possible - {kind}
        if used and others and _ANY_TYPE.isdisjoint(rule.keys() - {"type"}):
            yield f"{used[0]!r} only judges {_WORDS[kind]}, and other values pass: add \"type\": \"{kind}\"."
    pattern = rule.get("pattern")
    if isinstance(pattern, str) and not all(branch.startswith(("^", "\\A", "(?i)^")) for branch in _branches(pattern)):
        yield "the pattern may match anywhere in the text: begin it (and each alternative of it) with '^'."


def worth_knowing(name: str, rule: JsonObject, schema: JsonObject, *, always_given: bool) -> Iterator[str]:
    """What an author of `rule` may overlook; no mistake by itself. `always_given`: an override sends the argument in any case."""
    required = schema.get("required")
    if not always_given and not (isinstance(required, list) and name in required):
        yield "the argument is optional, and a call without it is not judged by this rule; an override can give a default."
    pattern = rule.get("pattern")
    start = _LITERAL_START.match(pattern) if isinstance(pattern, str) else None
    if start is None or "/" not in start.group(1):
        return
    sample = f"{start.group(1).replace(chr(92), '').rpartition('/')[0]}/../x"
    if SchemaCheck(rule).find(sample, measure(sample)) is None:
        yield f"{sample!r} passes; refuse '..' too unless the server does, e.g. by \"not\": {{\"pattern\": \"(^|/)[.][.](/|$)\"}}."


def types_of(schema: JsonValue, root: JsonObject, depth: int = 0) -> frozenset[str]:
    """The types a schema admits, as far as reading tells; integers count as numbers, null as nothing given."""
    node = as_object(schema)
    if node is None or depth > 8:
        return _ALL_TYPES
    admitted = _ALL_TYPES
    written = node.get("type")
    if isinstance(written, str | list):
        names = [written] if isinstance(written, str) else [str(item) for item in cast("list[JsonValue]", written)]
        admitted &= {"number" if item == "integer" else item for item in names}
    values = [node["const"]] if "const" in node else node.get("enum")
    if isinstance(values, list):
        admitted &= {_type_name(value) for value in cast("list[JsonValue]", values)}
    for key in ("anyOf", "oneOf"):
        branches = node.get(key)
        if isinstance(branches, list) and branches:
            admitted &= frozenset[str]().union(*(types_of(branch, root, depth + 1) for branch in cast("list[JsonValue]", branches)))
    ref = node.get("$ref")
    if isinstance(ref, str):
        admitted &= types_of(resolve_local(root, ref), root, depth + 1)
    return admitted


def _type_name(value: JsonValue) -> str:
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


def _branches(pattern: str) -> list[str]:
    """The alternatives of a pattern at its top level."""
    found: list[str] = [""]
    depth, in_class, skip = 0, False, False
    for character in pattern:
        if skip:
            skip = False
        elif character == "\\":
            skip = True
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "|" and depth == 0:
            found.append("")
            continue
        found[-1] += character
    return found
