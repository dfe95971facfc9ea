"""Workflows that ask, inside a task: killed while the question waits, and again after it was answered."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.config.policies import SourcePolicy
from gateway.json_types import JsonObject
from gateway.tasks.task import Task
from gateway.tasks.task_executor import CallTool
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.function import FunctionTool
from gateway.tools.ports import ClientProfile
from gateway.workflows.functional import workflow
from gateway.workflows.functional_steps import RunContext, step
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.tool import WorkflowTool
from tests.tasks.dying import Journal, die, in_a_process, running
from tests.workflows.scripted import ScriptedToolBox, guard, workflow_of

pytestmark = pytest.mark.timeout(60)
ASKABLE = CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {"form": {}}})))
GRAPH = """\
name: x
description: d
input: {message: {type: string}}
executors:
  triage: {agent: triage}
  check: {ask: "Is {{triage}} right?", output: {answer: {type: string}}}
  refunds: {agent: refunds, prompt: "{{triage}}, user: {{check.answer}}"}
start: triage
edges:
  - {from: triage, to: check}
  - {from: check, to: refunds}
output: triage
"""
HANDOFF = """\
name: x
description: d
handoff: {participants: [triage, refunds], handoffs: {triage: [refunds]}}
"""


def graph(text: str, journal: Journal, *, dies: bool) -> CallTool:
    """Return a call of the workflow. If `dies`, the process is killed when the second agent receives the person's answer."""

    def triage(task: str) -> str:
        """Sorts."""
        journal.write("triage")
        return '{"call": "handoff_to_refunds"}' if "handoff_to_refunds" in task else "order"

    def refunds(task: str) -> str:
        """Refunds."""
        is_answered = "user: 42" in task
        journal.write("refunds with 42" if is_answered else "refunds")
        if is_answered and dies:
            die()
        return "Refunded 42." if is_answered else "Which order?"

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        box = ScriptedToolBox()
        for function in (triage, refunds):
            agent: FunctionTool[..., Any] = FunctionTool(function)
            box.add(f"agent/{function.__name__}", guard(agent, source="agent", policy=SourcePolicy(idempotent=["*"])))
        plan = await WorkflowPlan.prepare(workflow_of(text), base_dir=Path())
        outcome = await guard(WorkflowTool(plan, toolbox=box)).call(arguments, ctx)
        assert isinstance(outcome, Complete)
        return outcome

    return call


async def asked_or_over(runner: Any, task: Task) -> Task:
    """Return the task when it has an open question or has ended."""
    with anyio.fail_after(20):
        while not (task.is_over or task.open_requests):
            task = await runner.wait_for_change(task)
    return task


@pytest.mark.requirement("WF9", 97)
@pytest.mark.parametrize(
    ("text", "before", "last"),
    [
        pytest.param(GRAPH, ["triage"], ["order"], id="ask"),
        pytest.param(HANDOFF, ["triage", "refunds"], ["Which order?", "Refunded 42."], id="handoff"),
    ],
)
def test_workflow_killed_at_its_question_asks_once(
    text: str, before: list[str], last: list[str], tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")

    async def ask_and_die() -> None:
        async with running(tmp_path, graph(text, journal, dies=False)) as runner:
            await asked_or_over(runner, await runner.start("x", {"message": "my money"}, ASKABLE))
            die()

    async def answer_and_die() -> None:
        async with running(tmp_path, graph(text, journal, dies=True)) as runner:
            (task,) = await runner.all_of("local")
            await runner.answer(task, {key: {"action": "accept", "content": {"answer": "42"}} for key in task.open_requests})
            with anyio.fail_after(20):
                while not task.is_over:
                    task = await runner.wait_for_change(task)

    async def finish() -> Task:
        async with running(tmp_path, graph(text, journal, dies=False)) as runner:
            (task,) = await runner.all_of("local")
            task = await asked_or_over(runner, task)
            if task.open_requests:  # a handoff continues until the person sends an empty answer
                await runner.answer(task, {key: {"action": "accept", "content": {}} for key in task.open_requests})
            return await asked_or_over(runner, await runner.find(task.id, "local"))

    assert in_a_process(ask_and_die) == signal.SIGKILL
    assert journal.lines() == before
    assert in_a_process(answer_and_die) == signal.SIGKILL
    task = anyio.run(finish)
    assert task.result is not None, task.error
    assert [block["text"] for block in task.result["content"]] == last
    assert journal.lines() == [*before, "refunds with 42", "refunds with 42"]
    assert task.row.attempts == 3


@dataclass
class Approval:
    """A person's answer."""

    by: str


def in_steps(journal: Journal, *, dies: bool) -> CallTool:
    """A call of a function with steps that asks between its first and its second; with `dies` the process ends in its third."""

    @step
    async def collect(topic: str) -> dict[str, str]:
        journal.write(f"collect {topic}")
        return {"topic": topic}

    @step
    async def charge(approval: Approval) -> Approval:
        journal.write(f"charge {approval.by}")
        return approval

    @step
    async def publish(text: str) -> str:
        journal.write("publish")
        if dies:
            die()
        return text

    @workflow(name="in_steps")
    async def steps(topic: str, ctx: RunContext) -> str:
        found = await collect(topic)
        paid = await charge(await ctx.request_info(f"Publish {found['topic']}?", Approval))
        return await publish(f"{found['topic']} for {paid.by}")

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        file = workflow_of("name: x\ndescription: d\npython: here:steps\n")
        plan = WorkflowPlan(file, code=steps, sample=steps)
        outcome = await guard(WorkflowTool(plan, toolbox=ScriptedToolBox())).call(arguments, ctx)
        assert isinstance(outcome, Complete)
        return outcome

    return call


@pytest.mark.requirement("WF15", 97)
def test_killed_function_with_steps_repeats_only_the_step_in_flight(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")

    async def ask_and_die() -> None:
        async with running(tmp_path, in_steps(journal, dies=False)) as runner:
            await asked_or_over(runner, await runner.start("x", {"input": "tea"}, ASKABLE))
            die()

    async def answer_and_die() -> None:
        async with running(tmp_path, in_steps(journal, dies=True)) as runner:
            (task,) = await runner.all_of("local")
            await runner.answer(task, {key: {"action": "accept", "content": {"by": "Ada"}} for key in task.open_requests})
            await asked_or_over(runner, await runner.find(task.id, "local"))

    async def finish() -> Task:
        async with running(tmp_path, in_steps(journal, dies=False)) as runner:
            (task,) = await runner.all_of("local")
            return await asked_or_over(runner, task)

    assert in_a_process(ask_and_die) == signal.SIGKILL
    assert in_a_process(answer_and_die) == signal.SIGKILL
    task = anyio.run(finish)
    assert task.result is not None, task.error
    assert [block["text"] for block in task.result["content"]] == ["tea for Ada"]
    assert journal.lines() == ["collect tea", "charge Ada", "publish", "publish"]
