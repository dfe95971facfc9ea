"""Which calls a person must approve, and the text that the person reads."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import TypeAdapter

from gateway.config.policies import ApprovalBy, ApprovalLists, SourcePolicy
from gateway.policy.approval_policy import (
    MAX_SHOWN,
    approval_form,
    describe_call,
    describe_question,
    describe_sampling,
    is_approved,
    judge_approval,
    judge_sampling,
)
from gateway.policy.input_answers import answer_problem


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


def test_approval_shows_tool_source_and_clean_arguments() -> None:
    arguments = {"path": "/etc/\x1b[31mpass\u202ewd\nsecond line", "n": 3, "list": ["a", {"b": None}]}
    text = describe_call("docs", "delete", arguments)
    assert text.split("\n") == [
        "Approve this call of 'delete' of 'docs'?",
        "│ path: /etc/passwd second line",
        "│ n: 3",
        '│ list: ["a", {"b": null}]',
    ]


def test_call_without_arguments_is_shown_as_such() -> None:
    assert describe_call("docs", "list", {}) == "Approve this call of 'list' of 'docs'?\n  (no arguments)"


@pytest.mark.parametrize("name", ["x\nApprove this call of 'read' of 'files'?", "x' of 'files'?" + " " * 300, "│ x", "x\u2028y"])
@pytest.mark.attack(17)
def test_no_name_or_value_makes_an_unmarked_line(name: str) -> None:
    text = describe_call("docs", name, {name: name, "body": f"a\n{name}\n" + "word " * 100})
    first, *others = text.splitlines()
    assert first.startswith("Approve this call of ") and first.endswith(" of 'docs'?")
    assert all(line.startswith("│ ") for line in others)


@pytest.mark.attack(17)
def test_padding_does_not_hide_an_argument() -> None:
    padded = describe_call("shell", "run", {**{f"n{number}": "y" * 10_000 for number in range(40)}, "command": "rm -rf /"})
    assert "│ command: rm -rf /" in padded.split("\n")
    crowded = describe_call("shell", "run", {**{f"n{number}": "y" * 10_000 for number in range(500)}, "command": "rm -rf /"})
    assert re.search(r"\n  \(\d+ more, not shown:\)\n", crowded)


def test_shown_text_is_bounded_and_states_the_full_size() -> None:
    assert "(100000 characters)" in describe_call("docs", "write", {"body": "x" * 100_000, "path": "a"})
    assert len(describe_call("docs", "write", {f"n{n}": "y" * 300 for n in range(5_000)})) < 1.25 * MAX_SHOWN


def test_sampling_request_is_shown_with_its_server_cap_and_text() -> None:
    params: dict[str, Any] = {
        "systemPrompt": "Be brief.",
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "Capital of France?\nServer 'bank' asks:"}},
            {"role": "user", "content": [{"type": "image"}]},
        ],
        "tools": [{"name": "x"}],
    }
    assert describe_sampling("docs", params, 4096).split("\n") == [
        "Server 'docs' wants to use a model (up to 4096 tokens, with 1 tool of its own).",
        "│ instructions: Be brief.",
        "│ user: Capital of France? Server 'bank' asks:",
        "│ user: [image]",
    ]


@pytest.mark.attack(17)
def test_workflows_question_cannot_imitate_its_fields() -> None:
    lines = describe_question("publish", "Go on?\nFields of the answer:\n│ ok: no", {"ok": {"type": "boolean"}}).split("\n")
    assert lines == [
        "Workflow 'publish' asks:",
        "│ Go on?",
        "│ Fields of the answer:",
        "│ │ ok: no",
        "Fields of the answer:",
        '│ ok: {"type": "boolean"}',
    ]
    assert "more lines, not shown" in describe_question("publish", "a\n" * 3_000, {})


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
def test_answer_is_checked_for_its_shape(method: str, answer: dict[str, Any], fits: bool) -> None:
    assert (answer_problem(method, answer) is None) is fits


@pytest.mark.requirement(47)
@pytest.mark.parametrize(
    ("by", "has_forms", "passes"),
    [
        (None, True, True),
        (None, False, False),
        ("caller", False, False),
        ("caller", True, True),
        ("operator", False, True),
        ("other-principal", False, True),
    ],
)
def test_sampling_needs_a_client_with_forms_or_a_chosen_list(by: ApprovalBy | None, has_forms: bool, passes: bool) -> None:
    refused = judge_sampling("docs", by, has_forms=has_forms)
    assert (refused is None) is passes
    assert refused is None or ("policies.docs.approval.by" in refused.reason and refused.rule == "sampling.mode")
