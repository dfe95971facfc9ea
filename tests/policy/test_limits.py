"""Result sizes: near the length of the JSON, cheap, and never fooled by nesting."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.policy.decision import Pass, Reject
from gateway.policy.limits import judge_result, measure_bytes

VALUES: list[dict[str, Any]] = [
    {"content": [{"type": "text", "text": "hello " * 400}]},
    {"content": [{"type": "text", "text": "日本語テキスト" * 300}]},
    {"structuredContent": {"rows": [{"id": n, "ok": True, "note": None} for n in range(500)]}},
    {str(n): {} for n in range(300)},
]


@pytest.mark.parametrize("value", VALUES)
def test_the_measure_is_close_to_the_encoded_length(value: Any) -> None:
    encoded = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    assert 0.8 * encoded <= measure_bytes(value, 10_000_000) <= 1.3 * encoded


def test_counting_stops_past_the_limit() -> None:
    assert 100 < measure_bytes(["x" * 60] * 1_000_000, 100) < 300_000_000
    assert measure_bytes("日" * 1_000_000, 100) > 100


def test_nesting_is_no_obstacle() -> None:
    value: Any = "x" * 2_000
    for _ in range(50_000):
        value = [value]
    assert isinstance(judge_result({"structuredContent": value}, 1_000), Reject)


def test_a_result_within_the_limit_passes_and_a_larger_one_says_what_to_do() -> None:
    result = {"content": [{"type": "text", "text": "x" * 2_000}]}
    assert isinstance(judge_result(result, 4_096), Pass)
    verdict = judge_result(result, 1_024)
    assert isinstance(verdict, Reject)
    assert verdict.rule == "maxResultBytes"
    assert "1024" in verdict.reason


def test_lone_surrogates_are_counted_like_any_text() -> None:
    assert measure_bytes("\ud800", 100) == 5
