"""`GuardedTool`: the gate of every tool, for every caller."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.config.policies import ApprovalLists, SourcePolicy
from gateway.errors import AskUnavailable, NotFound, NotSent, Rejected, SkillError, ToolFailed
from gateway.gate.approvals import Approvals
from gateway.gate.concurrency import Limiter
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.refusals import DROPPED_META_KEY, RULE_META_KEY
from gateway.gate.tool_rules import DEFAULT_TASK_SECONDS, ToolRules
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.tools.base import Complete, InputRequired, TaskStarted, Tool, ToolDefinition, ToolOutcome
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, CallPorts
from gateway.tools.drive import drive
from gateway.tools.function import tool
from gateway.tools.ports import ClientProfile, LogLevel
from tests.fakes.recorded_events import RecordedEvents

Work = Callable[[JsonObject, CallContext], Awaitable[ToolOutcome]]
SCHEMA: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}}}
NOTHING: JsonObject = {}
ASK: JsonObject = {"method": "elicitation/create", "params": {"message": "?"}}
LOCAL = CallContext()


class FakeTool:
    """A tool that does what it is given."""

    def __init__(self, work: Work, schema: JsonObject = SCHEMA) -> None:
        self._work = work
        self._definition = ToolDefinition("read", "Read a file.", schema)

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        return await self._work(arguments, ctx)


class Person:
    """A caller who answers each question when told to."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.may_answer = anyio.Event()

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        pass

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        pass

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        self.asked.set()
        await self.may_answer.wait()
        return {"action": "accept"}


async def echo(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
    return Complete.text("done", structured=arguments)


async def never(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
    raise AssertionError("the tool must not be reached")


def failing(error: Exception) -> Work:
    async def fail(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        raise error

    return fail


def returning(outcome: ToolOutcome) -> Work:
    async def give(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        return outcome

    return give


def guard(
    work: Work | Tool,
    *,
    limiter: Limiter | None = None,
    events: RecordedEvents | None = None,
    schema: JsonObject = SCHEMA,
    **rules: Any,
) -> GuardedTool:
    tool = FakeTool(work, schema) if callable(work) else work
    gate = SourceGate("docs", GateServices(events or RecordedEvents()), limiter)
    return GuardedTool(tool, ToolRules.build(tool.definition, SourcePolicy.model_validate(rules)), gate, exposed_name="docs__read")


async def complete(tool: GuardedTool, arguments: JsonObject, ctx: CallContext = LOCAL) -> Complete:
    outcome = await tool.call(arguments, ctx)
    assert isinstance(outcome, Complete)
    return outcome


def told(events: RecordedEvents) -> list[tuple[str, str | None]]:
    return [(event.kind, event.fields.get("outcome")) for event in events.recent()]


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
    tool = guard(failing(AskUnavailable("Nobody is there.", capability="sampling")))
    with pytest.raises(AskUnavailable):
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


# -- time and turns ------------------------------------------------------------------------------------------------


async def test_call_over_its_deadline_is_cancelled() -> None:
    cancelled = anyio.Event()

    async def hang(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError

    events = RecordedEvents()
    limiter = Limiter(1)
    with anyio.fail_after(20):
        outcome = await complete(guard(hang, events=events, limiter=limiter, timeoutSeconds=0.02), {})
    assert outcome.is_error
    assert outcome.as_text().startswith("Timed out after 0.02 s")
    assert cancelled.is_set()
    assert limiter.held == 0
    assert told(events)[-1] == ("call.finished", "timeout")


async def test_cancelled_call_frees_its_slot() -> None:
    started = anyio.Event()

    async def hang(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        started.set()
        await anyio.sleep_forever()
        raise AssertionError

    events, limiter = RecordedEvents(), Limiter(1)
    returned: list[ToolOutcome] = []

    async def run() -> None:
        returned.append(await guard(hang, events=events, limiter=limiter).call({}, LOCAL))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await started.wait()
            tasks.cancel_scope.cancel()
    assert returned == []
    assert limiter.held == 0
    assert told(events)[-1] == ("call.finished", "cancelled")


async def test_calls_wait_for_slots_and_may_be_cancelled_while_waiting() -> None:
    running: list[int] = []
    most: list[int] = []
    gate = anyio.Event()

    async def work(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        running.append(1)
        most.append(len(running))
        await gate.wait()
        running.pop()
        return Complete.text("")

    limiter = Limiter(2)
    tool = guard(work, limiter=limiter)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(tool.call, NOTHING, LOCAL)
            await anyio.wait_all_tasks_blocked()
            async with anyio.create_task_group() as impatient:
                impatient.start_soon(tool.call, NOTHING, LOCAL)
                await anyio.wait_all_tasks_blocked()
                impatient.cancel_scope.cancel()
            gate.set()
    assert max(most) == 2
    assert limiter.held == 0


async def test_waiting_for_slot_is_not_working_time() -> None:
    deadlines: list[float] = []

    async def look(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        deadlines.append(ctx.limits.clocks[-1].scope.deadline)
        return Complete.text("")

    limiter = Limiter(1)
    assert limiter.acquire_now()
    released_at = float("inf")
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guard(look, limiter=limiter, timeoutSeconds=60).call, NOTHING, LOCAL)
            await anyio.wait_all_tasks_blocked()
            released_at = anyio.current_time()
            limiter.release()
    assert deadlines[0] >= released_at + 60


async def asking(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
    await ctx.ask(ASK)
    return Complete.text("answered")


def keeping(contexts: list[CallContext]) -> Work:
    async def ask(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        contexts.append(ctx)
        return await asking(arguments, ctx)

    return ask


async def test_question_stops_clock_and_frees_slot() -> None:
    person, limiter = Person(), Limiter(1)
    contexts: list[CallContext] = []
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guard(keeping(contexts), limiter=limiter).call, NOTHING, CallContext(ports=CallPorts(caller=person)))
            await person.asked.wait()
            assert (await complete(guard(echo, limiter=limiter), {})).as_text() == "done"
            assert [clock.scope.deadline for clock in contexts[0].limits.clocks] == [float("inf")]
            person.may_answer.set()
    assert contexts[0].limits.clocks[0].scope.deadline < float("inf")
    assert limiter.held == 0


async def test_answered_call_waits_for_slot_again() -> None:
    person, limiter = Person(), Limiter(1)
    finished = anyio.Event()

    async def run() -> None:
        await guard(asking, limiter=limiter).call({}, CallContext(ports=CallPorts(caller=person)))
        finished.set()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await person.asked.wait()
            assert limiter.acquire_now()
            person.may_answer.set()
            await anyio.wait_all_tasks_blocked()
            assert not finished.is_set()
            limiter.release()
            await finished.wait()
    assert limiter.held == 0


async def test_concurrent_questions_keep_slot_count() -> None:
    async def ask_twice(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ctx.ask, ASK)
            tasks.start_soon(ctx.ask, ASK)
        await ctx.ask(ASK)
        return Complete.text("answered")

    person, limiter = Person(), Limiter(1)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(guard(ask_twice, limiter=limiter).call, NOTHING, CallContext(ports=CallPorts(caller=person)))
            await anyio.wait_all_tasks_blocked()
            assert limiter.held == 0
            person.may_answer.set()
    assert limiter.held == 0


async def test_call_cancelled_during_question_leaves_slot_free() -> None:
    person, limiter = Person(), Limiter(1)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guard(asking, limiter=limiter).call, NOTHING, CallContext(ports=CallPorts(caller=person)))
            await person.asked.wait()
            tasks.cancel_scope.cancel()
    assert limiter.held == 0


async def test_nested_call_of_same_source_shares_slot() -> None:
    limiter = Limiter(1)
    leaf = guard(asking, limiter=limiter)
    other = guard(lambda arguments, ctx: leaf.call({}, ctx.child()), limiter=Limiter(1))
    outer = guard(lambda arguments, ctx: other.call({}, ctx.child()), limiter=limiter)
    person = Person()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outer.call, NOTHING, CallContext(ports=CallPorts(caller=person)))
            await person.asked.wait()
            assert limiter.held == 0
            person.may_answer.set()
    assert limiter.held == 0


async def test_question_of_inner_call_stops_outer_clock() -> None:
    contexts: list[CallContext] = []
    inner = guard(keeping(contexts))
    outer = guard(lambda arguments, ctx: inner.call({}, ctx.child()))
    person = Person()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outer.call, NOTHING, CallContext(ports=CallPorts(caller=person)))
            await person.asked.wait()
            assert [clock.scope.deadline for clock in contexts[0].limits.clocks] == [float("inf")] * 2
            person.may_answer.set()
    assert all(clock.scope.deadline < float("inf") for clock in contexts[0].limits.clocks)


@pytest.mark.parametrize(("rules", "is_local", "seconds"), [
    ({}, False, DEFAULT_TASK_SECONDS),
    ({"timeoutSeconds": 2 * DEFAULT_TASK_SECONDS}, False, 2 * DEFAULT_TASK_SECONDS),
    ({"tasks": {"maxWaitSeconds": 5}}, False, 5),
    ({}, True, math.inf),
])  # fmt: skip
def test_remote_task_always_has_a_deadline(rules: dict[str, Any], is_local: bool, seconds: float) -> None:
    gate = ToolRules.build(ToolDefinition("hang", "", {"type": "object"}), SourcePolicy.model_validate(rules), is_local=is_local)
    assert gate.max_task_seconds == seconds


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
