"""`key=value` words become what the tool's schema wants."""

from __future__ import annotations

from typing import Any

import click
import pytest

from gateway.cli.arguments import build_arguments, undeclared

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "limit": {"type": "integer"},
        "ratio": {"type": "number"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "options": {"type": "object"},
        "maybe": {"type": ["integer", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "choice": {"enum": [1, 2, "auto"]},
        "open": {},
    },
}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["text=5"], {"text": "5"}),
        (["text=a=b"], {"text": "a=b"}),
        (["text="], {"text": ""}),
        (["limit=5"], {"limit": 5}),
        (["ratio=5"], {"ratio": 5}),
        (["ratio=0.5"], {"ratio": 0.5}),
        (["deep=true"], {"deep": True}),
        (["tags=a"], {"tags": ["a"]}),
        (["tags=a", "tags=b"], {"tags": ["a", "b"]}),
        (['tags=["a", "b"]'], {"tags": ["a", "b"]}),
        (["sizes=1", "sizes=2"], {"sizes": [1, 2]}),
        (['options={"a": 1}'], {"options": {"a": 1}}),
        (["maybe=null"], {"maybe": None}),
        (["either=7"], {"either": 7}),
        (["either=seven"], {"either": "seven"}),
        (["choice=2"], {"choice": 2}),
        (["choice=auto"], {"choice": "auto"}),
        (["open=5"], {"open": "5"}),
        (["other=5"], {"other": "5"}),
        (["other:=5"], {"other": 5}),
        (["text:=null"], {"text": None}),
    ],
)
def test_values_are_typed_by_the_schema(words: list[str], expected: dict[str, Any]) -> None:
    assert build_arguments(SCHEMA, words, None) == expected


def test_key_value_arguments_override_the_json_object() -> None:
    assert build_arguments(SCHEMA, ["limit=2"], '{"limit": 1, "text": "x"}') == {"limit": 2, "text": "x"}


@pytest.mark.parametrize(
    ("words", "args_json", "said"),
    [
        (["limit=five"], None, "'limit' must be integer, not 'five'"),
        (["deep=yes"], None, "must be boolean"),
        (["limit=1", "limit=2"], None, "given 2 times"),
        (["text"], None, "not key=value"),
        (["=x"], None, "not key=value"),
        (["options:={"], None, "not JSON"),
        ([], "[1]", "must be a JSON object"),
    ],
)
def test_invalid_argument_is_named(words: list[str], args_json: str | None, said: str) -> None:
    with pytest.raises(click.UsageError, match=said):
        build_arguments(SCHEMA, words, args_json)


def test_undeclared_arguments_are_reported_unless_the_tool_is_open() -> None:
    assert undeclared(SCHEMA, {"txt": 1, "text": 2}) == ["argument 'txt' is not declared by the tool. Did you mean 'text'?"]
    assert undeclared({**SCHEMA, "additionalProperties": {"type": "string"}}, {"txt": 1}) == []
