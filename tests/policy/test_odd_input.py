"""Unusual schemas and values as peers really write them, and limits of reading: nothing raises, every limit holds."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.policies import SourcePolicy, ToolOverride
from gateway.json_types import JsonValue
from gateway.policy.argument_kinds import is_closed, kind_of_name, kinds_of_argument
from gateway.policy.argument_policy import ArgumentPolicy, rule_problem
from gateway.policy.decision import PASS, Pass, Reject, Rewrite
from gateway.policy.hidden_text import MAX_TEXT_DEPTH, judge_hidden_text, strip_schema
from gateway.policy.lint import lint_policy
from gateway.policy.own_sources import is_own_source, may_change_something, own_policy
from gateway.policy.path_rule import judge_path, read_path_rule
from gateway.policy.schema_check import SchemaCheck, measure
from gateway.policy.schema_types import element_types, types_of
from gateway.policy.tool_schemas import (
    MAX_PATTERNS,
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMA_NODES,
    MAX_UNCERTAIN_REFS,
    read_cost,
    resolve_local,
)

ODD: list[Any] = [
    {},
    {"properties": None, "required": None},
    {"properties": [], "required": "path"},
    {"properties": {"path": None}},
    {"properties": {"path": True}},
    {"properties": {"path": {"type": ["string", 5, None]}}},
    {"properties": {"path": {"type": {"a": 1}, "enum": "abc"}}},
    {"properties": {"path": {"anyOf": None, "allOf": {}, "oneOf": [None, 5, {"$ref": 5}]}}},
    {"properties": {"path": {"items": None}, "paths": {"items": [None, {"type": "string"}], "prefixItems": 5}}},
    {"properties": {"path": {"$ref": "#/none"}, "url": {"$ref": "#/$defs/u"}}, "$defs": None},
    {"properties": {"path": {"not": None, "if": 5, "then": [], "patternProperties": [], "dependentSchemas": None}}},
    {"allOf": [None, True, {"properties": {"path": {}}}], "$defs": {"x": None}},
    {"$ref": "#", "definitions": []},
]
RULES: list[dict[str, Any]] = [
    {"pattern": "^docs/"},
    {"within": "docs"},
    {"not": {"pattern": "x"}},
    {"type": "string", "const": "a"},
    {"enum": [1]},
]


@pytest.mark.parametrize("schema", ODD, ids=range(len(ODD)))
def test_odd_schemas_of_peers_are_read_without_an_error(schema: dict[str, Any]) -> None:
    for rule in RULES:
        override: dict[str, Any] = {"hide": ["url"], "fixed": {"mode": 1}, "defaults": {"path": "docs/a"}}
        for more in ({}, {"overrides": {"read": override}}):
            policy = SourcePolicy.model_validate({"arguments": {"read": {"path": rule}}, **more})
            compiled = ArgumentPolicy.build("read", schema, {}, policy.arguments, override=policy.overrides.get("read"))
            assert isinstance(compiled.judge({"path": "etc/passwd", "more": 1}), Rewrite | Reject)
            assert isinstance(lint_policy(policy, {"read": schema}), tuple)
    for name in ("path", "url", "none"):
        assert kinds_of_argument(name, schema) <= {"path", "url", "recipient"}
        assert not is_closed(name, schema) or "enum" in str(schema)
    assert isinstance(types_of(schema, schema), frozenset) and isinstance(element_types(schema, schema), frozenset)
    assert read_cost(schema).problem is None and strip_schema(schema) == schema


# -- references ----------------------------------------------------------------------------------------------------

ROOT: dict[str, Any] = {
    "a": {"b~/c%": [10, 20]},
    "$defs": {"x": {"$anchor": "n"}, "y": {"$dynamicAnchor": "m"}, "z": 5},
    "definitions": {"o": {"$anchor": "old"}},
}


@pytest.mark.parametrize(
    ("ref", "found"),
    [
        ("#", ROOT),
        ("#/a/b~0~1c%25", [10, 20]),
        ("#/a/b~0~1c%25/0", 10),
        ("#/a/b~0~1c%25/1", 20),
        ("#/a/b~0~1c%25/2", None),
        ("#/a/b~0~1c%25/-1", None),
        ("#/a/b~0~1c%25/\u00b2", None),
        ("#/a/b~0~1c%25/x", None),
        ("#/a/b~0~1c%25/000000001", None),
        ("#/a/none/deeper", None),
        ("#/$defs/z", 5),
        ("#/$defs/z/0", None),
        ("#n", ROOT["$defs"]["x"]),
        ("#m", ROOT["$defs"]["y"]),
        ("#old", ROOT["definitions"]["o"]),
        ("#none", None),
        ("other#/a", None),
        ("", None),
    ],
)
def test_local_reference_is_followed_by_pointer_or_anchor(ref: str, found: Any) -> None:
    assert resolve_local(ROOT, ref) == found


# -- bounds of schemas ---------------------------------------------------------------------------------------------


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"not": schema}
    return schema


def wide(values: int) -> dict[str, Any]:
    return {"enum": [0] * (values - 2)}


def patterned(number: int) -> dict[str, Any]:
    return {"patternProperties": {f"p{index}": {} for index in range(10)}, "allOf": [{"pattern": "a"}] * (number - 10)}


def remote(number: int) -> dict[str, Any]:
    return {"allOf": [{"$ref": f"https://example.com/{index}"} for index in range(number)]}


def renamed(number: int) -> dict[str, Any]:
    return {"$defs": {"x": {"$id": "y"}}, "allOf": [{"$ref": "#/$defs/x"}] * number}


@pytest.mark.parametrize(
    ("make", "most", "said"),
    [
        (nested, MAX_SCHEMA_DEPTH, "is nested deeper than"),
        (wide, MAX_SCHEMA_NODES, "values"),
        (patterned, MAX_PATTERNS, "patterns"),
        (remote, MAX_UNCERTAIN_REFS, "references that only `$id` resolves"),
        (renamed, MAX_UNCERTAIN_REFS, "references that only `$id` resolves"),
    ],
)
def test_schema_at_the_limit_is_used_and_a_larger_one_is_not(make: Any, most: int, said: str) -> None:
    assert read_cost(make(most)).problem is None
    assert said in (read_cost(make(most + 1)).problem or "")


def test_id_of_the_root_makes_no_local_reference_uncertain() -> None:
    schema: dict[str, Any] = {"$id": "https://example.com/x", "$defs": {"x": {}}, "allOf": [{"$ref": "#/$defs/x"}] * 100}
    assert read_cost(schema).problem is None


def test_schema_texts_beyond_the_searched_depth_are_left_out() -> None:
    deep: Any = {"title": "deep"}
    for _ in range(300):
        deep = {"not": deep}
    found: Any = strip_schema(deep)
    while found is not True:
        found = found["not"]


# -- rules of arguments --------------------------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}, "mode": {}}}


@pytest.mark.parametrize(
    ("rules", "extras", "override"),
    [
        ({"*": {"path": {"const": "a"}}}, {}, None),
        ({"read": {"path": {"const": "a"}}}, {}, None),
        ({}, {"read": ["more"]}, None),
        ({}, {}, ToolOverride()),
    ],
)
def test_tool_that_checks_its_own_arguments_obeys_rules(rules: Any, extras: Any, override: Any) -> None:
    given = {"path": "a", "undeclared": 1}
    unjudged = ArgumentPolicy.build("read", SCHEMA, {}, {"write": {"path": {"const": "a"}}}, only_with_rules=True)
    assert unjudged.judge(given) is PASS
    judged = ArgumentPolicy.build("read", SCHEMA, extras, rules, override=override, only_with_rules=True).judge(given)
    assert isinstance(judged, Rewrite) and judged.arguments == {"path": "a"}


def test_unusable_rule_does_not_hide_later_rules() -> None:
    rules: Any = {"read": {"nowhere": {"const": 1}, "mode": {"type": "odd"}, "path": {"const": "a"}}}
    compiled = ArgumentPolicy.build("read", SCHEMA, {}, rules)
    assert compiled.judge({"path": "a"}) is PASS
    for arguments, rule in (({"path": "b"}, "arguments.read.path"), ({"mode": 1, "path": "a"}, "arguments.read.mode")):
        verdict = compiled.judge(arguments)
        assert isinstance(verdict, Reject) and verdict.rule == rule


@pytest.mark.parametrize(("types", "passes"), [(["string", "null"], True), ("string", False)])
def test_rule_keyword_admits_null_only_beside_its_type(types: Any, passes: bool) -> None:
    rules: Any = {"read": {"path": {"within": "docs", "type": types}}}
    compiled = ArgumentPolicy.build("read", {"properties": {"path": {}}}, {}, rules)
    assert (compiled.judge({"path": None}) is PASS) is passes
    assert compiled.judge({"path": "docs/a"}) is PASS
    assert isinstance(compiled.judge({"path": 5}), Reject)


def test_mismatch_is_explained_by_place_and_by_the_alternatives() -> None:
    check = SchemaCheck({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "b": {"const": 1}}})
    value: Any = {"a": [], "b": 2}
    said = check.find(value, measure(value)) or ""
    assert "fits none of the alternatives" in said and "must be 1" in said
    assert check.find({"a": 1, "b": 1}, measure({"a": 1, "b": 1})) is None


# -- kinds, paths, own sources -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("path", "path"), ("filePath", "path"), ("file_name", "path"), ("Root", "path"), ("url", "url"), ("webURL", "url")),
        *(("to", "recipient"), ("count", None), ("name", None), ("", None), ("pathology", None)),
    ],
)
def test_name_of_an_argument_suggests_its_kind(name: str, kind: str | None) -> None:
    assert kind_of_name(name) == kind


def test_kinds_are_found_in_elements_and_properties_not_in_enums() -> None:
    schema: dict[str, Any] = {
        "properties": {
            "paths": {"type": "array", "items": {"type": "string"}},
            "options": {"type": "object", "properties": {"url": {"type": "string"}}},
            "link": {"type": "string", "format": "uri"},
            "path": {"type": "integer"},
            "file": {"type": "string", "enum": ["a"]},
            "loop": {"$ref": "#/properties/loop"},
            "either": {"anyOf": [{"type": "null"}, {"type": "string", "format": "email"}]},
        }
    }
    names = ("paths", "options", "link", "path", "file", "loop", "either", "none")
    assert [sorted(kinds_of_argument(name, schema)) for name in names] == [["path"], ["url"], ["url"], [], [], [], ["recipient"], []]
    assert [is_closed(name, schema) for name in names] == [False, False, False, False, True, False, False, False]


@pytest.mark.parametrize(
    ("rule", "value", "said"),
    [
        ("docs", "docs/a", None),
        ("docs", "docs/a.b", None),
        ("docs", "docs/..b", "has a name that starts with '..' or stands for it"),
        ("docs", "docs/'.'", "has a name that starts with '..' or stands for it"),
        ("docs", "/etc", "is absolute; write it relative"),
        ("docs", "etc", "is outside"),
        ("/docs", "/etc", "is outside"),
        ("/docs", "etc", "is outside"),
        ("docs", "", "is empty"),
        ("docs", "docs/a\u00a0b", None),
        ("docs", "docs/a\u200bb", "has a character that people do not see"),
        ("docs", "docs/\uff0e\uff0e/a", "has look-alike characters"),
    ],
)
def test_path_is_judged_with_a_reason(rule: str, value: str, said: str | None) -> None:
    found = judge_path(value, read_path_rule(rule))
    assert found is None if said is None else found is not None


def test_own_sources_have_the_operators_rules_and_no_own_limits() -> None:
    assert [is_own_source(source) for source in ("agent/x", "workflow/x", "agent", "docs/x", "agents/x")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    written = own_policy(SourcePolicy.model_validate({"timeoutSeconds": 5, "approval": "always"}))
    assert (written.timeout_seconds, written.approval) == (5, "always")
    assert written.max_result_bytes > 10**9 and own_policy(None).timeout_seconds == float("inf")
    assert [may_change_something(hints) for hints in (None, {}, {"readOnlyHint": False}, {"readOnlyHint": True})] == [
        True,
        True,
        True,
        False,
    ]


def test_value_that_fits_two_of_its_alternatives_is_explained() -> None:
    check = SchemaCheck({"oneOf": [{"type": "integer"}, {"minimum": 0}]})
    assert check.find(5, measure(5)) and check.find(-5, measure(-5)) is None


@pytest.mark.parametrize("hosts", [5, True, {}, [], [5], ""])
def test_rule_with_malformed_hosts_rejects_every_value(hosts: Any) -> None:
    rules: Any = {"read": {"path": {"oneOfHosts": hosts}}}
    assert isinstance(ArgumentPolicy.build("read", SCHEMA, {}, rules).judge({"path": "https://example.com"}), Reject)


def test_malformed_rule_is_refused_with_its_mistake() -> None:
    assert "needs a list of strings under `oneOfHosts`" in str(rule_problem({"oneOfHosts": 5}))
    assert rule_problem({"properties": True, "items": {"properties": []}}) is not None
    assert rule_problem({"type": ["string", "null"], "oneOfHosts": ["example.com"]}) is None


def test_texts_are_searched_to_their_greatest_depth() -> None:
    value: JsonValue = ["plain", 5, None]
    for _ in range(MAX_TEXT_DEPTH):
        value = [value]
    assert isinstance(judge_hidden_text(value, "The value"), Pass)
    assert isinstance(judge_hidden_text([value], "The value"), Reject)
