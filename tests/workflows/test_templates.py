"""What a template gives for each kind of value."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import ToolFailed, WorkflowInvalid
from gateway.workflows.step_templates import Template, fill

SCOPE: dict[str, Any] = {
    "topic": "tea",
    "count": 3,
    "review": {"approved": False, "notes": "shorter", "tags": ["a", {"deep": None}], "none": []},
    "not-yet": None,
    "sly": "{{topic}}",
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain { text }", "plain { text }"),
        ("{{topic}}", "tea"),
        ("{{ topic }} and {{count}}", "tea and 3"),
        ("{{count}}", 3),
        ("{{review}}", SCOPE["review"]),
        ("{{review.approved}}", False),
        ("is {{review.approved}}: {{review.tags}}", 'is false: ["a", {"deep": null}]'),
        ("{{review.tags.0}}", "a"),
        ("{{review.tags.1.deep}}", None),
        ("{{review.tags.1.deep.er}}", None),
        ("{{not-yet}}", None),
        ("{{not-yet.field}}", None),
        ("[{{not-yet}}]", "[]"),
        ("{{sly}} {{topic}}", "{{topic}} tea"),
        ("", ""),
    ],
)
def test_references_are_filled_in_once_and_a_sole_one_keeps_its_type(text: str, value: Any) -> None:
    assert fill(text, SCOPE) == value


def test_templates_are_found_in_json_values_and_not_in_keys() -> None:
    value = {"{{topic}}": ["{{count}}", {"x": "{{topic}}!"}, 5, None, True]}
    assert fill(value, SCOPE) == {"{{topic}}": [3, {"x": "tea!"}, 5, None, True]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{topic.x}}", "'topic' is text and has no 'x'"),
        ("{{count.x}}", "'count' is a number and has no 'x'"),
        ("{{review.note}}", r"'review' is an object \(approved, notes, tags, none\) without 'note'"),
        ("{{review.none.0}}", "'review.none' is an empty list"),
        ("{{review.tags.7}}", "'review.tags' is a list of 2 without '7'"),
    ],
)
def test_missing_field_is_an_error_that_lists_the_fields(text: str, reason: str) -> None:
    with pytest.raises(ToolFailed, match=reason):
        fill(text, SCOPE)


@pytest.mark.parametrize("text", ["{{}}", "{{a b}}", "{{a.}}", "{{1a}}", "{{a|upper}}", "{{a()}}", "{{{a}}}"])
def test_expressions_are_not_evaluated(text: str) -> None:
    with pytest.raises(WorkflowInvalid, match="is not a reference"):
        Template.parse(text)
