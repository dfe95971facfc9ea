"""Validates answers to requests for input: results of elicitations, sampling requests and `roots/list`.

`answer_problem` checks the shape of an answer, `judge_answer` also the fields of a form. The packages `tools`, `tasks`, `workflows` and
`cli` call one of these functions before they store or use an answer.
"""

from __future__ import annotations

import json
import re
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue, items_of, members_of
from gateway.policy.framing import BAR, shown
from gateway.policy.schema_check import SchemaCheck, measure

_ARGUMENT = re.compile(r"(^|; )argument(?= ')")
"""Matches the word "argument" in messages of `schema_check.SchemaCheck` ("argument 'x' …"), which is replaced by "field" for forms."""

_UNKNOWN = re.compile(r"the content: Additional properties are not allowed \((.+) (?:was|were) unexpected\)")
"""Matches the message of `schema_check.SchemaCheck` about fields that the form does not have; a text about form fields replaces it."""

_ACTIONS = ("accept", "decline", "cancel")

JSON_FOR = "JSON for "
"""Prefix of a form field's description if the user enters JSON there, because forms have no fields for objects and free lists."""

_CANNOT = " cannot be used: "

_AGAIN = f"Your last answer{_CANNOT}"
"""Prefix of the line that says why the last answer was rejected. The line is added to a question that is asked again."""


def answer_problem(method: str, answer: JsonMapping) -> str | None:
    """Return what is wrong with the shape of an answer to a request for input, or `None`. Unknown keys are accepted.

    `method` is the method of the request, such as `elicitation/create`.
    """
    match method:
        case "sampling/createMessage":
            return _sampling_problem(answer)
        case "elicitation/create":
            if answer.get("action") not in _ACTIONS:
                return "`action` must be accept, decline or cancel"
            content = answer.get("content")
            return None if content is None or isinstance(content, dict) else "`content` must be an object"
        case "roots/list":
            roots: JsonValue = answer.get("roots")
            return None if _are_objects(roots, "uri") else "`roots` must be a list of objects with a `uri`"
        case _:
            return None


def _sampling_problem(answer: JsonMapping) -> str | None:
    if answer.get("role") not in ("user", "assistant"):
        return "`role` must be user or assistant"
    content: JsonValue = answer.get("content")
    if not _are_objects(content if isinstance(content, list) else [content], "type"):
        return "`content` must be a content block, or a list of them"
    return None if isinstance(answer.get("model", ""), str) else "`model` must be a string"  # some clients omit `model`


def _are_objects(value: JsonValue, key: str) -> bool:
    items = cast("list[JsonValue]", value) if isinstance(value, list) else [None]
    return all(isinstance(item, dict) and isinstance(cast("JsonMapping", item).get(key), str) for item in items)


MAX_REASON = 600
"""Maximum number of characters of the reason why the last answer was rejected. The reason is added to a question that is asked again."""

MAX_QUESTION = 200
"""Maximum number of characters of a question that are quoted in the text that rejects an answer to it."""


def judge_answer(request: JsonMapping, answer: JsonValue, *, judges_fields: bool = True) -> str | None:
    """Return why the answer to a request for input is invalid, or `None`. The text names the question, its fields and the problem.

    With `judges_fields`, the values of an accepted form's fields and their formats are checked too; this is for questions that the gateway
    itself asks. Fields that the form does not have are then rejected if the form's schema has `properties` and no `additionalProperties`.
    If the schema cannot be compiled, it rejects nothing.
    """
    method = str(request.get("method"))
    if not isinstance(answer, dict):
        return refused_answer(request, "it must be an object")
    given = cast("JsonMapping", answer)
    if problem := answer_problem(method, given):
        return refused_answer(request, problem)
    schema: JsonValue = _params(request).get("requestedSchema")
    if not judges_fields or method != "elicitation/create" or given.get("action") != "accept" or not isinstance(schema, dict):
        return None
    form = cast("JsonObject", schema)
    closed: JsonObject = {"additionalProperties": False, **form} if "properties" in form else form
    check = SchemaCheck(closed, is_rule=True)
    if check.problem is not None:  # probably an unknown `format`, which is ignored without `is_rule`
        check = SchemaCheck(closed)
    content: JsonObject = given.get("content") or {}
    if check.problem is not None or (problem := check.find(content, measure(content))) is None:
        return None
    problem = _UNKNOWN.sub(r"there is no field \1", _ARGUMENT.sub(r"\1field", problem).replace("the arguments", "the content"))
    return refused_answer(request, problem)


def refused_answer(request: JsonMapping, problem: str) -> str:
    """Return the text that rejects an answer: the question, the problem, and, for an elicitation form, its fields."""
    takes = f" It takes {fields}." if (fields := fields_of(request)) else ""
    return f"The answer to {question_text(request)!r}{_CANNOT}{problem.rstrip('.')}.{takes}"


def fields_of(request: JsonMapping) -> str:
    """Return the fields of an elicitation form in words, such as `count (integer), size (one of "small", "large")`.

    At most 20 fields; empty for other requests.
    """
    properties = members_of(members_of(_params(request).get("requestedSchema")).get("properties"))
    return ", ".join(f"{shown(name, 60)} ({_kind(kind)})" for name, kind in list(properties.items())[:20])


def question_text(request: JsonMapping) -> str:
    """Return the message (or method) of a request for input, cut to `MAX_QUESTION` characters and without the line that `again` added."""
    text = str(_params(request).get("message") or request.get("method"))
    return shown(text.partition(_AGAIN)[0].rstrip(f"{BAR}\n"), MAX_QUESTION)


def again(request: JsonObject, refusal: str) -> JsonObject:
    """Return the request that asks a question again, with an additional line in its message that says why the last answer was rejected.

    `refusal` is the text that `judge_answer` returned.
    """
    params: JsonObject = dict(_params(request))
    reason = shown(refusal.partition(_CANNOT)[2] or refusal, MAX_REASON)
    return {**request, "params": {**params, "message": f"{params.get('message', '')}\n{_AGAIN}{reason}"}}


def _kind(kind: JsonValue) -> str:
    written = members_of(kind)
    if choices := items_of(written.get("enum")):
        return shown("one of " + ", ".join(json.dumps(choice, ensure_ascii=False) for choice in choices), 200)
    if str(written.get("description")).startswith(JSON_FOR):
        return shown(str(written["description"]), 120)
    return shown(", ".join([str(written.get("type") or "any value"), *_limits(written)]), 120)


def _limits(kind: JsonMapping) -> list[str]:
    """Return the format and the limits of a form's field in words, such as `1 to 10` or `at most 80 characters`. `kind` is its schema."""
    found: list[str] = [str(kind["format"])] if "format" in kind else []
    for least, most, unit in (("minimum", "maximum", ""), ("minLength", "maxLength", " characters")):
        low, high = kind.get(least), kind.get(most)
        if low is not None or high is not None:
            words = f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
            found.append(words + unit)
    return found


def _params(request: JsonMapping) -> JsonMapping:
    return members_of(request.get("params"))
