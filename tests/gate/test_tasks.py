"""`GuardedTool` and tasks: calls that are steps of durable tasks, and requests about the tasks of servers."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.errors import MiddlewareTermination, NotFound, PolicyDenied, Rejected, ToolFailed
from gateway.gate.concurrency import Limiter
from gateway.gate.refusals import RULE_META_KEY
from gateway.json_types import JsonObject
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, CallPorts
from tests.fakes.recorded_events import RecordedEvents
from tests.gate.fake_tools import CLEAN, HIDDEN, FakeTool, complete, failing, guarded, last, returning, rules_of, without_password


class Tracked(FakeTool):
    """A tool whose server returns a given response to each request about its tasks."""

    def __init__(self, answer: Any) -> None:
        super().__init__(returning(Complete.text("")))
        self.answer = answer
        self.asked: list[Any] = []

    async def task(self, method: Any, params: JsonObject, ctx: CallContext) -> JsonObject:
        self.asked.append((method, params))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await anyio.sleep_forever()
        answer: Any = self.answer
        return answer


# -- steps of tasks ------------------------------------------------------------------------------------------------


class Recorder:
    """A durable task of one step, of which nothing is on record, or whose outcome nobody knows."""

    def __init__(self, outcome: Any = None) -> None:
        self.outcome = outcome
        self.steps: list[tuple[str, Any]] = []
        self.forms: list[Any] = []

    async def step(self, name: str, work: Any, *, repeatable: Any, ctx: CallContext | None = None) -> Any:
        self.steps.append((name.partition(":")[0], repeatable("key")))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome is not None:
            return self.outcome
        self.forms.append(await work("key"))
        return self.forms[-1]


@pytest.mark.parametrize(
    ("outcome", "said", "recorded"),
    [
        (None, "done", "complete"),
        ({"result": Complete.text("on record", is_error=True).result}, "on record", "error"),
        (ToolFailed("Its outcome is unknown."), "Its outcome is unknown.", "failed"),
    ],
)
async def test_call_in_durable_task_is_a_step(outcome: Any, said: str, recorded: str) -> None:
    events, steps, tool = RecordedEvents(), Recorder(outcome), FakeTool(returning(Complete.text("done")))
    ctx = CallContext(ports=CallPorts(durable=cast("Any", steps)))
    for idempotent in ([], ["read"]):
        result = await complete(guarded(tool, rules_of(tool.definition, idempotent=idempotent), events), {}, ctx)
        assert (result.as_text(), result.is_error, last(events)) == (said, recorded != "complete", ("call.finished", recorded, None))
    assert steps.steps == [("docs__read", False), ("docs__read", True)]


class RecordsItself(FakeTool):
    records_steps = True


@pytest.mark.parametrize(("kind", "steps"), [(FakeTool, [("docs__read", False)]), (RecordsItself, [])])
async def test_own_tool_is_a_step_of_its_task_unless_it_records_itself(kind: type[FakeTool], steps: list[Any]) -> None:
    recorder, tool = Recorder(), kind(returning(Complete.text("done")))
    ctx = CallContext(ports=CallPorts(durable=cast("Any", recorder)))
    assert (await complete(guarded(tool, rules_of(tool.definition, is_own=True)), {}, ctx)).as_text() == "done"
    assert recorder.steps == steps


@pytest.mark.parametrize(
    ("error", "is_recorded"), [(ValueError("odd"), True), (ToolFailed("odd"), True), (MiddlewareTermination("odd"), False)]
)
async def test_failure_of_own_tool_is_recorded_and_raised(error: Exception, is_recorded: bool) -> None:
    recorder, tool = Recorder(), FakeTool(failing(error))
    ctx = CallContext(ports=CallPorts(durable=cast("Any", recorder)))
    with pytest.raises(type(error)) as raised:
        await guarded(tool, rules_of(tool.definition, is_own=True)).call({}, ctx)
    assert raised.value is error
    assert [form["result"]["isError"] for form in recorder.forms] == [True] * is_recorded


# -- tasks of servers ----------------------------------------------------------------------------------------------


async def test_result_of_server_task_is_judged() -> None:
    answer: JsonObject = {"taskId": "1", "statusMessage": HIDDEN, "error": {"message": HIDDEN}, "result": Complete.text(HIDDEN).result}
    tool = Tracked(answer)
    told = await guarded(tool).task("tasks/get", {"taskId": "1"}, CallContext())
    assert (told["statusMessage"], told["error"], told["result"]["content"][0]["text"]) == (CLEAN, {"message": CLEAN}, CLEAN)
    assert tool.asked == [("tasks/get", {"taskId": "1"})]
    allowing = await guarded(Tracked({"statusMessage": HIDDEN}), rules_of(hiddenText="allow")).task("tasks/get", {}, CallContext())
    assert allowing == {"statusMessage": HIDDEN}
    large = await guarded(Tracked({"result": Complete.text("x" * 5_000).result}), rules_of(maxResultBytes=1_024)).task(
        "tasks/get", {}, CallContext()
    )
    assert large["result"]["_meta"] == {RULE_META_KEY: "maxResultBytes"}


async def test_task_of_tool_without_tasks_is_not_found() -> None:
    with pytest.raises(NotFound) as missing:
        await guarded(FakeTool(returning(Complete.text("")))).task("tasks/get", {"taskId": "1"}, CallContext())
    assert missing.value.kind == "task"


async def test_error_of_task_request_is_raised_without_secrets() -> None:
    with pytest.raises(Rejected) as refused:
        await guarded(Tracked(Rejected("hunter2", server="docs", code=-32602)), mask=without_password).task("tasks/get", {}, CallContext())
    assert str(refused.value) == "***"


async def test_task_request_has_timeout_of_call() -> None:
    with anyio.fail_after(20), pytest.raises(ToolFailed, match=r"within 0\.02 s; .*raise `timeoutSeconds` of 'docs'"):
        await guarded(Tracked(None), rules_of(timeoutSeconds=0.02)).task("tasks/get", {}, CallContext())


async def test_task_request_is_authorized_and_audited_again() -> None:
    tool, events = Tracked({"status": "working"}), RecordedEvents()
    behind = guarded(tool, events=events, limiter=Limiter(0))
    narrowed = CallContext(CallFacts(principal=Principal("key:ada", scopes=("tools:docs/other",))))
    with anyio.fail_after(20), pytest.raises(PolicyDenied) as refused:
        await behind.task("tasks/cancel", {"taskId": "1"}, narrowed)
    assert (refused.value.rule, tool.asked, last(events)) == ("scopes", [], ("call.refused", "refused", "scopes"))
    with anyio.fail_after(20):  # a limiter without free slots does not delay a request about a task
        await behind.task("tasks/get", {"taskId": "1"}, CallContext())
    assert (last(events), events.recent()[-1].fields["method"]) == (("task.finished", "complete", None), "tasks/get")


async def test_task_request_needs_no_second_approval() -> None:
    tool = Tracked({"status": "working"})
    await guarded(tool, rules_of(tool.definition, approval={"always": ["*"]})).task("tasks/get", {"taskId": "1"}, CallContext())
    assert tool.asked == [("tasks/get", {"taskId": "1"})]
