"""Functional workflows: a function with steps, run again from the start and never twice through a finished step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.workflows.checkpoints import FileCheckpointStorage
from gateway.workflows.events import WorkflowRunState
from gateway.workflows.functional import FunctionalWorkflow, RunContext, get_run_context, step, workflow

pytestmark = pytest.mark.requirement("WF15")


@dataclass
class Verdict:
    approved: bool


calls: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()


@step
async def double(value: int) -> int:
    calls.append(f"double {value}")
    return value * 2


@step(name="asks")
async def ask(question: str, ctx: RunContext) -> Verdict:
    calls.append("ask")
    return await ctx.request_info(question, Verdict)


@workflow
async def pipeline(message: int, ctx: RunContext) -> str:
    """Doubles, asks, doubles."""
    first = await double(message)
    verdict = await ask(f"is {first} fine?")
    ctx.set_state("seen", ctx.get_state("seen", 0) + 1)
    return f"{await double(first)} {verdict.approved} {ctx.get_state('seen')}"


async def pipeline_function(message: int, ctx: RunContext) -> str:
    first = await double(message)
    verdict = await ask(f"is {first} fine?")
    return f"{await double(first)} {verdict.approved}"


async def test_a_workflow_asks_and_goes_on_without_repeating_finished_steps() -> None:
    result = await pipeline.run(2)
    (event,) = result.get_request_info_events()
    assert (event.data, event.response_type) == ("is 4 fine?", Verdict)
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    with pytest.raises(ValueError, match="unknown request ID: other"):
        await pipeline.run(responses={"other": 1})
    with pytest.raises(ValueError, match="expected Verdict"):
        await pipeline.run(responses={event.request_id: "yes"})
    result = await pipeline.run(responses={event.request_id: {"approved": True}})
    assert result.get_outputs() == ["8 True 1"]
    assert calls == ["double 2", "ask", "ask", "double 4"]
    assert [(event.type, event.executor_id) for event in result if event.type.startswith("executor")][:2] == [
        ("executor_bypassed", "double"),
        ("executor_invoked", "asks"),
    ]


async def test_a_checkpoint_of_each_step_lets_another_process_go_on(tmp_path: Path) -> None:
    storage = FileCheckpointStorage(tmp_path)
    first = FunctionalWorkflow(pipeline_function, name="pipeline")
    (event,) = (await first.run(2, checkpoint_storage=storage)).get_request_info_events()
    latest = await storage.get_latest(workflow_name="pipeline")
    assert latest is not None
    second = FunctionalWorkflow(pipeline_function, name="pipeline")
    result = await second.run(checkpoint_id=latest.checkpoint_id, checkpoint_storage=storage, responses={event.request_id: Verdict(False)})
    assert result.get_outputs() == ["8 False"]
    assert calls == ["double 2", "ask", "ask", "double 4"]
    other = FunctionalWorkflow(pipeline_function, name="renamed")
    with pytest.raises(ValueError, match="another version"):
        await other.run(checkpoint_id=latest.checkpoint_id, checkpoint_storage=storage)


async def test_a_failure_is_told_and_raised() -> None:
    @workflow(name="fails", description="d")
    async def fails(message: str) -> None:
        raise KeyError(message)

    seen: list[Any] = []
    with pytest.raises(KeyError):
        async for event in fails.run("x", stream=True):
            seen.append(event.type)  # noqa: PERF401  # kept when the stream raises
    assert seen[-2:] == ["failed", "status"]
    assert fails.status is WorkflowRunState.FAILED


async def test_a_step_outside_a_run_is_the_function_and_functions_must_fit() -> None:
    assert await double(4) == 8
    assert get_run_context() is None
    with pytest.raises(TypeError, match="async functions"):
        step(len)  # pyright: ignore[reportArgumentType]  # the point of the test
    with pytest.raises(ValueError, match="one message is all"):

        @workflow
        async def two(one: int, other: int) -> None: ...

    with pytest.raises(ValueError, match="reserved"):
        await _set_reserved.run("x")


@workflow
async def _set_reserved(message: str, ctx: RunContext) -> None:
    ctx.set_state("_secret", message)


async def test_as_an_agent_its_request_is_a_function_call() -> None:
    agent = FunctionalWorkflow(pipeline_function, name="pipeline").as_agent("flow")
    response = await agent.run(3)
    (call,) = response.messages[0].contents
    assert (call.type, call.name) == ("function_call", "request_info")
    answer = Content.from_function_result(call.call_id or "", {"approved": True})
    assert (await agent.run([Message("tool", [answer])])).text == "12 True"
