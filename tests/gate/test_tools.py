"""`GuardedTool`: the gate of every tool, for every caller."""

from __future__ import annotations

import logging

import pytest

from gateway.auth.principal import Principal
from gateway.config.policies import ApprovalLists, SourcePolicy
from gateway.errors import InputUnavailable, NotFound, NotSent, Rejected, SkillError, ToolFailed
from gateway.gate.approvals import Approvals
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.refusals import DROPPED_META_KEY, RULE_META_KEY
from gateway.gate.tool_rules import ToolRules
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.tools.base import Complete, InputRequired, TaskStarted, ToolOutcome
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, CallPorts
from gateway.tools.drive import drive
from gateway.tools.function import tool
from gateway.tools.ports import ClientProfile, LogLevel
from tests.fakes.recorded_events import RecordedEvents
from tests.gate.fake_tools import ASK, LOCAL, SCHEMA, FakeTool, Person, complete, echo, failing, guard, returning, told


async def never(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
    raise AssertionError("the tool must not be reached")


# -- arguments and results -----------------------------------------------------------------------------------------


async def test_result_is_returned_unchanged() -> None:
    result: JsonObject = {"content": [], "_meta": {"x": 1}, "structuredContent": {"y": 2}}
    given = Complete(result)
    assert await guard(returning(given)).call({"path": "a"}, LOCAL) is given


async def test_arguments_reach_tool_uncopied() -> None:
    seen: list[JsonObject] = []

    async def look(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        seen.append(arguments)
        return Complete.text("")

    arguments = {"path": "a"}
    await guard(look).call(arguments, LOCAL)
    assert seen[0] is arguments


@pytest.mark.requirement(25)
async def test_removed_names_are_noted_in_a_copy_of_the_result() -> None:
    events = RecordedEvents()
    relayed: JsonObject = {"content": [], "_meta": {"vendor": 1}}
    outcome = await complete(guard(returning(Complete(relayed)), events=events), {"path": "a", "secret": "canary", "x" * 500: 1})
    assert outcome.result["_meta"] == {"vendor": 1, DROPPED_META_KEY: ["secret", "x" * 64]}
    assert relayed == {"content": [], "_meta": {"vendor": 1}}
    assert events.recent()[-1].fields["dropped"] == ["secret", "x" * 64]
    assert "canary" not in repr(events.recent())


async def test_refused_call_never_reaches_tool() -> None:
    events = RecordedEvents()
    tool = guard(never, events=events, arguments={"read": {"path": {"pattern": "^docs/"}}})
    outcome = await complete(tool, {"path": "etc", "pth": 1})
    assert outcome.is_error
    assert outcome.as_text().startswith("Refused by arguments.read.path: Argument 'path' does not match")
    assert outcome.result["_meta"] == {DROPPED_META_KEY: ["pth"], RULE_META_KEY: "arguments.read.path"}
    assert told(events) == [("call.started", None), ("call.refused", "refused")]
    assert events.recent()[-1].fields["rule"] == "arguments.read.path"


async def test_check_judges_without_running_and_without_events() -> None:
    events = RecordedEvents()
    verdict = guard(never, events=events).check({"path": 1}, LOCAL.facts.principal)
    assert isinstance(verdict, Reject)
    assert verdict.rule == "inputSchema"
    assert events.recent() == []


def test_definition_has_the_published_schema() -> None:
    tool = guard(echo, arguments={"*": {"path": {"maxLength": 5}}})
    assert tool.definition.input_schema["properties"]["path"] == {"type": "string", "maxLength": 5}
    assert (tool.definition.name, tool.exposed_name, tool.source) == ("read", "docs__read", "docs")
    assert SCHEMA["properties"]["path"] == {"type": "string"}


def test_definition_is_unchanged_without_rules() -> None:
    tool = FakeTool(echo)
    assert guard(tool).definition is tool.definition


async def test_too_large_result_is_replaced_by_the_reason() -> None:
    events = RecordedEvents()
    outcome = await complete(guard(returning(Complete.text("x" * 5_000)), events=events, maxResultBytes=1_024), {})
    assert outcome.is_error
    assert "maxResultBytes" in outcome.as_text()
    assert len(outcome.as_text()) < 500
    assert told(events)[-1] == ("call.refused", "refused")


async def test_too_large_request_for_input_is_refused() -> None:
    asking = InputRequired({"q": {"method": "elicitation/create", "params": {"message": "x" * 5_000}}})
    assert (await complete(guard(returning(asking), maxResultBytes=1_024), {})).is_error


# -- failures ------------------------------------------------------------------------------------------------------


async def test_ask_unavailable_reaches_the_server() -> None:
    tool = guard(failing(InputUnavailable("Nobody is there.", capability="sampling")))
    with pytest.raises(InputUnavailable):
        await tool.call({}, CallContext())


@pytest.mark.parametrize(
    "error",
    [
        ToolFailed("No such page: 'x'."),
        NotSent("No such page: 'x'.", server="docs"),
        NotFound("resource", "x", "No such page: 'x'."),
        SkillError("No such page: 'x'."),
        ExceptionGroup("tasks", [ExceptionGroup("inner", [ToolFailed("No such page: 'x'.")])]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_gateway_error_becomes_result_with_its_message(error: Exception) -> None:
    events = RecordedEvents()
    outcome = await complete(guard(failing(error), events=events), {})
    assert outcome.is_error
    assert outcome.as_text() == "No such page: 'x'."
    assert told(events) == [("call.started", None), ("call.finished", "failed")]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("canary"),
        KeyError("canary"),
        TimeoutError("canary"),
        ExceptionGroup("canary", [ValueError("canary"), ToolFailed("canary")]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_unexpected_exception_is_logged_and_hidden_from_caller(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        outcome = await complete(guard(failing(error)), {})
    assert outcome.is_error
    assert "docs__read" in outcome.as_text()
    assert "canary" not in outcome.as_text()
    assert "canary" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("error", [NotFound("tool", "read"), Rejected("Bad", server="docs", code=-32602)])
async def test_protocol_errors_reach_the_server(error: Exception) -> None:
    events = RecordedEvents()
    with pytest.raises(type(error)) as caught:
        await guard(failing(error), events=events).call({}, LOCAL)
    assert caught.value is error
    assert told(events) == [("call.started", None), ("call.finished", "failed")]
    assert events.recent()[-1].fields["error"] == type(error).__name__


# -- events --------------------------------------------------------------------------------------------------------


async def test_events_have_no_arguments_and_results() -> None:
    events = RecordedEvents()
    ctx = CallContext(CallFacts(principal=Principal("key:ab")))
    await guard(echo, events=events).call({"path": "canary"}, ctx)
    assert [(event.source, event.name, event.principal) for event in events.recent()] == [("docs", "docs__read", "key:ab")] * 2
    assert events.recent()[-1].fields["milliseconds"] >= 0
    assert "canary" not in repr(events.recent())


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Complete.text("x"), ("call.finished", "complete")),
        (Complete.text("x", is_error=True), ("call.finished", "error")),
        (TaskStarted({"taskId": "1"}), ("call.finished", "task")),
        (InputRequired({"q": ASK}), ("call.input_required", "input_required")),
    ],
)
async def test_each_outcome_has_one_event(outcome: ToolOutcome, said: tuple[str, str]) -> None:
    events = RecordedEvents()
    assert await guard(returning(outcome), events=events).call({}, LOCAL) is outcome
    assert told(events) == [("call.started", None), said]


async def test_call_in_several_legs_starts_and_finishes_once() -> None:
    async def ask_then_answer(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        if ctx.facts.input_responses is None:
            return InputRequired({"q": ASK}, state="s")
        return Complete.text(str(ctx.facts.input_responses["q"]["action"]))

    events, person = RecordedEvents(), Person()
    person.may_answer.set()
    outcome = await drive(guard(ask_then_answer, events=events), {}, CallContext(ports=CallPorts(caller=person)))
    assert isinstance(outcome, Complete)
    assert outcome.as_text() == "accept"
    assert told(events) == [
        ("call.started", None),
        ("call.input_required", "input_required"),
        ("call.resumed", None),
        ("call.finished", "complete"),
    ]


async def test_every_leg_is_judged_again() -> None:
    ctx = LOCAL.with_answers({"q": {}}, "s")
    assert (await complete(guard(never), {"path": 1}, ctx)).is_error


# -- approvals -----------------------------------------------------------------------------------------------------


class Decider:
    """A caller whose person decides; `asked` keeps what it was shown."""

    def __init__(self, decision: str) -> None:
        self.decision = decision
        self.asked: list[str] = []

    async def progress(self, progress: float, total: float | None, message: str | None) -> None: ...

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None: ...

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        self.asked.append(request["params"]["message"])
        return {"action": "accept", "content": {"decision": self.decision}}


@pytest.mark.parametrize(("decision", "ran"), [("approve", True), ("decline", False)])
@pytest.mark.parametrize("overruled", [False, True], ids=["as-it-says", "overruled"])
@pytest.mark.requirement("AP2", "AP3")
async def test_approval_mode_of_a_tool_is_enforced_by_the_gate(decision: str, ran: bool, overruled: bool) -> None:
    done: list[str] = []

    @tool(approval_mode="always_require")
    def wipe(disk: str) -> str:
        done.append(disk)
        return "wiped"

    person = Decider(decision)
    ctx = CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {}})), CallPorts(caller=person))
    policy = SourcePolicy(approval=ApprovalLists(never=["wipe"])) if overruled else SourcePolicy()
    events = RecordedEvents()
    gate = SourceGate("function", GateServices(events, Approvals(None, events)))
    guarded = GuardedTool(wipe, ToolRules.build(wipe.definition, policy, is_local=True), gate, exposed_name="wipe")
    outcome = await guarded.call({"disk": "sda"}, ctx)
    assert isinstance(outcome, Complete)
    if overruled:
        assert (done, person.asked) == (["sda"], [])
        return
    assert ("sda" in person.asked[0], done) == (True, ["sda"] if ran else [])
    assert outcome.is_error is not ran
