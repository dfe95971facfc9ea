"""Sizes of results: close to the length of the JSON, cheap, and correct for nested values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.policy.decision import Pass, Reject
from gateway.policy.result_limits import Shorten, judge_result, measure_bytes

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


def test_deep_nesting_is_accepted() -> None:
    value: Any = "x" * 2_000
    for _ in range(50_000):
        value = [value]
    assert isinstance(judge_result({"structuredContent": value}, 1_000, 1_500), Reject)


def test_result_passes_is_shortened_or_rejected_by_size() -> None:
    result = {"content": [{"type": "text", "text": "x" * 2_000}]}
    assert isinstance(judge_result(result, 4_096, 8_192), Pass)
    assert judge_result(result, 1_024, 8_192) == Shorten(1_024)
    verdict = judge_result(result, 1_024, 1_500)
    assert isinstance(verdict, Reject)
    assert verdict.rule == "maxKeptBytes"
    assert "1500" in verdict.reason


IMAGE = {"type": "image", "data": "x" * 5_000, "mimeType": "image/png"}
BLOB = {"uri": "a://b", "blob": "x" * 5_000}


@pytest.mark.parametrize(
    "result",
    [
        {"content": [IMAGE, {"type": "audio", "data": "x" * 5_000}, {"type": "resource", "resource": BLOB}]},
        {"contents": [BLOB]},
        {"messages": [{"role": "user", "content": IMAGE}]},
    ],
)
def test_binary_bytes_count_only_towards_the_kept_size(result: Any) -> None:
    assert isinstance(judge_result(result, 1_024, 20_000), Pass)
    assert isinstance(judge_result(result, 1_024, 2_000), Reject)


def test_data_that_only_looks_like_an_image_counts_as_text() -> None:
    assert isinstance(judge_result({"structuredContent": IMAGE, "content": []}, 1_024, 20_000), Shorten)
    assert isinstance(judge_result({"structuredContent": {"rows": [BLOB]}, "content": []}, 1_024, 20_000), Shorten)


def test_lone_surrogates_are_counted_like_any_text() -> None:
    assert measure_bytes("\ud800", 100) == 5
