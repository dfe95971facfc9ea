"""`ToolRules` and `GuardedTool`: how each rule of a source's policy is applied at the gate."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.errors import InputExpired, MiddlewareTermination, PolicyDenied, StorageUnusable, ToolFailed, UserInputRequired
from gateway.gate.concurrency import ActiveCalls, Limiter
from gateway.gate.refusals import DROPPED_META_KEY, RULE_META_KEY
from gateway.gate.results import ResultRules
from gateway.json_types import JsonObject
from gateway.policy.caller_rights import Rights
from gateway.policy.scopes import ScopeRights
from gateway.storage.result_folder import FolderResults
from gateway.tools.base import Complete, InputRequired, TaskStarted, ToolDefinition, ToolOutcome
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from tests.fakes.recorded_events import RecordedEvents
from tests.gate.fake_tools import CLEAN, HIDDEN, FakeTool, complete, failing, guarded, last, returning, rules_of, without_password

READS: JsonObject = {"readOnlyHint": True}


# -- the compiled rules --------------------------------------------------------------------------------------------


def test_rules_have_the_limits_of_the_policy() -> None:
    gate = rules_of(timeoutSeconds=5, maxResultBytes=2_000, maxKeptBytes=3_000, tasks={"resume": False, "maxWaitSeconds": 7})
    assert (gate.timeout_seconds, gate.max_task_seconds, gate.results) == (5, 7, ResultRules("strip", 2_000, 3_000))
    assert (gate.resumes, rules_of().resumes) == (False, True)
    assert (rules_of(is_local=True).max_task_seconds, rules_of(is_own=True).max_task_seconds) == (math.inf, math.inf)


@pytest.mark.parametrize(
    ("is_local", "is_own", "rules", "local", "hidden"),
    [
        (False, False, {}, False, "strip"),
        (False, False, {"hiddenText": "refuse"}, False, "refuse"),
        (True, False, {"hiddenText": "refuse"}, True, "allow"),
        (False, True, {"hiddenText": "refuse"}, True, "allow"),
    ],
)
def test_texts_of_local_tools_are_not_searched(is_local: bool, is_own: bool, rules: dict[str, Any], local: bool, hidden: str) -> None:
    gate = rules_of(ToolDefinition("read", HIDDEN), is_local=is_local, is_own=is_own, **rules)
    assert (gate.is_local, gate.is_own, gate.results.hidden_text) == (local, is_own, hidden)
    assert gate.published.description == (HIDDEN if hidden == "allow" else CLEAN)


def test_framework_arguments_are_removed_from_remote_tools_only() -> None:
    schema: JsonObject = {"type": "object", "properties": {"session": {}, "path": {}}}
    published = [rules_of(ToolDefinition("read", None, schema), is_local=local).published.input_schema for local in (False, True)]
    assert [sorted(each["properties"]) for each in published][1] == ["path", "session"]
    assert "session" not in published[0]["properties"]


@pytest.mark.parametrize(
    ("task", "globs", "published"),
    [
        ("never", ["re*"], ("optional", "gateway")),
        ("never", ["write"], ("never", "nobody")),
        ("required", ["re*"], ("required", "server")),
    ],
)
def test_promoted_tool_may_run_as_task_of_the_gateway(task: Any, globs: list[str], published: tuple[str, str]) -> None:
    definition = ToolDefinition("read", task=task, task_by="nobody" if task == "never" else "server")
    shown = rules_of(definition, tasks={"promote": globs}).published
    assert (shown.task, shown.task_by) == published


def test_tool_that_needs_an_approval_may_ask() -> None:
    gate = rules_of(approval={"always": ["read"]})
    assert (gate.needs_approval, gate.published.may_request_input) == (True, True)
    assert (rules_of().needs_approval, rules_of().published.may_request_input) == (False, False)


def test_own_tool_with_side_effects_is_audited() -> None:
    reads = ToolDefinition("read", annotations=READS)
    assert [rules_of(definition, is_own=True).is_audited for definition in (ToolDefinition("read"), reads)] == [True, False]
    assert not rules_of(is_local=True).is_audited


@pytest.mark.parametrize(
    ("is_local", "rules", "repeatable"),
    [(False, {}, False), (False, {"trustAnnotations": True}, True), (True, {}, True), (False, {"idempotent": ["read"]}, True)],
)
def test_hints_count_only_for_trusted_sources(is_local: bool, rules: dict[str, Any], repeatable: bool) -> None:
    hints: JsonObject = {"readOnlyHint": True, "idempotentHint": True}
    assert rules_of(ToolDefinition("read", annotations=hints), is_local=is_local, **rules).is_repeatable is repeatable


def test_task_limits_name_source_and_tool() -> None:
    rules: dict[str, Any] = {
        "tasks": {"maxRunning": 2, "startsPerMinute": 30},
        "overrides": {"read": {"maxRunningTasks": 1}, "other": {"maxRunningTasks": 9}},
    }
    tool = FakeTool(returning(Complete.text("")))
    assert guarded(tool, rules_of(tool.definition, **rules)).task_limits == [
        {"scope": "source:docs", "running": 2, "perMinute": 30},
        {"scope": "tool:docs/read", "running": 1, "perMinute": None},
    ]
    assert guarded(tool).task_limits == []


async def test_running_keeps_gate_around_another_tool() -> None:
    events, active, limiter = RecordedEvents(), ActiveCalls(), Limiter(1)
    gate = rules_of(ToolDefinition("read", None, {"type": "object", "properties": {"path": {"type": "string"}}}), timeoutSeconds=0.02)
    first = guarded(FakeTool(returning(Complete.text("first"))), gate, events, active=active, limiter=limiter)
    counted: list[int] = []

    async def look(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        counted.append(limiter.held)
        await anyio.sleep_forever()
        raise AssertionError

    other = first.running(FakeTool(look))
    assert (other.exposed_name, other.source, other.definition) == ("docs__read", "docs", first.definition)
    with anyio.fail_after(20):
        assert (await complete(other, {"path": "a"})).as_text().startswith("Timed out after 0.02 s")
        await active.over()
    assert (counted, limiter.held, last(events)) == ([1], 0, ("call.finished", "timeout", None))


# -- callers -------------------------------------------------------------------------------------------------------


async def test_refused_call_records_removed_argument_names() -> None:
    events, tool = RecordedEvents(), FakeTool(failing(AssertionError()))
    gate = rules_of(tool.definition, arguments={"read": {"path": {"const": "a"}}})
    await guarded(tool, gate, events).call({"path": "b", "more": 1}, CallContext())
    fields = events.recent()[-1].fields
    assert (fields["rule"], fields["dropped"], fields["droppedCount"]) == ("arguments.read.path", ["more"], 1)
    assert 0 <= fields["milliseconds"] < 60_000


async def test_removed_argument_names_of_refused_call_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    tool = FakeTool(failing(AssertionError()))
    with caplog.at_level(logging.INFO, "gateway.gate.tools"):
        await guarded(tool, rules_of(tool.definition, arguments={"read": {"path": {"const": "a"}}})).call(
            {"path": "b", "more": 1}, CallContext()
        )
    assert caplog.messages == ["arguments dropped tool=docs__read arguments=1 names='more'"]


class Described(FakeTool):
    """A tool whose description depends on the caller."""

    def description_for(self, rights: Rights | None, named: Sequence[str] = ()) -> str:
        return "For all." if rights is None else f"For {rights.key}."


DOCS = ScopeRights(("docs",))


def test_description_depends_on_scopes_unless_policy_sets_it() -> None:
    wire: JsonObject = {"name": "docs__read", "description": "Read a file."}
    plain, described = FakeTool(returning(Complete.text(""))), Described(returning(Complete.text("")))
    assert guarded(plain).described(wire, DOCS) is wire
    assert guarded(described).described(wire, DOCS) == {"name": "docs__read", "description": f"For {DOCS.key}."}
    gate = rules_of(described.definition, overrides={"read": {"description": "Mine."}})
    assert guarded(described, gate).described(wire, DOCS) is wire


async def test_key_without_scope_is_refused_before_tool_runs() -> None:
    events, ctx = RecordedEvents(), CallContext(CallFacts(principal=Principal("key:ada", scopes=("other",))))
    tool = guarded(FakeTool(failing(AssertionError())), events=events)
    outcome = await complete(tool, {}, ctx)
    assert (outcome.is_error, outcome.result["_meta"], last(events)) == (
        True,
        {RULE_META_KEY: "scopes"},
        ("call.refused", "refused", "scopes"),
    )


@pytest.mark.parametrize(("source", "inner"), [("docs", None), ("gateway", ("docs", "gateway"))])
async def test_only_gateway_tools_see_scopes_behind_the_gate(source: str, inner: Any) -> None:
    seen: list[CallContext] = []

    async def look(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        seen.append(ctx)
        return Complete.text("")

    ctx = CallContext(CallFacts(principal=Principal("key:ada", scopes=("docs", "gateway"))))
    await guarded(FakeTool(look), source=source).call({}, ctx)
    assert (seen[0].facts.principal.scopes, seen[0].facts.on_behalf_of.scopes) == (inner, ("docs", "gateway"))


async def test_call_that_needs_approval_is_refused_without_approvals() -> None:
    events = RecordedEvents()
    tool = FakeTool(failing(AssertionError()))
    gate = rules_of(tool.definition, approval={"always": ["*"]})
    outcome = await complete(guarded(tool, gate, events), {"path": "a", "more": 1})
    assert outcome.result["_meta"] == {DROPPED_META_KEY: ["more"], RULE_META_KEY: "approval"}
    assert last(events) == ("call.refused", "refused", "approval")
    assert (events.recent()[-1].fields["dropped"], events.recent()[-1].fields["droppedCount"]) == (["more"], 1)


# -- results -------------------------------------------------------------------------------------------------------


async def test_hidden_text_of_results_and_tasks_is_removed_or_refused() -> None:
    events = RecordedEvents()
    hidden = FakeTool(returning(Complete.text(HIDDEN)))
    assert (await complete(guarded(hidden), {})).as_text() == CLEAN
    assert (await complete(guarded(hidden, rules_of(hidden.definition, hiddenText="allow")), {})).as_text() == HIDDEN
    refused = await complete(guarded(hidden, rules_of(hidden.definition, hiddenText="refuse"), events), {})
    assert (refused.is_error, refused.result["_meta"], last(events)) == (
        True,
        {RULE_META_KEY: "hiddenText"},
        ("call.refused", "refused", "hiddenText"),
    )
    rows: list[tuple[dict[str, Any], str]] = [({}, CLEAN), ({"hiddenText": "allow"}, HIDDEN)]
    for rules, text in rows:
        started = FakeTool(returning(TaskStarted({"taskId": "1", "statusMessage": HIDDEN})))
        outcome = await guarded(started, rules_of(started.definition, **rules)).call({}, CallContext())
        assert isinstance(outcome, TaskStarted) and outcome.task["statusMessage"] == text


@pytest.mark.parametrize(
    ("encoded", "text"),
    [((b'{"plain":1}',), HIDDEN), ((b'"vis\xe2\x80\x8bible"',), CLEAN), ((b"x" * 2_000,), HIDDEN), ((b"x" * 300, b"\xe2\x80\x8b"), CLEAN)],
)
async def test_encoded_result_decides_whether_text_is_searched(encoded: tuple[bytes, ...], text: str) -> None:
    """The test gives JSON that is not the result's, so that its outcome tells what was searched."""
    tool = FakeTool(returning(Complete({"content": [{"type": "text", "text": HIDDEN}]}, encoded)))
    assert (await complete(guarded(tool, rules_of(tool.definition, maxResultBytes=1_024)), {})).as_text() == text


async def test_encoded_result_gives_its_size() -> None:
    long = Complete.text("y" * 5_000)
    for encoded, is_refused in (((b"x" * 341,), False), ((b"x" * 342,), True), ((b"x" * 200, b"x" * 200), True)):
        tool = FakeTool(returning(Complete(long.result, encoded)))
        assert (await complete(guarded(tool, rules_of(tool.definition, maxResultBytes=1_024)), {})).is_error is is_refused


async def test_too_large_result_is_shortened_with_store(tmp_path: Path) -> None:
    events = RecordedEvents()
    store = FolderResults(tmp_path / "results", ttl_seconds=60, max_bytes_per_owner=1_000_000)
    tool = FakeTool(returning(Complete.text("".join(f"line {number}\n" for number in range(900)))))
    rules = rules_of(tool.definition, maxResultBytes=1_024)
    outcome = await complete(guarded(tool, rules, events, store=store), {})
    assert not outcome.is_error and "line 1" in outcome.as_text() and "line 899" not in outcome.as_text()
    assert (last(events), events.recent()[-1].fields["shortened"]) == (("call.finished", "complete", None), True)
    rules = rules_of(tool.definition, maxResultBytes=1_024, maxKeptBytes=2_000)
    refused = await complete(guarded(tool, rules, events, store=store), {})
    assert (refused.result["_meta"][RULE_META_KEY], last(events)) == ("maxKeptBytes", ("call.refused", "refused", "maxKeptBytes"))
    assert "shortened" not in events.recent()[-1].fields


async def test_too_large_request_for_input_is_refused_with_rule() -> None:
    tool = FakeTool(returning(InputRequired({"q": {"method": "x" * 5_000}})))
    outcome = await complete(guarded(tool, rules_of(tool.definition, maxResultBytes=1_024)), {})
    assert outcome.result["_meta"] == {RULE_META_KEY: "maxResultBytes"}


async def test_removed_names_are_logged_once_without_values(caplog: pytest.LogCaptureFixture) -> None:
    tool = guarded(FakeTool(returning(Complete.text(""))))
    with caplog.at_level(logging.INFO, "gateway.gate.tools"):
        await tool.call({"path": "a"}, CallContext())
        assert caplog.messages == []
        await tool.call({"path": "a", "one": "canary"}, CallContext())
        await tool.call({"path": "a", "one": 1, "two\n": 2}, CallContext())
    assert caplog.messages == [
        "arguments dropped tool=docs__read arguments=1 names='one'",
        "arguments dropped tool=docs__read arguments=2 names='one','two\\n'",
    ]


# -- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (ToolFailed("password hunter2"), "failed", "password ***"),
        (StorageUnusable("/var/db: disk I/O error hunter2"), "failed", None),
        (MiddlewareTermination("hunter2"), "complete", "***"),
        (UserInputRequired([], "hunter2"), "input_required", "***"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_errors_become_results_without_secrets(
    error: Exception, outcome: str, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    events, tool = RecordedEvents(), FakeTool(failing(error))
    result = await complete(guarded(tool, events=events, mask=without_password), {})
    assert (result.is_error, last(events)[:2], events.recent()[-1].fields["error"]) == (
        True,
        ("call.finished", outcome),
        type(error).__name__,
    )
    assert "hunter2" not in result.as_text() + caplog.text
    if text is None:
        assert "/var/db" not in result.as_text() and "/var/db" in caplog.text
    else:
        assert (result.as_text(), caplog.text) == (text, "")


async def test_policy_denied_in_tool_is_refusal_with_rule() -> None:
    events = RecordedEvents()
    result = await complete(guarded(FakeTool(failing(PolicyDenied("Not here.", rule="files.read", subject="x"))), events=events), {})
    assert (result.as_text(), result.is_error, result.result["_meta"]) == ("Not here.", True, {RULE_META_KEY: "files.read"})
    assert last(events) == ("call.refused", "refused", "files.read")


async def test_exceptions_of_own_tools_reach_the_run() -> None:
    events, error = RecordedEvents(), ToolFailed("no")
    tool = FakeTool(failing(error))
    with pytest.raises(ToolFailed) as raised:
        await guarded(tool, rules_of(tool.definition, is_own=True), events).call({}, CallContext())
    assert raised.value is error
    assert [event.kind for event in events.recent()] == ["call.started", "call.finished", "call.audited"]


async def test_expired_question_ends_call_as_timeout() -> None:
    events = RecordedEvents()
    result = await complete(guarded(FakeTool(failing(InputExpired("Nobody answered within 5 s."))), events=events), {})
    assert (result.is_error, result.as_text(), last(events)) == (True, "Nobody answered within 5 s.", ("call.finished", "timeout", None))
    late = RecordedEvents()

    async def ended(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        for clock in ctx.limits.clocks:
            clock.end("Nobody answered within 5 s.")
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.fail_after(20):
        result = await complete(guarded(FakeTool(ended), events=late), {})
    assert (result.is_error, result.as_text(), last(late)) == (True, "Nobody answered within 5 s.", ("call.finished", "timeout", None))


@pytest.mark.parametrize(("in_task", "key"), [(False, "`timeoutSeconds` of 'docs'"), (True, "`tasks.maxWaitSeconds` of 'docs'")])
async def test_timeout_names_its_limit(in_task: bool, key: str) -> None:
    async def hang(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        await anyio.sleep_forever()
        raise AssertionError

    tool = FakeTool(hang)
    rules: dict[str, Any] = {"timeoutSeconds": 3600, "tasks": {"maxWaitSeconds": 0.02}} if in_task else {"timeoutSeconds": 0.02}
    with anyio.fail_after(20):
        result = await complete(guarded(tool, rules_of(tool.definition, **rules)), {}, CallContext(CallFacts(in_task=in_task)))
    assert result.is_error and result.as_text().startswith("Timed out after 0.02 s and was cancelled") and key in result.as_text()


# -- events --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leg", "kind"),
    [({}, "call.started"), ({"input_responses": {}}, "call.resumed"), ({"request_state": "s"}, "call.resumed")],
)
async def test_leg_with_answers_or_state_resumes_call(leg: dict[str, Any], kind: str) -> None:
    events = RecordedEvents()
    await guarded(FakeTool(returning(Complete.text(""))), events=events).call({}, CallContext(CallFacts(**leg)))
    assert [event.kind for event in events.recent()] == [kind, "call.finished"]


async def test_finished_calls_with_side_effects_are_audited() -> None:
    for work, kinds in (
        (returning(Complete.text("")), ["call.started", "call.finished", "call.audited"]),
        (returning(InputRequired({})), ["call.started", "call.input_required"]),
    ):
        events, tool = RecordedEvents(), FakeTool(work)
        await guarded(tool, rules_of(ToolDefinition("read"), is_own=True), events).call(
            {}, CallContext(CallFacts(principal=Principal("key:ada")))
        )
        assert [event.kind for event in events.recent()] == kinds
    events = RecordedEvents()
    await guarded(FakeTool(returning(Complete.text("", is_error=True))), rules_of(is_own=True), events).call({}, CallContext())
    audited = events.recent()[-1]
    assert (audited.kind, audited.source, audited.name, audited.principal, audited.fields) == (
        "call.audited", "docs", "docs__read", "local", {"outcome": "error"},
    )  # fmt: skip
