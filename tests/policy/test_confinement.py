"""What a value rule implies: the type of its keywords, each element of a list, and descriptions for clients."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.policy.argument_kinds import kinds_of_argument
from gateway.policy.argument_policy import ArgumentPolicy, rule_problem
from gateway.policy.confinement import confine
from gateway.policy.rule_words import MAX_WORD_VALUES
from tests.fakes.bypasses import OTHER_TYPES

STRING = {"type": "string"}
STRINGS = {"type": "array", "items": STRING}
DECLARED: dict[str, Any] = {
    "text": STRING,
    "texts": STRINGS,
    "open": {},
    "either": {"anyOf": [STRING, STRINGS]},
    "maybe": {"anyOf": [STRING, {"type": "null"}]},
    "maybe_texts": {"type": ["array", "null"], "items": STRING},
    "linked": {"$ref": "#/$defs/texts"},
    "numbers": {"type": "array", "items": {"type": "integer"}},
    "loose": {"type": "array"},
    "mixed": {"type": "array", "items": {"type": ["string", "object"]}},
    "pairs": {"type": "array", "prefixItems": [STRING], "items": STRING},
    "edits": {"type": "array", "items": {"type": "object", "properties": {"path": STRING}}},
}
SCHEMA: dict[str, Any] = {"type": "object", "properties": DECLARED, "$defs": {"texts": STRINGS}}


def problem_of(rule: dict[str, Any], name: str, value: Any) -> str | None:
    """Return why the rule rejects the value, whatever the tool's schema says."""
    return ArgumentPolicy.build("t", SCHEMA, (), {"t": {name: rule}}).problem_of(f"arguments.t.{name}", value)


def passes(rule: dict[str, Any], name: str, value: Any) -> bool:
    """Return whether the rule accepts the value."""
    return problem_of(rule, name, value) is None


RULES: list[dict[str, Any]] = [
    {"pattern": "^docs/.*$"},
    {"maxLength": 300},
    {"format": "uri-reference"},
    {"not": {"pattern": "secret"}},
    {"not": {"anyOf": [{"pattern": "secret"}, {"pattern": "key"}]}},
    {"allOf": [{"pattern": "^docs/"}, {"maxLength": 300}]},
    {"anyOf": [{"pattern": "^docs/"}, {"pattern": "^src/"}]},
    {"oneOf": [{"pattern": "^docs/"}, {"pattern": "^src/"}]},
    {"if": {"const": "x"}, "then": {"minLength": 1}, "else": {"pattern": "^docs/"}},
    {"within": "docs/"},
    {"within": ["docs/", "src/"], "maxLength": 300},
]


@pytest.mark.attack(20)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("name", ["text", "open"])
def test_rule_about_texts_refuses_other_types(name: str, rule: dict[str, Any]) -> None:
    assert passes(rule, name, "docs/a")
    assert [value for value in OTHER_TYPES if passes(rule, name, value)] == []


@pytest.mark.attack(20)
@pytest.mark.parametrize("rule", [rule for rule in RULES if "pattern" in rule or "within" in rule], ids=str)
@pytest.mark.parametrize("name", ["texts", "either", "linked", "maybe_texts"])
def test_rule_about_texts_judges_each_element_of_a_list_of_texts(name: str, rule: dict[str, Any]) -> None:
    assert passes(rule, name, [])
    assert passes(rule, name, ["docs/a", "docs/b"])
    for refused in (["docs/a", "/etc/passwd"], [["docs/a"]], [{"path": "docs/a"}], [5], [None], {"0": "docs/a"}, 5):
        assert not passes(rule, name, refused), refused
    assert passes(rule, name, "docs/a") is (name == "either")
    assert not passes(rule, name, "/etc/passwd")


@pytest.mark.parametrize("name", ["loose", "mixed", "pairs", "numbers", "edits", "open"])
def test_list_of_anything_else_is_refused(name: str) -> None:
    assert not passes({"pattern": "^docs/"}, name, ["docs/a"])
    assert not passes({"within": "docs/"}, name, ["docs/a"])


def test_keywords_about_the_list_stay_with_the_list() -> None:
    rule = {"within": "docs/", "maxItems": 2, "items": {"maxLength": 8}}
    assert passes(rule, "texts", ["docs/a", "docs/b"])
    assert not passes(rule, "texts", ["docs/a"] * 3)
    assert not passes(rule, "texts", ["docs/aaaaa"])
    assert not passes(rule, "texts", ["src/a"])


def test_rule_about_numbers_judges_numbers_and_each_element() -> None:
    assert passes({"maximum": 5}, "open", 5)
    assert [value for value in ("x", [1], {"a": 1}, None, True) if passes({"maximum": 5}, "open", value)] == []
    assert passes({"maximum": 5}, "numbers", [1, 5])
    assert not passes({"maximum": 5}, "numbers", [1, 6])


def test_rule_about_parts_implies_the_types_around_them() -> None:
    rule = {"items": {"properties": {"path": {"within": "docs/"}}, "required": ["path"]}}
    assert passes(rule, "edits", [{"path": "docs/a"}])
    outside: list[Any] = [[{"path": "/etc"}], [{"path": ["docs/a"]}], [{}], ["docs/a"], {"path": "/etc"}, "docs/a"]
    for refused in outside:
        assert not passes(rule, "edits", refused), refused


def test_null_passes_only_if_the_tool_treats_it_as_absent() -> None:
    for rule in ({"pattern": "^docs/"}, {"within": "docs/"}, {"allOf": [{"within": "docs/"}]}):
        assert passes(rule, "maybe", None)
        assert passes(rule, "maybe_texts", None) or "allOf" in rule
        assert not passes(rule, "open", None)
        assert not passes(rule, "text", None)


def test_explicit_type_of_a_rule_wins() -> None:
    assert passes({"type": ["string", "integer"], "pattern": "^a$"}, "open", 5)
    assert passes({"enum": ["a", 5], "maxLength": 1}, "open", 5)
    assert passes({"type": "array", "items": {"type": "string"}}, "open", ["x"])


FAULTS = [
    ({"patern": "^a$"}, "did you mean 'pattern'?"),
    ({"wihtin": "docs/"}, "did you mean 'within'?"),
    ({"properties": {"a": {"wihtin": "docs/"}}}, "did you mean 'within'?"),
    ({"$within": "docs/"}, "did you mean 'within'?"),
    ({"items": [{"pattern": "^a$"}]}, "not a valid JSON Schema"),
    ({"format": "path"}, "'path'"),
    ({"within": "../docs"}, "'..'"),
    ({"within": 3}, "needs a folder"),
    ({"within": "docs/", "type": "array"}, "under `items`"),
    ({"oneOfHosts": ["https://a.example"]}, "write the host only"),
    ({"schemes": ["https"]}, "without `oneOfHosts`"),
    ({"oneOfHosts": ["a.example"], "schemes": ["git"]}, "`schemes`"),
    ({"oneOfRecipients": ["a b"]}, "`oneOfRecipients`"),
    ({"not": {"within": "docs/"}}, "under 'not'"),
    ({"oneOf": [{"within": "docs/"}, {"within": "docs/a"}]}, "under 'oneOf'"),
    ({"if": {"within": "docs/"}, "then": True, "else": False}, "under 'if'"),
    ({"contains": {"within": "docs/"}, "minContains": 0}, "under 'contains'"),
    ({"items": {"not": {"anyOf": [{"within": "docs/"}]}}}, "under 'not'"),
    ({"propertyNames": {"within": "docs/"}}, "under 'propertyNames'"),
]


@pytest.mark.attack(20)
@pytest.mark.parametrize(("rule", "says"), FAULTS, ids=lambda part: str(part)[:60])
def test_contradictory_rule_rejects_every_value(rule: dict[str, Any], says: str) -> None:
    problem = rule_problem(rule)
    assert problem is not None and says in problem
    assert [value for value in ["docs/a", "a", *OTHER_TYPES] if passes(rule, "open", value)] == []


def test_deeply_nested_rule_is_refused_and_not_walked() -> None:
    rule: dict[str, Any] = {"within": "docs/"}
    for _ in range(2_000):
        rule = {"allOf": [rule]}
    assert "nested" in (rule_problem(rule) or "")


@pytest.mark.attack(21)
def test_rule_keyword_rejects_too_many_values() -> None:
    many = ["docs/a"] * (MAX_WORD_VALUES + 1)
    assert "more than" in (problem_of({"within": "docs/"}, "texts", many) or "")
    assert passes({"within": "docs/"}, "texts", many[: MAX_WORD_VALUES // 2])
    assert passes({"pattern": "^docs/"}, "texts", many)


@pytest.mark.attack(24)
@pytest.mark.timeout(30)
@pytest.mark.parametrize("key", ["anyOf", "oneOf", "allOf"])
def test_schema_with_multiplying_references_is_read_once_per_part(key: str) -> None:
    layers: dict[str, Any] = {f"s{n}": {key: [{"$ref": f"#/$defs/s{n + 1}"} for _ in range(20)]} for n in range(8)}
    for last in (STRINGS, {"$ref": "#/$defs/s0"}):
        schema = {"type": "object", "properties": {"path": {"$ref": "#/$defs/s0"}}, "$defs": {**layers, "s8": last}}
        assert "within" in repr(confine("path", {"within": "docs/"}, schema).judged)
        assert kinds_of_argument("path", schema) == {"path"}


# -- for clients -----------------------------------------------------------------------------------------------------


def published(rule: dict[str, Any], name: str) -> Any:
    schema = ArgumentPolicy.build("t", SCHEMA, (), {"t": {name: rule}}).published_schema
    return schema["properties"][name]


INSIDE = "a path inside 'docs/', without '..'"


@pytest.mark.parametrize(
    ("rule", "name", "shown"),
    [
        ({"within": "docs/"}, "text", {"type": "string", "description": f"Must be {INSIDE}."}),
        ({"within": "docs/"}, "open", {"type": "string", "description": f"Must be {INSIDE}."}),
        ({"within": "docs/"}, "texts", {**STRINGS, "description": f"Each element must be {INSIDE}."}),
        ({"within": "docs/", "maxItems": 2}, "texts", {**STRINGS, "maxItems": 2, "description": f"Each element must be {INSIDE}."}),
        ({"within": "docs/"}, "either", {**DECLARED["either"], "description": f"Must be {INSIDE}, or a list of these."}),
        ({"within": "docs/"}, "maybe", {**DECLARED["maybe"], "description": f"Must be {INSIDE}."}),
        (
            {"within": ["docs/", "src/"], "description": "Where."},
            "text",
            {"type": "string", "description": "Where. Must be a path inside 'docs/' or 'src/', without '..'."},
        ),
        (
            {"oneOfHosts": ["a.example", "*.b.example"], "schemes": ["https", "http"]},
            "text",
            {"type": "string", "description": "Must be an https or http URL on a.example or *.b.example."},
        ),
        ({"oneOfHosts": ["*"], "schemes": ["wss"]}, "text", {"type": "string", "description": "Must be a wss URL on any host."}),
        ({"oneOfRecipients": ["a.example"]}, "text", {"type": "string", "description": "Must be one mail address at a.example."}),
        ({"pattern": "^a$"}, "text", {"type": "string", "pattern": "^a$"}),
        ({"pattern": "^a$"}, "open", {"type": "string", "pattern": "^a$"}),
    ],
    ids=str,
)
def test_clients_see_rule_keywords_as_description_and_json_schema(rule: dict[str, Any], name: str, shown: dict[str, Any]) -> None:
    assert published(rule, name) == shown


@pytest.mark.parametrize("name", DECLARED)
def test_no_rule_keyword_is_published_at_any_depth(name: str) -> None:
    nested = {"anyOf": [{"within": "docs/"}, {"items": {"properties": {"path": {"oneOfHosts": ["a.example"], "schemes": ["http"]}}}}]}
    for rule in (nested, {"allOf": [nested]}, {"within": "docs/", "items": {"within": "docs/"}}):
        shown = repr(confine(name, rule, SCHEMA).published)
        assert "within" not in shown and "oneOfHosts" not in shown and "schemes" not in shown
        assert "a path inside" in shown
