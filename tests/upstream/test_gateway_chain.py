"""Hop hygiene and the loop guard."""

from __future__ import annotations

import pytest

from gateway.errors import ToolFailed
from gateway.policy.metadata import HOPS_KEY, VIA_KEY, peer_meta, request_meta
from gateway.upstream.gateway_chain import MAX_HOPS, extend_via, hops_of, with_hops, without_loops


def test_connection_owned_keys_never_cross_and_the_rest_does() -> None:
    meta = {
        "progressToken": 7,
        "io.modelcontextprotocol/clientInfo": {"name": "x"},
        "io.modelcontextprotocol/serverInfo": {"name": "y"},
        "traceparent": "00-1-2-01",
        "com.example/tenant": "a",
    }
    assert request_meta(meta) == peer_meta(meta) == {"traceparent": "00-1-2-01", "com.example/tenant": "a"}


def test_each_gateway_adds_itself_to_the_via_list() -> None:
    assert extend_via({VIA_KEY: ["a"]}, "b", "up")[VIA_KEY] == ["a", "b"]


@pytest.mark.attack(35)
def test_call_that_returns_to_a_gateway_is_rejected() -> None:
    with pytest.raises(ToolFailed, match=r"'up' refused: .*loop"):
        extend_via({VIA_KEY: ["a", "b"]}, "a", "up")


@pytest.mark.attack(35)
def test_call_through_too_many_gateways_is_rejected() -> None:
    with pytest.raises(ToolFailed, match="at most"):
        extend_via({VIA_KEY: [str(n) for n in range(MAX_HOPS)]}, "me", "up")


@pytest.mark.parametrize("value", [None, "a", {"a": 1}, 3])
def test_malformed_via_list_reads_as_empty(value: object) -> None:
    assert hops_of({VIA_KEY: value}, VIA_KEY) == []


def test_tools_that_came_through_this_gateway_are_not_relisted() -> None:
    tools = [{"name": "own", "_meta": {HOPS_KEY: ["b", "me"]}}, {"name": "theirs", "_meta": {HOPS_KEY: ["b"]}}, {"name": "plain"}]
    assert [t["name"] for t in without_loops(tools, "me")] == ["theirs", "plain"]


def test_listing_for_another_gateway_names_the_gateways_passed() -> None:
    listed = with_hops([{"name": "a"}, {"name": "b", "_meta": {HOPS_KEY: ["far"], "x": 1}}], "me")
    assert [entry["_meta"] for entry in listed] == [{HOPS_KEY: ["me"]}, {HOPS_KEY: ["me", "far"], "x": 1}]
