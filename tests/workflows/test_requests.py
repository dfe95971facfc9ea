"""Workflows that ask: `request_info`, `@response_handler`, and runs that go on with answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Never

import pytest

from gateway.errors import WorkflowError, WorkflowFailed
from gateway.json_types import JsonObject
from gateway.tools.context import CallContext, CallPorts
from gateway.tools.ports import NoCaller
from gateway.workflows import info_requests
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.events import WorkflowEvent, WorkflowRunState
from gateway.workflows.executor import Executor, handler, response_handler
from gateway.workflows.workflow import Workflow
from gateway.workflows.workflow_context import WorkflowContext


@dataclass
class Question:
    text: str


@dataclass
class Verdict:
    approved: bool
    notes: str = ""


class Asker(Executor):
    """Asks about every message; answers of different types go to different methods."""

    @handler
    async def start(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        for name in message.split():
            await ctx.request_info(Question(name), Verdict, request_id=name)

    @handler
    async def count(self, message: int, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info("how many?", int, request_id="count")

    @response_handler
    async def judged(self, original_request: Question, response: Verdict, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{original_request.text}:{response.approved}:{ctx.request_id}")
        await ctx.send_message(original_request.text)

    @response_handler(request=str, response=int, workflow_output=str)
    async def counted(self, original_request: Any, response: Any, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"{original_request}{response}")


class End(Executor):
    @handler
    async def end(self, message: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"end {message}")


def build() -> Workflow:
    asker = Asker("asker")
    return WorkflowBuilder(start_executor=asker).add_edge(asker, End("end")).build()


@pytest.mark.requirement("WF9")
@pytest.mark.requirement("WF4")
async def test_request_pauses_the_run_and_an_answer_goes_on_with_it() -> None:
    workflow = build()
    result = await workflow.run("tea")
    (event,) = result.get_request_info_events()
    assert (event.request_id, event.source_executor_id, event.data) == ("tea", "asker", Question("tea"))
    assert (event.request_type, event.response_type) == (Question, Verdict)
    assert [item.state for item in result.status_timeline()] == [
        WorkflowRunState.IN_PROGRESS,
        WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS,
        WorkflowRunState.IDLE_WITH_PENDING_REQUESTS,
    ]
    result = await workflow.run(responses={"tea": Verdict(True)})
    assert result.get_outputs() == ["tea:True:tea", "end tea"]
    assert result.get_final_state() is WorkflowRunState.IDLE


@pytest.mark.requirement("WF9")
async def test_requests_may_be_answered_one_by_one_and_in_json_form() -> None:
    workflow = build()
    await workflow.run("tea milk")
    first = await workflow.run(responses={"milk": {"approved": False}})
    assert first.get_outputs() == ["milk:False:milk", "end milk"]
    assert first.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    second = await workflow.run(responses={"tea": Verdict(True)})
    assert second.get_final_state() is WorkflowRunState.IDLE


@pytest.mark.requirement("WF9")
async def test_the_types_of_request_and_response_choose_the_handler() -> None:
    workflow = build()
    await workflow.run(3)
    assert (await workflow.run(responses={"count": 7})).get_outputs() == ["how many?7"]


@pytest.mark.requirement("WF9")
async def test_answers_without_a_request_are_rejected_and_it_stays_open() -> None:
    workflow = build()
    with pytest.raises(RuntimeError, match="No pending requests"):
        await workflow.run(responses={"tea": Verdict(True)})
    await workflow.run("tea")
    with pytest.raises(ValueError, match="unknown request ID: milk"):
        await workflow.run(responses={"milk": Verdict(True)})
    with pytest.raises(ValueError, match="expected Verdict, got str"):
        await workflow.run(responses={"tea": "yes"})
    assert workflow.status is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert (await workflow.run(responses={"tea": Verdict(True)})).get_outputs()[0] == "tea:True:tea"


@pytest.mark.requirement("WF9")
async def test_answer_that_no_handler_takes_fails_the_run() -> None:
    class Forgetful(Executor):
        @handler
        async def start(self, message: str, ctx: WorkflowContext[str, str]) -> None:
            await ctx.request_info(Question("?"), bool, request_id="r")

    workflow = WorkflowBuilder(start_executor=Forgetful("f")).build()
    await workflow.run("x")
    with pytest.raises(WorkflowError, match="cannot handle request of type Question and response of type bool"):
        await workflow.run(responses={"r": True})


class Repeater(Executor):
    """Asks the same question again until it has been answered `times` times, and then returns the number of answers."""

    def __init__(self, times: int) -> None:
        super().__init__("repeater")
        self.left = self.times = times

    @handler
    async def start(self, message: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.request_info("again?", bool)

    @response_handler
    async def answered(self, original_request: str, response: bool, ctx: WorkflowContext[Never, str]) -> None:
        self.left -= 1
        if self.left:
            await ctx.request_info("again?", bool)
        else:
            await ctx.yield_output(f"{self.times} answers")


class Agreeing(NoCaller):
    """A client whose user accepts every form with `answer: true`."""

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        return {"action": "accept", "content": {"answer": True}}


async def ended(times: int) -> list[Any]:
    workflow = WorkflowBuilder(start_executor=Repeater(times)).build()
    ctx = CallContext(ports=CallPorts(caller=Agreeing()))
    return (await info_requests.run_to_end(workflow, "x", ctx, ignore)).get_outputs()


async def ignore(event: WorkflowEvent[Any]) -> None:
    """Receive an event of a run, and do nothing."""


async def test_last_allowed_answer_reaches_the_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info_requests, "MAX_ASK_ROUNDS", 3)
    assert await ended(3) == ["3 answers"]
    with pytest.raises(WorkflowFailed, match="asked more than 3 times"):
        await ended(4)
