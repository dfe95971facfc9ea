"""Validation of answers to the gateway's own questions: fields, formats, unknown fields."""

from __future__ import annotations

import pytest

from gateway.json_types import JsonObject, JsonValue
from gateway.policy.input_answers import again, judge_answer, question_text


def form(properties: JsonObject) -> JsonObject:
    return {"method": "elicitation/create", "params": {"message": "Go?", "requestedSchema": {"type": "object", "properties": properties}}}


@pytest.mark.parametrize(
    ("kind", "right", "wrong", "said"),
    [
        ({"type": "string", "format": "email"}, "ada@example.com", "ada", """field 'x' is not a "email\""""),
        ({"type": "string", "format": "uri"}, "https://example.com/", "example com", """field 'x' is not a "uri\""""),
        ({"type": "string", "format": "date"}, "2026-11-24", "2026-13-24", """field 'x' is not a "date\""""),
        ({"type": "string", "format": "date-time"}, "2026-11-24T00:00:00Z", "2026-11-24", """field 'x' is not a "date-time\""""),
        ({"type": "string", "format": "phone"}, "any", 1, """field 'x' is not of type "string\" but a number"""),
    ],
)
def test_format_of_a_field_is_judged(kind: JsonObject, right: JsonValue, wrong: JsonValue, said: str) -> None:
    request = form({"x": kind})
    assert judge_answer(request, {"action": "accept", "content": {"x": right}}) is None
    refused = judge_answer(request, {"action": "accept", "content": {"x": wrong}})
    assert refused == f"The answer to 'Go?' cannot be used: {said}. It takes x (string, {kind['format']})."


def test_field_that_the_form_does_not_have_is_refused() -> None:
    refused = judge_answer(form({"x": {"type": "string"}}), {"action": "accept", "content": {"x": "a", "y": 1}})
    assert refused == "The answer to 'Go?' cannot be used: there is no field 'y'. It takes x (string)."
    request: JsonObject = {"method": "elicitation/create", "params": {"message": "Go?", "requestedSchema": {"type": "object"}}}
    assert judge_answer(request, {"action": "accept", "content": {"y": 1}}) is None, "a form that names no fields takes any"


def test_rejections_of_a_repeated_question_do_not_nest() -> None:
    request = form({"x": {"type": "integer"}})
    for _ in range(2):
        refused = judge_answer(request, {"action": "accept", "content": {"x": "a"}}) or ""
        assert refused.count("cannot be used") == 1 and question_text(request) == "Go?"
        request = again(form({"x": {"type": "integer"}}), refused)
    reason = """field 'x' is not of type "integer" but a string. It takes x (integer)."""
    assert request["params"]["message"] == f"Go?\nYour last answer cannot be used: {reason}"
