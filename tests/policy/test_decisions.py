"""Small policy decisions with their limits: answers, labels, roots, pins, quotations, scopes, scheduling, explanations, secret words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.auth.principal import Principal
from gateway.config.policies import SourcePolicy
from gateway.json_types import JsonObject
from gateway.policy.argument_policy import ArgumentPolicy
from gateway.policy.caller_rights import is_admin
from gateway.policy.decision import PASS, Reject
from gateway.policy.explain import explain_call
from gateway.policy.input_answers import answer_problem
from gateway.policy.labels import (
    ConfidentialityLabel,
    ContentLabel,
    FlowRules,
    FlowTool,
    IntegrityLabel,
    combine_labels,
    judge_flow,
    label_result,
)
from gateway.policy.pin_check import PinFinding, PinMode, judge_pins, pin_digest, pinned_form
from gateway.policy.quoting import quote_text
from gateway.policy.root_policy import Protected, judge_root, remark_root
from gateway.policy.scopes import covers_source, judge_scope, scope_problem
from gateway.policy.shaping import FRAMEWORK_NAMES
from gateway.policy.task_scheduling import choose_next
from gateway.policy.tool_policy import hidden_by

# -- answers -------------------------------------------------------------------------------------------------------

ASK, SAMPLE, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"
BLOCK = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("method", "answer", "problem"),
    [
        *((ASK, {"action": action}, "") for action in ("accept", "decline", "cancel")),
        (ASK, {"action": "accept", "content": {}, "more": 1}, ""),
        (ASK, {"action": "accept", "content": None}, ""),
        (ASK, {"action": "yes"}, "`action`"),
        (ASK, {}, "`action`"),
        (ASK, {"action": "accept", "content": []}, "`content`"),
        *((SAMPLE, {"role": role, "content": BLOCK}, "") for role in ("user", "assistant")),
        (SAMPLE, {"role": "user", "content": [BLOCK, BLOCK], "model": "m"}, ""),
        (SAMPLE, {"role": "system", "content": BLOCK}, "`role`"),
        (SAMPLE, {"role": "user", "content": [BLOCK, {}]}, "`content`"),
        (SAMPLE, {"role": "user", "content": "x"}, "`content`"),
        (SAMPLE, {"role": "user"}, "`content`"),
        (SAMPLE, {"role": "user", "content": BLOCK, "model": None}, "`model`"),
        (ROOTS, {"roots": []}, ""),
        (ROOTS, {"roots": [{"uri": "file:///x"}]}, ""),
        (ROOTS, {"roots": [{"uri": 5}]}, "`roots`"),
        (ROOTS, {"roots": ["file:///x"]}, "`roots`"),
        (ROOTS, {}, "`roots`"),
        ("other", {}, ""),
    ],
)
def test_answer_has_the_shape_of_its_question(method: str, answer: dict[str, Any], problem: str) -> None:
    found = answer_problem(method, answer)
    assert found is None if not problem else found is not None and found.startswith(problem)


# -- labels --------------------------------------------------------------------------------------------------------

BAD = ContentLabel(IntegrityLabel.UNTRUSTED)
PRIVATE = ContentLabel(confidentiality=ConfidentialityLabel.PRIVATE)


@pytest.mark.parametrize(
    ("tool", "rules", "context", "rule"),
    [
        ({}, {}, ContentLabel(), None),
        ({}, {}, BAD, "security.untrusted"),
        ({}, {"accepts_untrusted": ["send"]}, BAD, None),
        ({"properties": {"accepts_untrusted": True}}, {}, BAD, None),
        ({}, {"sinks": []}, BAD, None),
        ({}, {"sinks": ["se*"]}, BAD, "security.untrusted"),
        ({"properties": {"sink": True}}, {"sinks": []}, BAD, "security.untrusted"),
        ({}, {"sinks": ["se*"]}, ContentLabel(), None),
        ({"source": "mail", "native_name": "post"}, {"sinks": ["mail/post"]}, BAD, "security.untrusted"),
        ({"source": "mail"}, {"sinks": ["mail/send"]}, BAD, "security.untrusted"),
        ({"native_name": "post"}, {"sinks": ["mail/post", "post"]}, BAD, None),
        ({}, {"public_sinks": ["send"]}, PRIVATE, "security.confidential"),
        ({}, {"public_sinks": ["send"]}, ContentLabel(), None),
        ({}, {}, PRIVATE, None),
        ({"properties": {"max_allowed_confidentiality": "private"}}, {}, PRIVATE, None),
        ({"properties": {"max_allowed_confidentiality": "public"}}, {}, PRIVATE, "security.confidential"),
        ({"properties": {"max_allowed_confidentiality": "private"}}, {"public_sinks": ["send"]}, PRIVATE, "security.confidential"),
    ],
)
def test_tool_is_rejected_after_content_its_flow_rules_exclude(tool: Any, rules: Any, context: ContentLabel, rule: str | None) -> None:
    verdict = judge_flow(FlowTool("send", **tool), FlowRules(**rules), context)
    assert (None if verdict is None else verdict.rule) == rule
    assert verdict is None or rule != "security.confidential" or "private" in verdict.reason


@pytest.mark.parametrize(
    ("properties", "rules", "label"),
    [
        ({}, {}, ("untrusted", "public")),
        ({}, {"trusted": ["read"]}, ("trusted", "public")),
        ({}, {"trusted": ["read"], "untrusted": ["read"]}, ("untrusted", "public")),
        ({"source_integrity": "trusted"}, {}, ("trusted", "public")),
        ({"source_integrity": "trusted"}, {"untrusted": ["read"]}, ("untrusted", "public")),
        ({"confidentiality": "user_identity"}, {}, ("untrusted", "user_identity")),
        ({"confidentiality": "user_identity"}, {"private": ["read"]}, ("untrusted", "private")),
        (
            {},
            {"default_integrity": IntegrityLabel.TRUSTED, "default_confidentiality": ConfidentialityLabel.PRIVATE},
            ("trusted", "private"),
        ),
    ],
)
def test_result_is_labelled_by_rules_then_tool_then_defaults(properties: Any, rules: Any, label: tuple[str, str]) -> None:
    found = label_result(FlowTool("read", properties=properties), FlowRules(**rules))
    assert (found.integrity.value, found.confidentiality.value) == label


def test_labels_combine_to_the_worst_and_survive_their_json_form() -> None:
    first, second = ContentLabel(metadata={"a": 1}), ContentLabel(IntegrityLabel.UNTRUSTED, ConfidentialityLabel.USER_IDENTITY, {"b": 2})
    both = combine_labels(first, second, PRIVATE)
    assert (both.is_trusted(), both.is_public(), both.confidentiality, both.metadata) == (False, False, "user_identity", {"a": 1, "b": 2})
    assert combine_labels() == ContentLabel() == combine_labels(ContentLabel())
    assert ContentLabel.from_dict(both.to_dict()) == both
    assert ContentLabel().to_dict() == {"integrity": "trusted", "confidentiality": "public"}
    assert ContentLabel.from_dict({}) == ContentLabel()
    with pytest.raises(ValueError, match="nobody"):
        ContentLabel.from_dict({"confidentiality": "nobody"})


# -- roots ---------------------------------------------------------------------------------------------------------


def protected(refuses: Any = "writing", reach: Any = "both", **more: Any) -> Protected:
    return Protected("the configuration", "/a/b/c", ("/", "a", "b", "c"), refuses, reach, **more)


@pytest.mark.parametrize(
    ("place", "access", "item", "relation"),
    [
        ("/ a b c", "write", protected(), "is the configuration"),
        ("/ a b", "write", protected(), "contains the configuration"),
        ("/ a b c d", "write", protected(), "is inside the configuration"),
        ("/ a x", "write", protected(), None),
        ("/ a b c d", "delete", protected(reach="around"), None),
        ("/ a b", "delete", protected(reach="around"), "contains"),
        ("/ a b c", "read", protected(), None),
        ("/ a b", "read", protected("reading"), "contains"),
        ("/ a b", "write", protected("reading"), "contains"),
    ],
)
def test_folder_that_overlaps_protected_paths_is_refused(place: str, access: Any, item: Protected, relation: str | None) -> None:
    verdict = judge_root("root", place.split(), access, [protected(reach="around") if relation is None else item, item])
    if relation is None:
        assert verdict is PASS
        return
    assert isinstance(verdict, Reject) and verdict.rule == "files.root" and relation in verdict.reason
    assert ("could read the gateway's secrets" in verdict.reason) is (access == "read")
    assert ("Name a folder outside it" in verdict.reason) is ("is inside" in verdict.reason)
    assert ("set `access: read`" in verdict.reason) is (item.refuses == "writing")


def test_folder_is_remarked_only_for_marked_paths_inside_it() -> None:
    assert remark_root("root", ["/", "a"], [protected()]) is None
    assert remark_root("root", ["/", "x"], [protected(is_remarked=True)]) is None
    told = remark_root("root", ["/", "a"], [protected(), protected(is_remarked=True)])
    assert told is not None and told.startswith("'root' contains the configuration '/a/b/c'")


# -- pins ----------------------------------------------------------------------------------------------------------


def test_pins_name_changed_added_and_removed_tools() -> None:
    listed, pinned = {"same": "1", "changed": "2", "added": "3"}, {"same": "1", "changed": "0", "removed": "4"}
    modes: list[tuple[PinMode, bool]] = [("quarantine", False), ("warn", True)]
    for mode, served in modes:
        assert judge_pins(listed, pinned, mode) == {
            "changed": PinFinding("changed", served), "added": PinFinding("added", served), "removed": PinFinding("removed", False),
        }  # fmt: skip
    assert judge_pins(listed, pinned, "off") == judge_pins(listed, None, "quarantine") == {}


def test_pinned_form_ignores_the_order_of_keys() -> None:
    tool: JsonObject = {"name": "a", "title": None, "inputSchema": {"b": 1, "a": "é"}, "icons": [1], "_meta": {}}
    assert pinned_form(tool) == {"name": "a", "inputSchema": {"b": 1, "a": "é"}}
    assert pin_digest({"a": {"b": 1, "c": 2}}) == pin_digest({"a": {"c": 2, "b": 1}}) != pin_digest({"a": {"b": 1, "c": 3}})
    assert pin_digest({}) == "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


# -- quotations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("one\ntwo", "| one\n| two"),
        ("one\r\ntwo\u2028three", "| one\n| two\n| three"),
        ("one\rtwo", "| one\n| two"),
        ("\n\none\n\n\n\ntwo\n\n", "| one\n|\n| two"),
        ("a" + " " * 40 + "b", "| a   b"),
        ("a   b", "| a   b"),
        ("hid\u200bden  ", "| hidden"),
        ("", ""),
        ("1\n2\n3", "| 1\n| 2\n| 3"),
        ("1\n2\n3\n4", "| 1\n| 2\n| 3\n| … (the rest is left out)"),
        ("x" * 60, "| " + "x" * 60),
        ("x" * 61, "| " + "x" * 60 + "\n| … (the rest is left out)"),
    ],
)
def test_every_quoted_line_is_marked_and_the_quotation_is_bounded(text: str, quoted: str) -> None:
    assert quote_text(text, max_chars=60, max_lines=3) == quoted


# -- scopes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scopes", "kind", "source", "name", "passes"),
    [
        (None, "tools", "docs", "x", True),
        (["docs"], "tools", "docs", "x", True),
        (["docs"], "prompts", "docs", "x", True),
        (["docs"], "tools", "other", "x", False),
        (["d*/se*"], "tools", "docs", "search", True),
        (["docs/se*"], "tools", "docs", "read", False),
        (["tools:docs"], "tools", "docs", "x", True),
        (["tools:docs"], "resources", "docs", "x", False),
        (["resources:docs/file:///a/*"], "resources", "docs", "file:///a/b", True),
        (["resources:docs/file:///a/*"], "resources", "docs", "file:///b", False),
        (["admin"], "tools", "admin", "x", False),
        (["admin", "docs"], "tools", "docs", "x", True),
        (["admin/*"], "tools", "admin", "x", True),
        ([], "tools", "gateway", "get_task", True),
        ([], "tools", "gateway", "gateway_status", False),
        ([], "resources", "gateway", "moongate://status", False),
        (["gateway"], "tools", "gateway", "gateway_status", True),
    ],
)
def test_key_may_use_what_a_scope_names(scopes: Any, kind: Any, source: str, name: str, passes: bool) -> None:
    verdict = judge_scope(scopes, kind, source, name)
    assert (verdict is PASS) is passes
    if isinstance(verdict, Reject):
        assert verdict.rule == "scopes" and f"no scope for {kind[:-1]} {name!r} of {source!r}" in verdict.reason
        assert verdict.reason.endswith(f"Its scopes: {', '.join(scopes) or 'none'}.")


def test_key_covers_the_sources_named_by_its_scopes() -> None:
    assert [covers_source(scopes, "docs") for scopes in (None, ["d*"], ["tools:docs/x"], ["admin", "a*"], ["other"], [])] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert not covers_source(["admin"], "admin")


def test_only_a_key_with_the_scope_admin_is_an_operators() -> None:
    assert [is_admin(Principal("x", scopes=scopes)) for scopes in (None, (), ("docs",), ("docs", "admin"))] == [False, False, False, True]


@pytest.mark.parametrize("scope", ["docs", "docs/*", "tools:docs/a", "resources:docs/file:///x", "prompts:*", "x" * 500, "admin"])
def test_written_scope_is_accepted(scope: str) -> None:
    assert scope_problem(scope) is None


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        *((scope, "not a scope") for scope in ("", "docs/", "/x", "a b", 'a"', "a\\b", "a\x00", "x" * 501)),
        ("tool:docs", "unknown kind 'tool'"),
        (":docs", "unknown kind ''"),
    ],
)  # fmt: skip
def test_scope_with_a_mistake_is_named(scope: str, said: str) -> None:
    assert said in (scope_problem(scope) or "")


def test_scope_with_a_mistake_is_shown_in_part() -> None:
    for scope in ("é" * 100 + ":docs", '"' + "é" * 100):
        told = scope_problem(scope) or ""
        assert scope[:60] in told and scope[:61] not in told


# -- turns ---------------------------------------------------------------------------------------------------------


@dataclass
class Waiting:
    id: str
    principal: str
    limits: list[JsonObject] = field(default_factory=list[JsonObject])


def limited(scope: str, **limits: int) -> JsonObject:
    return {"scope": scope, **limits}


def test_caller_with_the_fewest_running_tasks_is_first() -> None:
    waiting = [Waiting("a1", "ada"), Waiting("a2", "ada"), Waiting("a3", "ada"), Waiting("b1", "bob"), Waiting("c1", "cy")]
    assert choose_next(waiting, [], {}) == ["a1", "b1", "c1", "a2", "a3"]
    assert choose_next(waiting, [Waiting("x", "ada"), Waiting("y", "ada"), Waiting("z", "bob")], {}) == ["c1", "b1", "a1", "a2", "a3"]


def test_tasks_begin_while_each_of_their_scopes_has_room() -> None:
    two = [Waiting(name, "ada", [limited("s", running=2), limited("t")]) for name in "abc"]
    assert choose_next(two, [], {}) == ["a", "b"]
    assert choose_next(two, [Waiting("x", "bob", [limited("s")])], {}) == ["a"]
    assert choose_next(two, [Waiting("x", "bob", [limited("s")]), Waiting("y", "bob", [limited("s")])], {}) == []


def test_tasks_begin_at_most_at_the_rate_of_their_scopes() -> None:
    rated = [Waiting(name, "ada", [limited("s", perMinute=3)]) for name in "abcd"]
    assert [choose_next(rated, [], started) for started in ({}, {"s": 1}, {"s": 3}, {"other": 9})] == [
        ["a", "b", "c"],
        ["a", "b"],
        [],
        ["a", "b", "c"],
    ]


def test_task_without_room_does_not_delay_a_later_one_of_its_caller() -> None:
    waiting = [Waiting("full", "ada", [limited("s", running=1)]), Waiting("free", "ada")]
    assert choose_next(waiting, [Waiting("x", "bob", [limited("s")])], {}) == ["free"]


# -- explanations --------------------------------------------------------------------------------------------------

SCHEMA: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}, "mode": {}, "limit": {}, "session": {}}}
RULES: dict[str, Any] = {
    "arguments": {"read": {"path": {"pattern": "^docs/"}, "mode": {"const": "r"}}},
    "overrides": {"read": {"fixed": {"mode": "r"}, "defaults": {"limit": 9}}},
}


def explained(arguments: JsonObject) -> dict[str, Any]:
    policy = SourcePolicy.model_validate(RULES)
    compiled = ArgumentPolicy.build(
        "read", SCHEMA, policy.additional_arguments, policy.arguments, denied=FRAMEWORK_NAMES, override=policy.overrides["read"]
    )
    return explain_call("read", compiled, arguments, policy).to_json()


def test_explanation_of_allowed_call_shows_the_sent_arguments() -> None:
    assert explained({"path": "docs/a", "mode": "w", "session": 1, "more": 2}) == {
        "verdict": "allowed",
        "rule": None,
        "reason": None,
        "dropped": [
            {"argument": "mode", "rule": "overrides.read.fixed"},
            {"argument": "session", "rule": "frameworkNames"},
            {"argument": "more", "rule": "undeclared"},
        ],
        "added": [
            {"argument": "limit", "value": 9, "rule": "overrides.read.defaults"},
            {"argument": "mode", "value": "r", "rule": "overrides.read.fixed"},
        ],
        "rules": [
            {"rule": "arguments.read.path", "argument": "path", "outcome": "passes"},
            {"rule": "arguments.read.mode", "argument": "mode", "outcome": "passes"},
        ],
        "arguments": {"path": "docs/a", "limit": 9, "mode": "r"},
    }


def test_explanation_of_rejected_call_names_rule_and_sends_nothing() -> None:
    found = explained({"path": "etc"})
    assert (found["verdict"], found["rule"], found["arguments"]) == ("refused", "arguments.read.path", None)
    assert [rule["outcome"] for rule in found["rules"]] == ["refuses", "passes"]
    assert [rule["outcome"] for rule in explained({})["rules"]] == ["not given", "passes"]


@pytest.mark.parametrize(
    ("rules", "hidden"),
    [
        ({}, None),
        ({"tools": {"deny": ["write", "re*"]}}, "tools.deny[1]"),
        ({"tools": {"allow": ["write"]}}, "tools.allow"),
        ({"tools": {"allow": ["re*"]}}, None),
        ({"overrides": {"read": {"enabled": False}}}, "overrides.read.enabled"),
        ({"overrides": {"read": {}}}, None),
    ],
)
def test_rule_that_hides_a_tool_is_named(rules: dict[str, Any], hidden: str | None) -> None:
    assert hidden_by("read", SourcePolicy.model_validate(rules)) == hidden
