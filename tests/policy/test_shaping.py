"""Changes to published tools: withheld and added arguments, schemas, names and texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config.policies import ToolOverride
from gateway.policy.shaping import Filling, plan_arguments, public_names, shown_texts, with_defaults, with_properties, without_arguments


def override(**rules: Any) -> ToolOverride:
    return ToolOverride.model_validate(rules)


def plan(rule: ToolOverride | None, *, extra: str = "", denied: str = "") -> tuple[str, dict[str, str], Any]:
    names = frozenset("abc")
    found = plan_arguments("read", names, frozenset(extra), frozenset(denied), rule)
    filling = None if found.filling is None else (found.filling.defaults, found.filling.fixed)
    return "".join(sorted(found.accepted)), dict(found.withheld), filling


def test_declared_and_extra_arguments_are_accepted() -> None:
    assert plan(None) == ("abc", {}, None)
    assert plan(None, extra="x", denied="ab") == ("cx", {"a": "frameworkNames", "b": "frameworkNames"}, None)
    assert plan(None, extra="a", denied="a") == ("abc", {}, None)


def test_override_hides_fixes_and_fills_only_declared_arguments() -> None:
    assert plan(override(hide=["a", "z"])) == ("bc", {"a": "overrides.read.hide"}, None)
    assert plan(override(fixed={"a": 1, "z": 2})) == ("bc", {"a": "overrides.read.fixed"}, ({}, {"a": 1}))
    assert plan(override(defaults={"b": 3, "z": 4})) == ("abc", {}, ({"b": 3}, {}))
    assert plan(override(fixed={"x": 1}), extra="x") == ("abc", {"x": "overrides.read.fixed"}, ({}, {"x": 1}))
    assert plan(override(hide=["b"]), denied="a") == ("c", {"a": "frameworkNames", "b": "overrides.read.hide"}, None)


def test_fixed_values_win_over_the_callers_and_defaults_do_not() -> None:
    defaults, fixed, given = {"a": [1], "b": 2}, {"c": [3]}, {"b": 5, "c": 6}
    filled = Filling(defaults, fixed).fill(given)
    assert filled == {"a": [1], "b": 5, "c": [3]}
    assert filled["a"] is not defaults["a"] and filled["c"] is not fixed["c"]
    assert given == {"b": 5, "c": 6}


PLAIN: dict[str, Any] = {"type": "object", "properties": {"a": {}, "b": {"type": "string"}}, "required": ["a", "b"]}


SCHEMAS: list[tuple[dict[str, Any], bool]] = [
    ({"properties": {}}, True),
    ({"type": "object"}, False),
    ({"properties": "odd"}, False),
    ({"allOf": [{"properties": {"a": {}}}]}, True),
    ({"allOf": [{}]}, False),
    ({"properties": [], "allOf": [{"properties": {"a": {}}}]}, False),
]


@pytest.mark.parametrize(("schema", "has_properties"), SCHEMAS)
def test_schema_without_readable_properties_gets_empty_ones(schema: dict[str, Any], has_properties: bool) -> None:
    found = with_properties(schema)
    assert (found is schema) is has_properties
    assert has_properties or found == {**schema, "properties": {}}


ROWS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (PLAIN, {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}),
    ({"properties": {"a": {}}, "required": ["a"]}, {"properties": {}}),
    ({"required": ["a", 5]}, {"required": [5]}),
    ({"properties": {"b": {}}, "required": []}, {"properties": {"b": {}}, "required": []}),
    ({"properties": {"a": {}}, "required": []}, {"properties": {}, "required": []}),
    ({"properties": "odd", "required": "a"}, {"properties": "odd", "required": "a"}),
    *(({key: PLAIN}, {key: {**PLAIN, "properties": {"b": {"type": "string"}}, "required": ["b"]}}) for key in ("if", "then", "else")),
    *(({key: [{"required": ["a"]}, True, {"title": "x"}]}, {key: [{}, True, {"title": "x"}]}) for key in ("allOf", "anyOf", "oneOf")),
    ({"allOf": {"required": ["a"]}, "if": [{"required": ["a"]}]}, {"allOf": {"required": ["a"]}, "if": [{"required": ["a"]}]}),
    ({"dependentRequired": {"a": ["b"], "b": ["a", "c"]}}, {"dependentRequired": {"b": ["c"]}}),
    ({"dependentRequired": {"b": ["c"]}}, {"dependentRequired": {"b": ["c"]}}),
    ({"dependentSchemas": {"a": {}, "b": {"required": ["a"]}}}, {"dependentSchemas": {"b": {}}}),
    (
        {"dependencies": {"b": ["a"], "c": {"required": ["a", "c"]}, "d": True}},
        {"dependencies": {"b": [], "c": {"required": ["c"]}, "d": True}},
    ),
    ({"dependencies": ["a"]}, {"dependencies": ["a"]}),
]


@pytest.mark.parametrize(("schema", "pruned"), ROWS, ids=lambda value: json.dumps(value)[:60])
def test_withheld_arguments_leave_a_schema_wherever_it_applies(schema: dict[str, Any], pruned: dict[str, Any]) -> None:
    before = json.dumps(schema)
    found = without_arguments(schema, ["a"])
    assert found == pruned
    assert (found is schema) is (pruned == schema) and json.dumps(schema) == before


def test_optional_arguments_stay_declared_and_are_not_required() -> None:
    assert without_arguments(PLAIN, [], ["a"]) == {**PLAIN, "required": ["b"]}
    assert without_arguments(PLAIN, ["a"], ["b"]) == {"type": "object", "properties": {"b": {"type": "string"}}}
    assert without_arguments(PLAIN, []) is PLAIN


def test_reference_that_declares_a_withheld_argument_is_inlined() -> None:
    schema = {"$ref": "#/$defs/x", "title": "t", "$defs": {"x": {"required": ["a", "b"]}}}
    assert without_arguments(schema, ["a"]) == {"title": "t", "$defs": schema["$defs"], "allOf": [{"required": ["b"]}]}
    joined = {**schema, "allOf": [{"title": "u"}]}
    assert without_arguments(joined, ["a"])["allOf"] == [{"title": "u"}, {"required": ["b"]}]
    for untouched in ({**schema, "$ref": "#/$defs/none"}, {**schema, "$ref": 5}, {**schema, "$defs": {"x": {"required": ["b"]}}}):
        assert without_arguments(untouched, ["a"]) is untouched
    loop = {"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x", "required": ["a"]}}}
    assert without_arguments(loop, ["a"])["allOf"] == [{"$ref": "#/$defs/x"}]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"required": ["a"]}
    for _ in range(depth):
        schema = {"if": schema}
    return schema


def test_search_for_withheld_arguments_is_bounded_in_depth_and_size() -> None:
    deep, too_deep = nested(64), nested(65)
    assert without_arguments(deep, ["a"]) is not deep and without_arguments(too_deep, ["a"]) is too_deep
    wide = {"anyOf": [{"title": "x"}] * 4_998 + [{"required": ["a"]}] * 2}
    assert [node.get("required") for node in without_arguments(wide, ["a"])["anyOf"]][-2:] == [None, ["a"]]


def test_schema_shows_the_operators_defaults_of_declared_arguments() -> None:
    schema: dict[str, Any] = {"properties": {"a": {"type": "string"}, "b": True, "c": False}}
    assert with_defaults(schema, {"a": "x", "b": 2, "c": 3, "d": 4}) == {
        "properties": {"a": {"type": "string", "default": "x"}, "b": {"default": 2}, "c": False}
    }
    assert with_defaults(schema, {"d": 4}) is schema
    assert with_defaults({"type": "object"}, {"a": 1}) == {"type": "object"}


def test_texts_of_an_override_replace_those_of_the_server() -> None:
    hints = {"title": "old", "readOnlyHint": True}
    assert shown_texts("old", "text", hints, override(title="new", description="other")) == (
        "new",
        "other",
        {"title": "new", "readOnlyHint": True},
    )
    assert shown_texts("old", "text", hints, override()) == ("old", "text", hints)
    assert shown_texts(None, None, {"readOnlyHint": True}, override(title="new")) == ("new", None, {"readOnlyHint": True})
    assert shown_texts(None, None, None, override(title="new")) == ("new", None, None)
    assert hints["title"] == "old"


def test_own_name_precedes_an_override_then_order_decides() -> None:
    given = {"a": override(name="x"), "b": override(name="c"), "d": override(name="x"), "e": override(name="e"), "f": override(name="b")}
    assert public_names("abcdefg", given) == (
        {"a": "x", "c": "c", "e": "e", "f": "b", "g": "g"},
        {"b": ("c", "c"), "d": ("x", "a")},
    )
