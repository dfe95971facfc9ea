"""`narrow`: a published schema accepts exactly what both the tool's schema and the operator's rule accept."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.policy.schema_check import SchemaCheck, measure
from gateway.policy.tool_schemas import narrow, read_cost

FRAGMENTS: list[dict[str, Any]] = [
    {},
    {"type": "string"},
    {"type": ["string", "null"]},
    {"type": "integer", "minimum": 2},
    {"type": "number", "exclusiveMaximum": 5, "minimum": 1},
    {"maximum": 3, "multipleOf": 2},
    {"minLength": 2, "maxLength": 3},
    {"pattern": "^a", "minLength": 1},
    {"pattern": "b$"},
    {"enum": ["ab", 2, None]},
    {"enum": ["ab", "abc"]},
    {"const": "ab"},
    {"const": 1},
    {"const": True},
    {"type": "array", "items": {"type": "string"}, "minItems": 1},
    {"prefixItems": [{"const": 1}], "items": {"type": "integer"}, "maxItems": 2},
    {"prefixItems": [{}], "uniqueItems": True},
    {"contains": {"const": 1}, "minContains": 2},
    {"type": "object", "properties": {"k": {"type": "string"}}, "additionalProperties": False},
    {"properties": {"m": {}}, "additionalProperties": False},
    {"type": "object", "required": ["k"]},
    {"required": ["m"], "unevaluatedProperties": False, "properties": {"m": {}}},
    {"anyOf": [{"type": "string"}, {"minimum": 2}]},
    {"oneOf": [{"minimum": 2}, {"multipleOf": 2}]},
    {"not": {"const": "ab"}},
    {"if": {"type": "string"}, "then": {"minLength": 3}, "else": {"maximum": 4}},
    {"allOf": [{"minLength": 2}], "description": "x"},
    {"$ref": "#/$defs/short"},
]
VALUES: list[Any] = [
    "", "ab", "abc", "b", "aab", 0, 1, 2, 3, 4, 5, 2.5, True, False, None, [], [1], [1, 1], [1, 2, 3], ["a"],
    {}, {"k": "x"}, {"k": 1}, {"m": 1}, {"k": "x", "m": 1},
]  # fmt: skip
DIALECTS = [None, "https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"]


def accepts(schema: dict[str, Any], value: Any) -> bool:
    return SchemaCheck(schema).find(value, measure(value)) is None


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("fragment", FRAGMENTS, ids=str)
def test_narrowed_property_demands_both_and_nothing_else(fragment: dict[str, Any], dialect: str | None) -> None:
    head: dict[str, Any] = {"$schema": dialect} if dialect else {}
    head = {**head, "type": "object", "$defs": {"short": {"maxLength": 2}}}
    for rule in FRAGMENTS:
        if "$ref" in rule:
            continue
        published = SchemaCheck(narrow({**head, "properties": {"a": fragment}}, {"a": [rule]}))
        own, ruled = (SchemaCheck({**head, "properties": {"a": part}}) for part in (fragment, rule))
        for value in VALUES:
            arguments = {"a": value}
            size = measure(arguments)
            both = own.find(arguments, size) is None and ruled.find(arguments, size) is None
            assert (published.find(arguments, size) is None) is both, (rule, value)


def test_property_declared_further_in_is_narrowed_as_well() -> None:
    for place in ("allOf", "anyOf", "oneOf"):
        schema = {"type": "object", place: [{"properties": {"a": {"type": "string"}}}]}
        narrowed = narrow(schema, {"a": [{"maxLength": 1}, {"minLength": 1}]})
        assert [accepts(narrowed, {"a": text}) for text in ("", "x", "xx")] == [False, True, False]


def test_narrowing_never_changes_the_original() -> None:
    schema: dict[str, Any] = {"properties": {"a": {"allOf": [{"minLength": 1}]}}, "allOf": [{"properties": {"b": {}}}]}
    before = repr(schema)
    narrow(schema, {"a": [{"not": {}}], "b": [{"const": 1}]})
    assert repr(schema) == before


def test_cost_counts_references_as_inlined_and_recursion_once() -> None:
    plain = read_cost({"properties": {"a": {"type": "string"}}})
    assert (plain.cost, plain.problem) == (4, None)
    definitions = {"x": {"enum": list(range(50))}}
    twice = read_cost({"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#/$defs/x"}}})
    assert 150 < twice.cost < 200
    assert read_cost({"$ref": "#", "properties": {"a": {"$ref": "#"}}}).problem is None


@pytest.mark.parametrize("pointer", ["#/$defs/0", "#/missing", "#/$defs/x/enum/99", "#/%zz", "#unknown", "x.json", ""])
def test_references_to_nowhere_cost_nothing_and_do_no_harm(pointer: str) -> None:
    assert read_cost({"$defs": {"x": {"enum": [1]}}, "properties": {"a": {"$ref": pointer}}}).problem is None
