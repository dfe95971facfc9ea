"""Which calls a person approves, and what the person reads before deciding."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from gateway.config.policies import ApprovalLists, SourcePolicy
from gateway.policy.answers import answer_problem
from gateway.policy.approvals import MAX_SHOWN, approval_form, describe_call, describe_sampling, is_approved, judge_approval


@pytest.mark.parametrize(
    ("approval", "name", "asks"),
    [
        ("never", "delete", False),
        ("always", "read", True),
        (ApprovalLists(always=["delete_*"]), "delete_all", True),
        (ApprovalLists(always=["delete_*"]), "read", False),
        (ApprovalLists(always=["*"], never=["read"]), "read", False),
        (ApprovalLists(always=["*"], never=["read"]), "Read", True),
        (ApprovalLists(), "read", False),
    ],
)
def test_calls_ask_by_the_servers_own_tool_names_and_never_wins(approval: Any, name: str, asks: bool) -> None:
    assert judge_approval(name, approval) is asks
    assert TypeAdapter(SourcePolicy).validate_python({"approval": approval}).approval == approval


def test_the_person_reads_tool_source_and_arguments_without_anything_hidden() -> None:
    arguments = {"path": "/etc/\x1b[31mpass\u202ewd\nsecond line", "n": 3, "list": ["a", {"b": None}]}
    text = describe_call("docs", "delete", arguments)
    assert "'delete' of 'docs'" in text
    assert "  path: /etc/passwd second line" in text.splitlines()
    assert "  n: 3" in text.splitlines()
    assert '  list: ["a", {"b": null}]' in text.splitlines()
    assert "\x1b" not in text and "\u202e" not in text


def test_what_is_shown_is_bounded_and_says_how_much_there_is() -> None:
    text = describe_call("docs", "write", {"body": "x" * 100_000, **{f"n{n}": "y" * 300 for n in range(50)}})
    assert len(text) < MAX_SHOWN + 100
    assert "(100000 characters)" in text


def test_a_sampling_request_is_shown_with_its_server_cap_and_text() -> None:
    params: dict[str, Any] = {
        "systemPrompt": "Be brief.",
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "Capital of France?"}},
            {"role": "user", "content": [{"type": "image"}]},
        ],
        "tools": [{"name": "x"}],
    }
    lines = describe_sampling("docs", params, 4096).splitlines()
    assert lines[0] == "Server 'docs' asks to use a model (up to 4096 tokens)."
    assert {"  instructions: Be brief.", "  user: Capital of France?", "  user: [image]", "  with 1 tool(s) of its own"} <= set(lines)


@pytest.mark.parametrize(
    ("answer", "approves"),
    [
        ({"action": "accept", "content": {"decision": "approve"}}, True),
        ({"action": "accept", "content": {"decision": "decline"}}, False),
        ({"action": "accept", "content": {}}, False),
        ({"action": "accept"}, False),
        ({"action": "decline", "content": {"decision": "approve"}}, False),
        ({"action": "cancel"}, False),
    ],
)
def test_only_a_chosen_yes_is_a_yes(answer: dict[str, Any], approves: bool) -> None:
    assert is_approved(answer) is approves
    assert approval_form("?")["params"]["requestedSchema"]["required"] == ["decision"]


@pytest.mark.parametrize(
    ("method", "answer", "fits"),
    [
        ("sampling/createMessage", {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"}, True),
        ("sampling/createMessage", {"role": "assistant", "content": [{"type": "tool_use"}], "model": "m", "more": 1}, True),
        ("sampling/createMessage", {"role": "system", "content": {"type": "text"}, "model": "m"}, False),
        ("sampling/createMessage", {"role": "assistant", "content": "x", "model": "m"}, False),
        ("sampling/createMessage", {"role": "assistant", "content": {"type": "text"}}, True),
        ("sampling/createMessage", {}, False),
        ("elicitation/create", {"action": "accept", "content": {}}, True),
        ("elicitation/create", {"action": "cancel"}, True),
        ("elicitation/create", {"action": "yes"}, False),
        ("elicitation/create", {"action": "accept", "content": "x"}, False),
        ("roots/list", {"roots": [{"uri": "file:///x"}]}, True),
        ("roots/list", {"roots": []}, True),
        ("roots/list", {"roots": [1]}, False),
        ("roots/list", {}, False),
    ],
)
def test_an_answer_is_checked_for_its_shape(method: str, answer: dict[str, Any], fits: bool) -> None:
    assert (answer_problem(method, answer) is None) is fits
