"""What the audit log has of a call's arguments."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.policy.audit_policy import MAX_ARGUMENTS, MAX_KEPT_CHARS, recorded_arguments, rule_for


def digest(value: bytes) -> str:
    return value.decode()


@pytest.mark.parametrize(("tool", "rule"), [("find_order", "first"), ("refund", "second"), ("find", "second")])
def test_first_pattern_that_matches_applies(tool: str, rule: str) -> None:
    assert rule_for({"orders/find_*": "first", "orders/*": "second"}, "orders", tool) == rule
    assert rule_for({"orders/find_*": "first", "orders/*": "second"}, "files", tool) is None


def test_only_arguments_with_a_form_are_recorded() -> None:
    arguments: dict[str, Any] = {"path": "/a", "size": 3, "token": "t", "note": "n", "none": None, "list": [1, "a"]}
    forms: Any = {"token": "hash", "note": "omit", "no*": "keep", "size": "keep", "list": "keep"}
    assert recorded_arguments(arguments, forms, digest) == {"size": 3, "token": 'hmac-sha256:"t"', "none": None, "list": '[1, "a"]'}


def test_equal_values_have_equal_digests_whatever_the_order_of_members() -> None:
    first, second = ({"v": {"a": 1, "b": 2}}, {"v": {"b": 2, "a": 1}})
    assert recorded_arguments(first, {"*": "hash"}, digest) == recorded_arguments(second, {"*": "hash"}, digest)


def test_many_and_long_arguments_are_cut() -> None:
    arguments = {str(number) + "n" * 300: "x" * 10_000 for number in range(1000)}
    recorded = recorded_arguments(arguments, {"*": "keep"}, digest)
    assert len(recorded) == MAX_ARGUMENTS + 1 and recorded["…"] == "1000 arguments"
    assert all(len(name) <= MAX_KEPT_CHARS and len(str(value)) <= MAX_KEPT_CHARS + 1 for name, value in recorded.items())
