"""`ArgumentPolicy`: dropped arguments, rejected calls with their reasons, and the published schema."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gateway.config.policies import SourcePolicy
from gateway.policy.argument_policy import SCHEMA_RULE, ArgumentPolicy, rule_problem
from gateway.policy.decision import Pass, Reject, Rewrite

AB = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}


def build(schema: Any, extras: Any = (), rules: Any = None, tool: str = "read") -> ArgumentPolicy:
    return ArgumentPolicy.build(tool, schema, extras, rules or {})


def received(policy: ArgumentPolicy, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that the tool would receive; fail if the call is rejected."""
    verdict = policy.judge(arguments)
    assert not isinstance(verdict, Reject), verdict
    return verdict.arguments if isinstance(verdict, Rewrite) else arguments


def refused(policy: ArgumentPolicy, arguments: dict[str, Any]) -> Reject:
    verdict = policy.judge(arguments)
    assert isinstance(verdict, Reject)
    return verdict


# -- dropping ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement(1)
def test_undeclared_arguments_are_dropped_in_the_order_they_came() -> None:
    arguments = {"thread": 1, "a": "x", "foo": 2, "b": 3}
    verdict = build(AB).judge(arguments)
    assert verdict == Rewrite({"a": "x", "b": 3}, ("thread", "foo"))
    assert list(arguments) == ["thread", "a", "foo", "b"]


def test_call_with_nothing_to_drop_passes_without_a_copy() -> None:
    assert isinstance(build(AB).judge({"a": "x"}), Pass)


@pytest.mark.requirement(2)
def test_schema_without_properties_lets_only_extras_through() -> None:
    assert received(build({"type": "object"}), {"a": 1}) == {}
    assert received(build({"type": "object"}, ["a"]), {"a": 1, "b": 2}) == {"a": 1}


@pytest.mark.requirement(3)
def test_additional_properties_alone_declare_nothing() -> None:
    assert received(build({"type": "object", "additionalProperties": True}), {"a": 1}) == {}


@pytest.mark.requirement(4)
@pytest.mark.parametrize("schema", [None, True, [], "x", {}, {"properties": None}, {"properties": ["a"]}, {"allOf": None, "$ref": 3}])
def test_malformed_schema_declares_nothing_and_never_raises(schema: Any) -> None:
    policy = build(schema)
    assert policy.judge({}) == Pass() or isinstance(policy.judge({}), Reject)
    assert isinstance(policy.published_schema, dict)


@pytest.mark.requirement(5)
@pytest.mark.parametrize("tool", ["read", "write"])
def test_list_of_extras_holds_for_every_tool(tool: str) -> None:
    assert received(build(AB, ["x"], tool=tool), {"x": 1}) == {"x": 1}


@pytest.mark.requirement(6)
def test_extras_by_tool_are_united_with_those_of_every_tool() -> None:
    policy = build(AB, {"read": ["x"], "*": ["y"], "write": ["z"]})
    assert received(policy, {"x": 1, "y": 2, "z": 3}) == {"x": 1, "y": 2}


@pytest.mark.requirement(7)
def test_extras_keyed_by_an_exposed_name_do_nothing() -> None:
    assert received(build(AB, {"docs__read": ["x"]}), {"x": 1}) == {}


@pytest.mark.requirement(11)
@pytest.mark.parametrize("extras", [[], ["_meta"], {"*": ["_meta"]}])
def test_meta_is_never_an_argument(extras: Any) -> None:
    schema = {"type": "object", "properties": {"_meta": {"type": "object"}, "a": {}}}
    assert received(build(schema, extras), {"_meta": {}, "a": 1}) == {"a": 1}


@pytest.mark.requirement(17)
def test_additional_arguments_key_admits_no_argument() -> None:
    sent = {"additionalArguments": ["x"], "additional_arguments": ["x"], "x": 1}
    assert received(build(AB), sent) == {}


@pytest.mark.requirement(18)
def test_rule_for_an_undeclared_argument_does_not_allow_it() -> None:
    policy = build(AB, rules={"read": {"x": {"type": "integer"}}})
    assert received(policy, {"x": 1}) == {}
    assert policy.published_schema is AB


@pytest.mark.requirement(24)
def test_arguments_named_like_internals_are_ordinary() -> None:
    names = {"name": "n", "tool_name": "t", "arguments": "a", "self": "s", "ctx": "c"}
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    assert received(build(schema), names) == names


IN_PLACE: list[dict[str, Any]] = [
    {"allOf": [{"properties": {"a": {}}}]},
    {"anyOf": [{"properties": {"a": {}}}, {"required": ["b"]}]},
    {"oneOf": [{"properties": {"a": {}}}]},
    {"if": {"properties": {"a": {}}}},
    {"if": {}, "then": {"properties": {"a": {}}}, "else": {"properties": {"b": {}}}},
    {"dependentSchemas": {"z": {"properties": {"a": {}}}}},
    {"$ref": "#/$defs/in", "$defs": {"in": {"properties": {"a": {}}}}},
    {"$ref": "#/$defs/x~1y%20z", "$defs": {"x/y z": {"properties": {"a": {}}}}},
    {"$ref": "#in", "$defs": {"in": {"$anchor": "in", "properties": {"a": {}}}}},
    {"allOf": [{"$ref": "#/allOf/1"}, {"properties": {"a": {}}}]},
]


@pytest.mark.parametrize("schema", IN_PLACE, ids=lambda schema: next(iter(schema)))
def test_names_count_as_declared_wherever_a_schema_applies_in_place(schema: dict[str, Any]) -> None:
    assert received(build({"type": "object", **schema}), {"a": 1, "zz": 2}) == {"a": 1}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"o": {"properties": {"a": {}}}}},
        {"not": {"type": "string", "properties": {"a": {}}}},
        {"$defs": {"in": {"properties": {"a": {}}}}},
        {"patternProperties": {"a": {}}},
    ],
    ids=lambda schema: next(iter(schema)),
)
def test_names_elsewhere_in_a_schema_are_not_declared(schema: dict[str, Any]) -> None:
    assert received(build(schema), {"a": 1}) == {}


def test_extra_passes_a_schema_that_closes_its_properties() -> None:
    schema = {**AB, "additionalProperties": False}
    policy = build(schema, ["x"])
    assert received(policy, {"a": "s", "x": [1]}) == {"a": "s", "x": [1]}
    assert policy.published_schema is schema


@pytest.mark.requirement(8)
@pytest.mark.parametrize("written", ["x", ["x"], {"read": "x"}, {"*": "x"}])
def test_bare_string_in_the_configuration_is_one_name(written: Any) -> None:
    extras = SourcePolicy.model_validate({"additionalArguments": written}).additional_arguments
    assert received(build(AB, extras), {"x": 1, "y": 2}) == {"x": 1}


# -- rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.attack(20)
def test_value_outside_its_rule_is_refused_under_the_rule_s_name() -> None:
    policy = build(AB, rules={"read": {"a": {"pattern": "^docs/"}}})
    verdict = refused(policy, {"a": "etc/passwd", "x": 1})
    assert verdict.rule == "arguments.read.a"
    assert verdict.dropped == ("x",)
    assert "'a'" in verdict.reason
    assert "^docs/" in verdict.reason
    assert "passwd" not in verdict.reason
    assert received(policy, {"a": "docs/x"}) == {"a": "docs/x"}


def test_rule_for_every_tool_and_one_for_this_tool_both_hold() -> None:
    policy = build(AB, rules={"*": {"b": {"minimum": 1}}, "read": {"b": {"maximum": 9}}, "write": {"b": {"const": 5}}})
    assert refused(policy, {"b": 0}).rule == "arguments.*.b"
    assert refused(policy, {"b": 10}).rule == "arguments.read.b"
    assert received(policy, {"b": 3}) == {"b": 3}


def test_rule_ignores_an_argument_that_is_left_out() -> None:
    assert received(build(AB, rules={"read": {"a": {"minLength": 3}}}), {}) == {}


def test_rules_come_before_the_schema() -> None:
    policy = build(AB, rules={"read": {"a": {"maxLength": 2}}})
    assert refused(policy, {"a": "long", "b": "not a number"}).rule == "arguments.read.a"


def test_rule_may_hold_an_extra() -> None:
    policy = build(AB, ["x"], {"read": {"x": {"enum": [1, 2]}}})
    assert refused(policy, {"x": 3}).rule == "arguments.read.x"
    assert policy.published_schema["properties"]["x"] == {"enum": [1, 2]}


def test_format_is_enforced_in_a_rule_and_not_in_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "uri"}}}
    assert received(build(schema), {"a": "no uri"}) == {"a": "no uri"}
    assert refused(build(schema, rules={"read": {"a": {"format": "uri"}}}), {"a": "no uri"}).rule == "arguments.read.a"


@pytest.mark.parametrize("rule", [{"type": "strng"}, {"$ref": "#/$defs/x"}, {"pattern": "("}, {"allOf": [{"$ref": "http://x/y"}]}])
def test_unusable_rule_rejects_every_value_and_is_not_published(rule: dict[str, Any]) -> None:
    policy = build(AB, rules={"read": {"a": rule}})
    verdict = refused(policy, {"a": "anything"})
    assert verdict.rule == "arguments.read.a"
    assert "configuration" in verdict.reason
    assert policy.published_schema is AB
    assert received(policy, {"b": 1}) == {"b": 1}
    assert rule_problem(rule) is not None


def test_good_rule_has_no_problem() -> None:
    assert rule_problem({"type": "string", "pattern": "^(?!x)"}) is None


# -- the published schema ------------------------------------------------------------------------------------------


def test_schema_without_rules_is_published_as_the_same_object() -> None:
    assert build(AB, ["x"]).published_schema is AB


def test_rules_are_merged_into_a_copy_of_the_property() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "description": "Where.", "maxLength": 100, "minLength": 2}, "b": {"type": "integer"}},
        "required": ["a"],
    }
    before = copy.deepcopy(schema)
    policy = build(schema, rules={"read": {"a": {"type": "string", "pattern": "^docs/", "maxLength": 30, "minLength": 1}}})
    assert policy.published_schema == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "description": "Where.", "maxLength": 30, "minLength": 2, "pattern": "^docs/"},
            "b": {"type": "integer"},
        },
        "required": ["a"],
    }
    assert schema == before


@pytest.mark.parametrize(
    ("present", "rule", "published"),
    [
        ({}, {"const": 1}, {"const": 1}),
        (True, {"const": 1}, {"const": 1}),
        (False, {"const": 1}, False),
        ({"type": ["string", "null"]}, {"type": "string"}, {"type": ["string", "null"], "allOf": [{"type": "string"}]}),
        ({"enum": [1, 2]}, {"enum": [2, 3]}, {"enum": [1, 2], "allOf": [{"enum": [2, 3]}]}),
        ({"const": 1}, {"const": True}, {"const": 1, "allOf": [{"const": True}]}),
        ({"minimum": 1, "maximum": 9}, {"minimum": 0, "maximum": 5}, {"minimum": 1, "maximum": 5, "type": "number"}),
        ({"description": "Where."}, {"const": 1, "description": "Only 1."}, {"description": "Where. Only 1.", "const": 1}),
        (
            {"type": "object", "properties": {"x": {}}},
            {"additionalProperties": False},
            {"type": "object", "properties": {"x": {}}, "allOf": [{"additionalProperties": False}]},
        ),
        ({"allOf": [{"minLength": 1}]}, {"not": {"const": "x"}}, {"allOf": [{"minLength": 1}, {"not": {"const": "x"}}]}),
    ],
)
def test_published_property_requires_both_schema_and_rule(present: Any, rule: Any, published: Any) -> None:
    policy = build({"properties": {"a": present}}, rules={"read": {"a": rule}})
    assert policy.published_schema == {"properties": {"a": published}}


def test_rule_beside_a_reference_counts_in_old_dialects_too() -> None:
    draft7 = "http://json-schema.org/draft-07/schema#"
    schema = {"$schema": draft7, "definitions": {"s": {"type": "string"}}, "properties": {"a": {"$ref": "#/definitions/s"}}}
    published = build(schema, rules={"read": {"a": {"maxLength": 1}}}).published_schema
    assert published["properties"]["a"] == {"allOf": [{"$ref": "#/definitions/s"}, {"maxLength": 1}]}


def test_rule_for_a_nested_name_is_published_beside_it() -> None:
    schema = {"type": "object", "anyOf": [{"properties": {"a": {"type": "string"}}}]}
    policy = build(schema, rules={"read": {"a": {"maxLength": 3}}})
    assert policy.published_schema == {**schema, "allOf": [{"properties": {"a": {"maxLength": 3}}}]}
    assert refused(policy, {"a": "long"}).rule == "arguments.read.a"


def test_rule_is_published_beside_a_top_level_reference() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#/definitions/in",
        "definitions": {"in": {"type": "object", "properties": {"a": {"type": "string"}}}},
    }
    published = build(schema, rules={"read": {"a": {"maxLength": 3}}}).published_schema
    assert published["allOf"] == [{"$ref": "#/definitions/in"}, {"properties": {"a": {"maxLength": 3}}}]
    assert "$ref" not in published


# -- the schema ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "arguments", "words"),
    [
        ({"properties": {"a": {}}, "required": ["a"]}, {}, "Argument 'a' is required but missing."),
        ({"properties": {"a": {"type": "string"}}}, {"a": 5}, "Argument 'a' is not of type \"string\" but a number."),
        ({"properties": {"a": {"enum": ["x", "y"]}}}, {"a": "q"}, "Argument 'a' is not one of \"x\" or \"y\"."),
        ({"properties": {"a": {"const": 4}}}, {"a": 5}, "Argument 'a' must be 4."),
        ({"properties": {"a": False}}, {"a": 5}, "Argument 'a' is not allowed."),
        ({"properties": {"a": {"maxLength": 2}}}, {"a": "abc"}, "Argument 'a' is longer than 2 characters."),
        (
            {"properties": {"a": {"items": {"properties": {"n": {"minimum": 1}}}}}},
            {"a": [{"n": 1}, {"n": 0}]},
            "Argument 'a[1].n' is less than the minimum of 1.",
        ),
        (
            {"properties": {"a": {"properties": {"k": {}}, "required": ["k"]}}},
            {"a": {}},
            "Argument 'a.k' is required but missing.",
        ),
        (
            {"properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
            {"a": "x"},
            "Argument 'a' fits none of the alternatives: the value is not of type \"integer\"; the value is not of type \"null\".",
        ),
        (
            {"properties": {"a": {"properties": {}, "additionalProperties": False}}},
            {"a": {"zz": 1}},
            "Argument 'a': Additional properties are not allowed ('zz' was unexpected).",
        ),
    ],
)
def test_refusal_names_the_argument_and_the_expected_value(schema: Any, arguments: Any, words: str) -> None:
    verdict = refused(build({"type": "object", **schema}), arguments)
    assert verdict.rule == SCHEMA_RULE
    assert verdict.reason == words


def test_several_problems_are_named_together() -> None:
    reason = refused(build({**AB, "required": ["c"]}), {"a": 1, "b": "x"}).reason
    assert all(name in reason for name in ("'a'", "'b'", "'c'"))


def test_rejection_names_dropped_arguments_as_possible_misspellings() -> None:
    verdict = refused(build({**AB, "required": ["a"]}), {"aa": "x"})
    assert verdict.reason == "Argument 'a' is required but missing. Not declared by this tool and dropped: 'aa'."


def test_rejection_is_short_for_any_schema_and_arguments() -> None:
    long = "x" * 5000
    schema = {"type": "object", "properties": {long: {"enum": [f"{i}{long}" for i in range(20)]}}}
    verdict = refused(build(schema), {long: long * 3, **{f"{long}{i}": 1 for i in range(30)}})
    assert len(verdict.reason) <= 500
    assert "dropped" in verdict.reason


def test_refusals_never_repeat_a_value() -> None:
    canary = "canary-3141"
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "a": {"type": "integer"}, "b": {"pattern": "^x$"}, "c": {"maxLength": 2}, "d": {"anyOf": [{"type": "null"}, {"enum": [1]}]},
            "e": {"items": {"const": 1}}, "f": {"not": {"type": "string"}}, "g": {"format": "uuid", "minLength": 99},
        },
    }  # fmt: skip
    for name in schema["properties"]:
        assert canary not in refused(build(schema), {name: [canary] if name == "e" else canary}).reason


# -- dialects ------------------------------------------------------------------------------------------------------


def test_undated_schema_is_read_as_2020_12() -> None:
    schema = {"properties": {"a": {"prefixItems": [{"type": "string"}]}}}
    assert refused(build(schema), {"a": [1]}).rule == SCHEMA_RULE


def test_older_dialect_applies_if_the_schema_names_it() -> None:
    draft7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
    assert received(build({**draft7, "properties": {"a": {"prefixItems": [{"type": "string"}]}}}), {"a": [1]}) == {"a": [1]}
    assert refused(build({**draft7, "properties": {"a": {"items": [{"type": "string"}]}}}), {"a": [1]})


@pytest.mark.parametrize(
    ("keyword", "bad"), [({"items": [{"type": "string"}]}, [1]), ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, 3)]
)
def test_schema_without_dialect_may_use_an_older_one(keyword: Any, bad: Any) -> None:
    assert refused(build({"type": "object", "properties": {"a": keyword}}), {"a": bad}).rule == SCHEMA_RULE
    assert "valid JSON Schema" not in refused(build({"type": "object", "properties": {"a": keyword}}), {"a": bad}).reason


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt", "properties": {"a": {}}},
        {"$schema": "http://example.com/mine", "properties": {"a": {}}},
        {"properties": {"a": {"pattern": "("}}},
        {"properties": {"a": {"$ref": "#/$defs/missing"}}},
    ],
)
def test_tool_with_unusable_schema_is_listed_and_its_calls_rejected(schema: Any) -> None:
    policy = build(schema)
    assert policy.published_schema is schema
    verdict = refused(policy, {"a": 1})
    assert verdict.rule == SCHEMA_RULE
    assert "operator of the server" in verdict.reason
