"""`lint_policy` and `policy_remarks`: each rule that does nothing or cannot work is named with its path."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.policies import SourcePolicy
from gateway.policy.lint import lint_policy, policy_remarks

SCHEMAS: dict[str, Any] = {"read_text": {"properties": {"path": {"type": "string"}}}, "search": {"properties": {"q": {}}}, "gone": {}}


@pytest.mark.requirement(26)
@pytest.mark.parametrize(
    ("rules", "path"),
    [
        ({"tools": {"allow": ["read_*", "wrte_*"]}}, "tools.allow[1]"),
        ({"tools": {"deny": ["Search"]}}, "tools.deny[0]"),
        ({"additionalArguments": {"docs__search": ["x"]}}, "additionalArguments.docs__search"),
        ({"arguments": {"read_txt": {"path": {}}}}, "arguments.read_txt"),
        ({"arguments": {"read_text": {"pth": {}}}}, "arguments.read_text.pth"),
        ({"arguments": {"*": {"nowhere": {}}}}, "arguments.*.nowhere"),
        ({"arguments": {"read_text": {"path": {"type": "strng"}}}}, "arguments.read_text.path"),
        ({"arguments": {"read_text": {"path": {"$ref": "#/x"}}}}, "arguments.read_text.path"),
    ],
)
def test_a_rule_without_effect_is_named(rules: dict[str, Any], path: str) -> None:
    (remark,) = policy_remarks(SourcePolicy.model_validate(rules), SCHEMAS)
    assert remark.startswith(f"{path}: ")


def test_rules_that_work_are_not_mentioned() -> None:
    rules = {
        "tools": {"allow": ["*"], "deny": ["gone"]},
        "additionalArguments": {"*": ["trace"], "search": ["limit"]},
        "arguments": {
            "*": {"trace": {"type": "string"}, "q": {"type": "string", "maxLength": 9}},
            "search": {"limit": {"type": "integer", "maximum": 5}},
        },
    }
    assert policy_remarks(SourcePolicy.model_validate(rules), SCHEMAS) == ()
    assert policy_remarks(SourcePolicy(), {}) == ()


TOOLS: dict[str, Any] = {
    "read": {
        "properties": {
            "path": {"type": "string"},
            "any": {},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "n": {"type": "integer"},
        },
        "required": ["path"],
    },
    "write": {"properties": {"session": {}, "path": {"$ref": "#/$defs/p"}}, "required": ["session"], "$defs": {"p": {"type": "string"}}},
}

Expected = list[tuple[str, str]]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"arguments": {"read": {"any": {"pattern": "^a"}}}}, [("arguments.read.any", "open")]),
        ({"arguments": {"read": {"any": {"pattern": "^a", "type": "string"}}}}, []),
        ({"arguments": {"read": {"maybe": {"pattern": "^a"}}}}, []),
        ({"arguments": {"write": {"path": {"maxLength": 5}}}}, []),
        ({"arguments": {"read": {"any": {"maximum": 5}}}}, [("arguments.read.any", "open")]),
        ({"arguments": {"read": {"path": {"pattern": "docs"}}}}, [("arguments.read.path", "open")]),
        ({"arguments": {"read": {"path": {"pattern": "^docs$|etc"}}}}, [("arguments.read.path", "open")]),
        ({"arguments": {"read": {"path": {"pattern": "^(docs|[|]etc)$"}}}}, []),
        ({"arguments": {"read": {"path": {"patern": "^docs$"}}}}, [("arguments.read.path", "open")] * 2),
        ({"arguments": {"read": {"path": {"description": "A file."}}}}, [("arguments.read.path", "open")]),
        ({"approval": {"always": ["delete_*"], "never": ["read"]}}, [("approval.always[0]", "open")]),
        ({"tools": {"deny": ["delete_*"]}}, [("tools.deny[0]", "open")]),
        ({"idempotent": ["nope"], "tasks": {"promote": ["read"]}}, [("idempotent[0]", "dead")]),
        ({"additionalArguments": {"read": ["path"]}}, [("additionalArguments.read", "dead")]),
        ({"tools": {"deny": ["read"]}, "arguments": {"read": {"n": {"maximum": 1}}}}, [("arguments.read", "dead")]),
        ({"overrides": {"raed": {}}}, [("overrides.raed", "dead")]),
        (
            {"overrides": {"read": {"fixed": {"tenant": 1}, "hide": ["x"]}}},
            [("overrides.read.hide", "dead"), ("overrides.read.fixed", "dead")],
        ),
        ({"overrides": {"read": {"fixed": {"n": "one"}}}}, [("overrides.read.fixed.n", "conflict")]),
        (
            {"overrides": {"read": {"fixed": {"n": 9}}}, "arguments": {"read": {"n": {"maximum": 5}}}},
            [("overrides.read.fixed.n", "conflict")],
        ),
        ({"overrides": {"read": {"defaults": {"n": 1}, "fixed": {"n": 2}}}}, [("overrides.read.defaults", "dead")]),
        ({"overrides": {"read": {"hide": ["path"]}}}, [("overrides.read.hide", "conflict")]),
        ({"overrides": {"read": {"hide": ["path"], "fixed": {"path": "a"}}}}, []),
        ({"overrides": {"read": {"name": "write"}}}, [("overrides.read.name", "conflict")]),
    ],
)
@pytest.mark.attack(20)
def test_each_rule_that_fails_open_or_contradicts_is_found_and_sound_ones_are_not(rules: dict[str, Any], expected: Expected) -> None:
    policy = SourcePolicy.model_validate({"additionalArguments": {"write": ["session"]}, **rules})
    schemas: dict[str, Any] = {**TOOLS, "write": {**TOOLS["write"], "required": []}}
    found = [(finding.path, finding.kind) for finding in lint_policy(policy, schemas) if finding.kind != "note"]
    assert found == expected


def test_a_framework_name_that_the_server_requires_is_a_conflict_and_nothing_for_tools_of_our_own() -> None:
    (finding,) = lint_policy(SourcePolicy(), TOOLS)
    assert (finding.path, finding.kind) == ("additionalArguments", "conflict")
    assert "'session'" in finding.text
    assert lint_policy(SourcePolicy(), TOOLS, is_local=True) == ()


def test_an_optional_argument_and_a_path_that_climbs_out_are_worth_a_note() -> None:
    rules = {"read": {"path": {"pattern": "^docs/"}, "n": {"maximum": 5}}}
    policy = SourcePolicy.model_validate({"arguments": rules})
    notes = {finding.path: finding.text for finding in lint_policy(policy, {"read": TOOLS["read"]}) if finding.kind == "note"}
    assert "'docs/../x' passes" in notes["arguments.read.path"]
    assert "optional" in notes["arguments.read.n"]
    closed = {"read": {"path": {"pattern": "^docs/", "not": {"pattern": "(^|/)[.][.](/|$)"}}}}
    assert lint_policy(SourcePolicy.model_validate({"arguments": closed}), {"read": TOOLS["read"]}) == ()
