"""`SchemaCheck` against hostile schemas and values: it is fast, fetches nothing, and gives clear reasons."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from gateway.policy.argument_policy import ArgumentPolicy
from gateway.policy.decision import Pass, Reject

pytestmark = pytest.mark.timeout(20)


def judge(schema: dict[str, Any], arguments: dict[str, Any]) -> Pass | Reject:
    verdict = ArgumentPolicy.build("t", schema, [], {}).judge(arguments)
    assert isinstance(verdict, Pass | Reject)
    return verdict


def reason(schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    verdict = judge(schema, arguments)
    assert isinstance(verdict, Reject)
    assert len(verdict.reason) <= 500
    return verdict.reason


def nested(depth: int, leaf: Any, key: str = "a") -> Any:
    for _ in range(depth):
        leaf = {key: leaf}
    return leaf


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|a)*$", "(a|aa)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", r"(.*a){25}$"])
@pytest.mark.attack(23)
def test_pattern_that_hangs_backtracking_engines_is_answered_at_once(pattern: str) -> None:
    reason({"properties": {"a": {"pattern": pattern}}}, {"a": "a" * 50_000 + "!"})


def test_look_around_works() -> None:
    schema = {"properties": {"a": {"pattern": r"^(?!secret)\w+$"}}}
    assert isinstance(judge(schema, {"a": "public"}), Pass)
    assert "does not match" in reason(schema, {"a": "secret1"})


@pytest.mark.attack(23)
def test_look_around_that_backtracks_too_much_is_refused() -> None:
    assert "step limit" in reason({"properties": {"a": {"pattern": r"^(?=a)(\w+\s?)*$|(a)\1"}}}, {"a": "a" * 60 + "!"})


def test_patterns_over_unicode_classes_load() -> None:
    schema = {"properties": {"a": {"pattern": r"^\p{L}{1,64}$"}}}
    assert isinstance(judge(schema, {"a": "Zürich"}), Pass)


@pytest.mark.attack(23)
def test_patterns_are_not_run_on_endless_text() -> None:
    assert "characters" in reason({"properties": {"a": {"pattern": "x$"}}}, {"a": "a" * 2_000_000})
    assert isinstance(judge({"properties": {"a": {"type": "string"}}}, {"a": "a" * 2_000_000}), Pass)


@pytest.mark.attack(24)
def test_references_are_not_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        for ref in (f"http://127.0.0.1:{port}/s.json", "file:///etc/hostname"):
            assert "not fetched" in reason({"properties": {"a": {"$ref": ref}}}, {"a": 1})
        with pytest.raises(BlockingIOError):  # no connection was made
            listener.accept()


def test_recursive_schemas_work() -> None:
    schema: dict[str, Any] = {
        "$defs": {"node": {"type": "object", "properties": {"kids": {"items": {"$ref": "#/$defs/node"}}, "n": {"type": "integer"}}}},
        "properties": {"root": {"$ref": "#/$defs/node"}},
    }
    assert isinstance(judge(schema, {"root": {"kids": [{"n": 1, "kids": []}]}}), Pass)
    assert "root.kids[0].n" in reason(schema, {"root": {"kids": [{"n": "x"}]}})


@pytest.mark.attack(24)
def test_reference_to_itself_ends() -> None:
    assert isinstance(judge({"$ref": "#"}, {}), Pass)


@pytest.mark.attack(24)
def test_schema_nested_too_deeply_is_refused() -> None:
    assert "nested deeper" in reason({"properties": {"a": nested(5_000, {"type": "string"}, "not")}}, {"a": 1})


@pytest.mark.attack(24)
def test_schema_with_too_many_values_is_refused() -> None:
    assert "values" in reason({"properties": {"a": {"enum": list(range(150_000))}}}, {"a": 1})


@pytest.mark.attack(24)
def test_definitions_that_double_at_each_step_are_refused() -> None:
    defs: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}
    schema: dict[str, Any] = {"$defs": {**defs, "d60": {}}, "properties": {"a": {"$ref": "#/$defs/d0"}}}
    assert "references are expanded" in reason(schema, {"a": 1})


def test_doubling_hidden_behind_ids_is_refused() -> None:
    defs: dict[str, Any] = {f"d{i}": {"$id": f"http://x/d{i}", "allOf": [{"$ref": f"d{i + 1}"}] * 2} for i in range(60)}
    schema = {"$id": "http://x/root", "$defs": {**defs, "d60": {"$id": "http://x/d60"}}, "properties": {"a": {"$ref": "d0"}}}
    assert "references" in reason(schema, {"a": 1})


def test_recursion_through_the_same_child_twice_ends() -> None:
    kid = {"properties": {"c": {"$ref": "#/$defs/n"}}}
    schema = {"$defs": {"n": {"allOf": [kid, kid, kid]}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    assert isinstance(judge(schema, {"a": nested(60, {}, "c")}), Pass)


@pytest.mark.attack(21)
def test_arguments_nested_too_deeply_are_refused() -> None:
    schema: dict[str, Any] = {"properties": {"a": {}}}
    assert isinstance(judge(schema, {"a": nested(60, 1)}), Pass)
    assert "nested deeper than 64" in reason(schema, {"a": nested(70, 1)})
    assert "nested deeper than 64" in reason(schema, {"a": nested(20_000, 1)})


def test_arguments_too_large_for_a_large_schema_are_refused() -> None:
    item = {"allOf": [{"minimum": n} for n in range(3_000)]}
    assert "too many to check" in reason({"properties": {"a": {"items": item}}}, {"a": [5_000] * 100_000})


def test_large_wrong_array_is_answered_with_its_first_problem() -> None:
    assert "a[0]" in reason({"properties": {"a": {"items": {"type": "string"}}}}, {"a": [1] * 400_000})


@pytest.mark.parametrize("value", ["\ud800", {"\ud800": 1}, {1: 2}])
def test_text_that_no_json_has_does_no_harm(value: Any) -> None:
    assert isinstance(judge({"properties": {"a": {"type": "number"}}}, {"a": value}), Reject)


@pytest.mark.parametrize("text", ["1e999", "-1e999", "NaN", "1" + "0" * 4_200])
def test_numbers_that_slip_past_a_maximum_are_refused(text: str) -> None:
    assert "a number" in reason({"properties": {"a": {"maximum": 5}}}, {"a": json.loads(text)})
    assert "a number" in reason({"properties": {"a": {}}}, {"a": [{"b": json.loads(text)}]})


def test_number_beyond_any_parser_is_refused() -> None:
    assert "digits" in reason({"properties": {"a": {"maximum": 5}}}, {"a": 10**5_000})
