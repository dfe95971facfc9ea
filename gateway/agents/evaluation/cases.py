"""Case files for `moongate eval`: questions to an agent, with expectations for the answers. Used by `cli.evaluate`.

A file is JSON Lines: `{"id", "input", "expect": {"contains", "notContains", "regex", "schema", "judge"}}`. A case passes
if all of its expectations are met.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from pydantic import ConfigDict, Field, ValidationError, field_validator

from gateway.agents.evaluation.eval_checks import EvalCheck, evaluator
from gateway.config.base_models import FileModel
from gateway.config.problems import problems_of
from gateway.errors import ConfigError
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.schema_check import SchemaCheck, measure

Judge = Callable[[str, str, Sequence[str]], Awaitable[tuple[bool, str]]]
"""Async function that judges an answer. It receives the agent's input, the answer and criteria.

It returns whether the answer meets all criteria, and the reason if not.
"""


class Expectations(FileModel):
    """Expectations for an agent's answer in a case file of `moongate eval`; the key `expect` of a case."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    contains: list[str] = Field(default_factory=list)
    not_contains: list[str] = Field(default_factory=list, alias="notContains")
    regex: list[str] = Field(default_factory=list)
    json_schema: JsonObject | None = Field(default=None, alias="schema")
    judge: list[str] = Field(default_factory=list)

    @field_validator("contains", "not_contains", "regex", "judge", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("regex")
    @classmethod
    def _compiles(cls, value: list[str]) -> list[str]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return value


class Case(FileModel):
    """One line of a case file of `moongate eval`: a question to an agent (`input`), with expectations for its answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = ""
    input: str = Field(min_length=1)
    expect: Expectations


def read_cases(text: str, *, name: str) -> list[Case]:
    """Parse the text of a case file (JSON Lines). The id of a case defaults to `line <number>`; `name` is the file's name in errors.

    Raises:
        ConfigError: A line is not a case or repeats an id, and the text names the file and line. Or the file has no cases.
    """
    cases: list[Case] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            case = Case.model_validate_json(line)
        except ValidationError as error:
            reasons = "; ".join(problem.line() for problem in problems_of(error, Case))
            raise ConfigError(f"Line {number} of {name} is not a case: {reasons}", path=name) from None
        case = case.model_copy(update={"id": case.id or f"line {number}"})
        if any(known.id == case.id for known in cases):
            raise ConfigError(f"Line {number} of {name}: another case has the id {case.id!r}; ids must be unique.", path=name)
        cases.append(case)
    if not cases:
        raise ConfigError(f"{name} has no cases; write one JSON object per line with `input` and `expect`.", path=name)
    return cases


def to_checks(case: Case, structured: JsonValue, judge: Judge | None) -> list[EvalCheck]:
    """Return the checks that judge an agent's answer: one per text and pattern, one for the schema, one for all criteria of the judge.

    The checks `schema` and `judge` give reasons if they fail. `structured` is the agent's structured answer, or `None`. `judge` judges
    criteria with a model.

    Raises:
        ConfigError: The case has criteria for a judge, and no judge is given.
    """
    expect = case.expect
    if expect.judge and judge is None:
        raise ConfigError(f"Case {case.id!r} has criteria for a judge; select its model with --judge.", path=case.id)
    checks = [_check(f"contains {text!r}", partial(_has, text)) for text in expect.contains]
    checks += [_check(f"notContains {text!r}", partial(_has, text), negated=True) for text in expect.not_contains]
    checks += [_check(f"regex {text!r}", re.compile(text).search) for text in expect.regex]
    if (schema := expect.json_schema) is not None:

        def fits(response: str) -> JsonObject:
            problem = _schema_problem(schema, response, structured)
            return {"passed": problem is None, "reason": problem or ""}

        checks.append(evaluator(fits, name="schema"))
    if expect.judge and judge is not None:

        async def is_met(query: str, response: str) -> JsonObject:
            met, reason = await judge(query, response, expect.judge)
            return {"passed": met, "reason": "" if met else reason}

        checks.append(evaluator(is_met, name="judge"))
    return checks


def _check(name: str, holds: Callable[[str], object], *, negated: bool = False) -> EvalCheck:
    def check(response: str) -> JsonObject:
        return {"passed": bool(holds(response)) is not negated, "reason": ""}

    return evaluator(check, name=name)


def _has(text: str, answer: str) -> bool:
    return text.lower() in answer.lower()


def _schema_problem(schema: JsonObject, answer: str, structured: Any) -> str | None:
    value: JsonValue = structured
    if value is None:
        try:
            value = json.loads(answer)
        except ValueError:
            return "the answer is not JSON"
    return SchemaCheck(schema).find(value, measure(value))
