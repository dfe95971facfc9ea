"""A workflow inside another: outputs, requests, failures and checkpoints cross the border as `WorkflowExecutor` says."""

from __future__ import annotations

from typing import Any, Never

import pytest

from gateway.errors import ToolFailed
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.checkpoints import InMemoryCheckpointStorage
from gateway.workflows.events import WorkflowRunState
from gateway.workflows.executor import Executor, handler, response_handler
from gateway.workflows.sub_workflow import SubWorkflowRequestMessage, SubWorkflowResponseMessage, WorkflowExecutor
from gateway.workflows.workflow import Workflow
from gateway.workflows.workflow_context import WorkflowContext


class Upper(Executor):
    @handler
    async def run(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(message.upper())


class Shout(Executor):
    @handler
    async def run(self, message: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(message + "!")


class Asks(Executor):
    @handler
    async def run(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        if message == "boom":
            raise ToolFailed("inner trouble")
        ctx.set_state("asked", message)
        await ctx.request_info(message, int, request_id=f"inner-{message}")

    @response_handler
    async def take(self, original_request: str, response: int, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{original_request}={response} after {ctx.get_state('asked')}")


class Start(Executor):
    @handler
    async def start(self, message: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(message)


class Answers(Executor):
    """Answers what the inner workflow asks."""

    @handler
    async def answer(self, message: SubWorkflowRequestMessage, ctx: WorkflowContext[SubWorkflowResponseMessage]) -> None:
        with pytest.raises(TypeError, match="does not match int"):
            message.create_response("text")
        await ctx.send_message(message.create_response(len(message.source_event.data)), target_id=message.executor_id)


def inner(executor: Executor | None = None) -> Workflow:
    return WorkflowBuilder(name="inner", start_executor=executor or Asks("asks")).build()


def outer(sub: WorkflowExecutor) -> Workflow:
    start, answers, end = Start("start"), Answers("answers"), Shout("end")
    builder = WorkflowBuilder(name="outer", start_executor=start).add_edge(start, sub).add_edge(sub, end)
    return builder.add_edge(sub, answers).add_edge(answers, sub).build()


@pytest.mark.requirement("WF11")
async def test_inner_outputs_are_sent_on_or_yielded_directly() -> None:
    sub = WorkflowExecutor(inner(Upper("u")))
    assert sub.id == "inner"
    builder = WorkflowBuilder(start_executor=sub, output_from=["end"]).add_edge(sub, Shout("end"))
    assert (await builder.build().run("tea")).get_outputs() == ["TEA!"]
    direct = WorkflowExecutor(inner(Upper("u")), id="sub", allow_direct_output=True)
    assert (await WorkflowBuilder(start_executor=direct).build().run("tea")).get_outputs() == ["TEA"]


@pytest.mark.requirement("WF11")
async def test_inner_request_is_answered_by_an_executor_of_the_parent() -> None:
    result = await outer(WorkflowExecutor(inner(), id="sub")).run("milk")
    assert result.get_outputs() == ["milk=4 after milk!"]
    assert result.get_final_state() is WorkflowRunState.IDLE


@pytest.mark.requirement("WF11")
async def test_inner_request_may_reach_the_caller_of_the_parent() -> None:
    workflow = outer(WorkflowExecutor(inner(), id="sub", propagate_request=True))
    result = await workflow.run("milk")
    (event,) = result.get_request_info_events()
    assert (event.request_id, event.source_executor_id, event.data) == ("inner-milk", "sub", "milk")
    with pytest.raises(ValueError, match="expected int"):
        await workflow.run(responses={"inner-milk": "many"})
    assert (await workflow.run(responses={"inner-milk": 9})).get_outputs() == ["milk=9 after milk!"]


@pytest.mark.requirement("WF11")
async def test_inner_failure_fails_the_parent_with_the_same_exception() -> None:
    with pytest.raises(ToolFailed, match="inner trouble"):
        await outer(WorkflowExecutor(inner(), id="sub")).run("boom")


@pytest.mark.requirement("WF11")
@pytest.mark.requirement("WF12")
async def test_checkpoint_of_the_parent_holds_the_inner_workflow() -> None:
    storage = InMemoryCheckpointStorage()
    await outer(WorkflowExecutor(inner(), id="sub", propagate_request=True)).run("milk", checkpoint_storage=storage)
    latest = await storage.get_latest(workflow_name="outer")
    assert latest is not None
    fresh = outer(WorkflowExecutor(inner(), id="sub", propagate_request=True))
    result = await fresh.run(checkpoint_id=latest.checkpoint_id, checkpoint_storage=storage, responses={"inner-milk": 2})
    assert result.get_outputs() == ["milk=2 after milk!"]


async def test_messages_that_arrive_together_are_handled_in_turn() -> None:
    class Two(Executor):
        @handler
        async def run(self, message: str, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message("one")
            await ctx.send_message("two")

    sub = WorkflowExecutor(inner(Upper("u")), id="sub", allow_direct_output=True)
    builder: Any = WorkflowBuilder(start_executor=Two("two")).add_edge("two", sub)
    assert (await builder.build().run("x")).get_outputs() == ["ONE", "TWO"]
