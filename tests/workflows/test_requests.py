"""Workflows that ask: `request_info`, `@response_handler`, and runs that go on with answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Never

import pytest

from gateway.errors import WorkflowError
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.events import WorkflowRunState
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
