"""`_meta`: the keys that the gateway accepts from clients and from servers, with all limits."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from gateway.policy.decision import PASS, Reject
from gateway.policy.metadata import (
    CONNECTION_KEYS,
    gateway_ids,
    is_meta_key,
    is_own_key,
    judge_meta,
    listed_meta,
    peer_meta,
    request_meta,
    via_of,
)

OWN = "dev.moongate/"


@pytest.mark.parametrize("key", ["a", "a.b_c-d", "x/y", "com.example/", "com.example/a-1", "k" * 256, "1"])
def test_well_formed_keys_are_taken(key: str) -> None:
    assert is_meta_key(key) and judge_meta({key: 1}) is PASS


@pytest.mark.parametrize("key", ["", "k" * 257, "-a", "a-", "a b", "x/y/z", "1x/y", "x-/y", "ключ", 5, None])
def test_malformed_keys_are_refused_by_name(key: Any) -> None:
    verdict = judge_meta({"a": 1, key: 1})
    assert not is_meta_key(key)
    assert isinstance(verdict, Reject) and verdict.rule == "_meta" and verdict.reason.startswith(ascii(key)[:60])


@pytest.mark.parametrize("meta", [None, [], "a", 5])
def test_metadata_that_is_not_an_object_is_refused(meta: Any) -> None:
    assert judge_meta(meta) == Reject("_meta", "`_meta` must be an object.")


def test_ids_of_gateways_are_texts_of_bounded_length_in_order() -> None:
    assert gateway_ids(["b", "", "a", 5, None, "x" * 64, "y" * 65]) == ["b", "a", "x" * 64]
    assert gateway_ids("abc") == gateway_ids(None) == gateway_ids({"a": 1}) == []


def test_request_keeps_only_vendor_keys() -> None:
    given: dict[str, Any] = {
        "com.example/a": 1,
        "traceparent": "t",
        f"{OWN}depth": 9,
        f"{OWN}rule": "x",
        **dict.fromkeys(CONNECTION_KEYS, 1),
    }
    assert request_meta(given) == {"com.example/a": 1, "traceparent": "t"}
    assert request_meta(None) == request_meta({}) == {}
    plain = {"a": 1}
    assert request_meta(plain) == plain and request_meta(plain) is not plain


def test_request_keeps_well_formed_gateway_hops_and_idempotency_keys() -> None:
    assert request_meta({f"{OWN}via": ["one", 5, "two"], f"{OWN}idempotencyKey": "k" * 1_000, "z": 0}) == {
        f"{OWN}via": ["one", "two"], f"{OWN}idempotencyKey": "k" * 1_000, "z": 0,
    }  # fmt: skip
    assert request_meta({f"{OWN}withdrawn": True}) == {f"{OWN}withdrawn": True}
    rows: list[tuple[str, Any]] = [("withdrawn", "true"), ("withdrawn", 1)]
    rows += [("via", []), ("via", "one"), ("idempotencyKey", ""), ("idempotencyKey", 5), ("idempotencyKey", ["a"])]
    for key, odd in rows:
        assert request_meta({f"{OWN}{key}": odd, "z": 0}) == {"z": 0}


def test_long_idempotency_key_is_named_by_its_digest() -> None:
    long = "k" * 1_000 + "\ud800"
    digest = hashlib.sha256(long.encode("utf-8", "surrogatepass")).hexdigest()
    assert request_meta({f"{OWN}idempotencyKey": long}) == {f"{OWN}idempotencyKey": f"sha256:{digest}"}


def test_own_keys_are_known_also_with_hidden_characters() -> None:
    own = [f"{OWN}x", "dev.moon\u200bgate/x", "dev.moon\x1b[0mgate/x"]
    assert [is_own_key(key) for key in (*own, "dev.moongate", "com.example/dev.moongate/")] == [True, True, True, False, False]


def test_request_with_hops_passed_another_gateway() -> None:
    assert via_of({f"{OWN}via": ["one"]}) == ("one",)
    assert not any(map(via_of, ({}, {f"{OWN}via": []}, {f"{OWN}via": [5]})))


TASK = {"taskId": "t", "status": "working", "more": 1}


@pytest.mark.parametrize(
    ("key", "value", "taken"),
    [
        ("hops", ["a", 5], ["a"]),
        ("hops", "a", None),
        ("gateway", "g" * 200, "g" * 200),
        ("gateway", "g" * 201, None),
        ("gateway", "", None),
        ("askKey", 5, None),
        ("askKey", "k", "k"),
        ("sessionId", "s", "s"),
        ("task", TASK, TASK),
        ("task", {"taskId": "t"}, None),
        ("task", {"status": "working"}, None),
        ("task", {"taskId": "t", "status": 5}, None),
        ("task", "t", None),
        ("agent", {"model": "m"}, {"model": "m"}),
        ("agent", "m", None),
        ("part", {"of": 1}, {"of": 1}),
        ("rule", "r", None),
        ("droppedArguments", ["a"], None),
    ],
)
def test_server_metadata_keeps_only_gateway_keys_of_a_peer(key: str, value: Any, taken: Any) -> None:
    assert peer_meta({f"{OWN}{key}": value, "a": 1}) == ({"a": 1} if taken is None else {f"{OWN}{key}": taken, "a": 1})


def test_server_metadata_without_gateway_keys_is_the_same_object() -> None:
    plain = {"com.example/a": 1, "b": None}
    assert peer_meta(plain) is plain
    assert peer_meta({"a": 1, "progressToken": 5, "dev.moon\u200bgate/rule": "r", "b": 2}) == {"a": 1, "b": 2}


def test_listed_tool_metadata_is_sent_without_malformed_keys() -> None:
    assert listed_meta({"a": 1, f"{OWN}rule": 2, "-odd": 3}) == {"a": 1}
    assert listed_meta(None) == listed_meta(["a"]) == {}
