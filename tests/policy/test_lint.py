"""`policy_remarks`: each rule that does nothing or cannot work is named with its path."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.policies import SourcePolicy
from gateway.policy.lint import policy_remarks

SCHEMAS: dict[str, Any] = {"read_text": {"properties": {"path": {"type": "string"}}}, "search": {"properties": {"q": {}}}}


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
        "tools": {"allow": ["*"], "deny": ["search"]},
        "additionalArguments": {"*": ["trace"], "search": ["limit"]},
        "arguments": {"*": {"trace": {"type": "string"}, "q": {"maxLength": 9}}, "search": {"limit": {"maximum": 5}}},
    }
    assert policy_remarks(SourcePolicy.model_validate(rules), SCHEMAS) == ()
    assert policy_remarks(SourcePolicy(), {}) == ()
