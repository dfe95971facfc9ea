"""Texts that people read before they approve; detection and removal of hidden characters; origins of agents' cards."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.policy.addresses import is_loopback_host, is_same_origin, judge_address
from gateway.policy.approval_policy import (
    canonical_arguments,
    describe_call,
    describe_question,
    describe_sampling,
    is_approved,
    may_stand,
    read_decision,
    shown,
)
from gateway.policy.decision import PASS, Reject, Rewrite
from gateway.policy.hidden_text import judge_hidden_text, judge_result_text, may_hide, name_hidden, strip_value

# -- approvals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain", "plain"),
        ("two\n  lines", "two lines"),
        ("hid\u200bden", "hidden"),
        ("x" * 10, "x" * 10),
        ("x" * 11, "x" * 10 + "… (11 characters)"),
        ("x" + " " * 38 + "y", "x y"),
        ("x" + " " * 39 + "y", "x… (41 characters)"),
    ],
)
def test_text_is_shown_on_one_line_cut_with_its_length(text: str, line: str) -> None:
    assert shown(text, 10) == line


def test_approval_of_a_call_shows_or_names_every_argument() -> None:
    assert describe_call("docs", "wipe", {"path": "a\nb", "deep": {"é": [1]}}).splitlines() == [
        "Approve this call of 'wipe' of 'docs'?", "│ path: a b", '│ deep: {"é": [1]}',
    ]  # fmt: skip
    assert describe_call("docs", "wipe", {}) == "Approve this call of 'wipe' of 'docs'?\n  (no arguments)"
    told = describe_call("docs", "wipe", {f"name{number}": "x" * 900 for number in range(40)})
    assert len(told) < 5_000 and "more, not shown:)" in told and all(f"name{number}" in told for number in range(40))


def test_approval_of_sampling_shows_limit_tools_and_messages() -> None:
    block, image = {"type": "text", "text": "one"}, {"type": "image", "data": "aa=="}
    messages: list[Any] = [{"role": "user", "content": block}, {"role": "assistant", "content": [block, image]}]
    params: dict[str, Any] = {"systemPrompt": "Be brief.", "tools": [{}, {}], "messages": messages}
    assert describe_sampling("docs", params, 9).splitlines() == [
        "Server 'docs' wants to use a model (up to 9 tokens, with 2 tools of its own).",
        "│ instructions: Be brief.",
        "│ user: one",
        "│ assistant: one [image]",
    ]
    assert describe_sampling("docs", {"tools": [{}]}, None).splitlines() == [
        "Server 'docs' wants to use a model (without a token limit, with 1 tool of its own).", "  (no messages)",
    ]  # fmt: skip


def test_question_of_a_workflow_shows_its_lines_and_fields() -> None:
    assert describe_question("release", "Go?\nNow?", {"ok": {"type": "boolean"}}).splitlines() == [
        "Workflow 'release' asks:", "│ Go?", "│ Now?", "Fields of the answer:", '│ ok: {"type": "boolean"}',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "standing", "decision"),
    [
        ({"action": "accept", "content": {"decision": "approve"}}, False, "approve"),
        ({"action": "accept", "content": {"decision": "approve"}}, True, "approve"),
        ({"action": "accept", "content": {"decision": "approve_always"}}, True, "approve_always"),
        ({"action": "accept", "content": {"decision": "approve_always"}}, False, "decline"),
        ({"action": "accept", "content": {"decision": "decline"}}, False, "decline"),
        ({"action": "accept", "content": {}}, False, "decline"),
        ({"action": "accept"}, False, "decline"),
        ({"action": "decline", "content": {"decision": "approve"}}, False, "decline"),
        ({}, False, "decline"),
    ],
)
def test_only_an_offered_choice_in_an_accepted_form_approves(answer: dict[str, Any], standing: bool, decision: str) -> None:
    assert read_decision(answer, standing=standing) == decision
    assert is_approved(answer) is (decision == "approve")


def test_equal_arguments_have_equal_digests_except_scripts() -> None:
    assert canonical_arguments({"a": 1, "b": "é"}) == canonical_arguments({"b": "é", "a": 1}) != canonical_arguments({"a": 1})
    assert len(canonical_arguments({})) == 64
    assert all(may_stand(*tool) for tool in (("docs", "read"), ("docs", "run_skill_script"), ("agent/clerk", "load_skill")))
    assert not any(may_stand(source, "run_skill_script") for source in ("skill", "agent/clerk"))


# -- hidden text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "kind"),
    [
        ((0x1B, 0x9B), "a terminal control sequence"),
        ((0x00, 0x08, 0x0E, 0x7F, 0x80, 0x9A, 0x9F), "a control character"),
        ((0x202A, 0x202C, 0x202E, 0x2066, 0x2068, 0x2069), "a text direction control"),
        ((0xE0001, 0xE0041, 0xE007F), "an invisible tag character"),
        ((0x200B, 0x2060, 0xFEFF), "an invisible character"),
    ],
)
def test_hidden_character_is_named_by_kind_and_code_point(points: tuple[int, ...], kind: str) -> None:
    for point in points:
        assert name_hidden(f"vis{chr(point)}ible") == f"{kind} (U+{point:04X})"
    assert name_hidden("visible\n\té") == "nothing hidden"


@pytest.mark.parametrize(
    ("encoded", "may"),
    [
        (b'"plain"', False),
        (b"\\u200b", True),
        (b"\\b", True),
        (b"x\\u0041", True),
        (b"x\\b", True),
        (b"\\n\\t\\\\", False),
        ("é".encode(), True),
        (b"\x7f", True),
        (b"x" * 100_000, False),
        (b"\\n" + b"x" * 100_000, True),
    ],
)
def test_plain_json_bytes_have_no_hidden_text(encoded: bytes, may: bool) -> None:
    assert may_hide(encoded) is may


def test_result_with_hidden_text_is_cleaned_rejected_or_allowed() -> None:
    hidden: dict[str, Any] = {"content": [{"type": "text", "text": "a\u200bb"}], "_meta": {"x": "c\u200bd"}}
    assert judge_result_text(hidden, "allow") is PASS
    assert judge_result_text(hidden, "strip") == Rewrite(
        {"content": [{"type": "text", "text": "ab"}], "_meta": {"x": "cd", "dev.moongate/hiddenText": "stripped"}}
    )
    refused = judge_result_text(hidden, "refuse")
    assert isinstance(refused, Reject) and refused.rule == "hiddenText"
    assert refused.reason == "The result contains an invisible character (U+200B) at content[0].text, which people do not see."
    for mode in ("allow", "strip", "refuse"):
        assert judge_result_text({"content": [{"type": "text", "text": "plain"}]}, mode) is PASS
    odd: dict[str, Any] = {"text": "a\u200bb", "_meta": "odd"}
    assert judge_result_text(odd, "strip") == Rewrite({"text": "ab", "_meta": {"dev.moongate/hiddenText": "stripped"}})


def test_place_of_hidden_text_is_given_by_keys_and_indexes() -> None:
    for value, at in ((["a", "b\u200b"], " at [1]"), ({"k\u200b": 1}, ""), ({"a": {"b": ["\u200b"]}}, " at a.b[0]"), ("\u200b", "")):
        verdict = judge_hidden_text(value, "It")
        assert (
            isinstance(verdict, Reject) and verdict.reason == f"It contains an invisible character (U+200B){at}, which people do not see."
        )


def nested(depth: int, inner: Any) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


def test_value_is_searched_to_a_bounded_depth() -> None:
    verdict = judge_hidden_text(nested(500, "plain"), "It")
    assert isinstance(verdict, Reject) and "nested too deeply to be searched" in verdict.reason
    assert judge_hidden_text(nested(20, "plain"), "It") is PASS
    assert strip_value(nested(20, "a\u200b")) == nested(20, "a") and strip_value(nested(500, "plain")) != nested(500, "plain")


def test_member_names_are_cleaned_only_on_request_and_binary_never() -> None:
    value: Any = {"k\u200b": "v\u200b", "plain": 5}
    assert (strip_value(value), strip_value(value, keys=True)) == ({"k\u200b": "v", "plain": 5}, {"k": "v", "plain": 5})
    plain: Any = {"a": ["b", {"c": None}]}
    assert strip_value(plain) is plain and strip_value(plain, keys=True) is plain


# -- places --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "other", "same"),
    [
        ("https://a/x", "https://a/y", True),
        ("https://a/x", "https://a:443/y", True),
        ("http://a:80/x", "http://a/y", True),
        ("http://a", "https://a", True),
        ("http://a:80", "https://a:443", True),
        ("http://a:8080", "https://a", False),
        ("http://a", "https://a:8443", False),
        ("https://a", "http://a", False),
        ("https://a:1", "https://a:2", False),
        ("https://a", "https://b", False),
        ("https://a", "https://u@a", False),
        ("https://a", "https://:p@a", False),
        ("https://a", "https://a:99999", False),
        ("", "", False),
        ("ftp://a", "ftp://a:21", False),
    ],
)
def test_origin_is_the_same_for_equal_scheme_host_and_port(ours: str, other: str, same: bool) -> None:
    assert is_same_origin(ours, other) is same


def test_names_and_addresses_of_this_machine_are_known() -> None:
    named = ["localhost", "a.localhost", "127.0.0.9", "::1", "localhost.example", "10.0.0.1", "example.com"]
    assert [is_loopback_host(host) for host in named] == [True, True, True, True, False, False, False]


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("93.184.215.14", None),
        ("10.0.0.1", "is not a public address"),
        ("168.63.129.16", "belongs to the cloud's own services"),
        ("169.254.169.254", "is not a public address"),
        ("127.0.0.1", "is this machine"),
        ("::1", "is this machine"),
        ("::ffff:10.0.0.1", "is not a public address"),
        ("::ffff:93.184.215.14", None),
        ("64:ff9b::a00:1", "is not a public address"),
        ("64:ff9b::5db8:d70e", None),
        ("2606:4700::1111", None),
        ("fe80::1", "is not a public address"),
        ("2002:a00:1::", "leads to an address that is not public"),
        ("2002:5db8:d70e::", None),
        ("example.com", "is not an IP address"),
    ],
)
def test_address_is_judged_by_its_target(address: str, problem: str | None) -> None:
    assert judge_address(address, loopback_allowed=False) == problem
    if problem == "is this machine":
        assert judge_address(address, loopback_allowed=True) is None
