"""Tasks survive the process that runs them: no finished step runs twice, what is in doubt is asked, peers take over."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.errors import NotFound, TaskError
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.records import Records
from gateway.storage.state import StateFolder
from gateway.tasks.runner import MAX_TASKS_PER_PRINCIPAL, CallTool, TaskRunner
from gateway.tasks.task import Task
from gateway.tools.base import Complete
from gateway.tools.context import CallContext, ClientProfile
from gateway.workflows.loader import parse_workflow
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.tool import WorkflowTool
from tests.tasks.dying import Journal, die, in_a_process, running
from tests.workflows.scripted import ScriptedToolBox, guard

STEPS = 10
ASKABLE = ClientProfile(capabilities={"elicitation": {"form": {}}})
CTX = CallContext(client=ASKABLE)
Death = tuple[int, str] | None


def ten_steps(journal: Journal, death: Death, *, repeatable: bool = True) -> CallTool:
    """A call of ten steps, each with a side effect; dies at a step, before or after the effect."""

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        assert ctx.durable is not None
        total = 0
        for number in range(STEPS):

            async def work(key: str, number: int = number) -> JsonValue:
                if death == (number, "before"):
                    die()
                journal.write(f"{number} {key.partition(':')[2]}")
                if death == (number, "after"):
                    die()
                return number

            value = await ctx.durable.step("step", work, repeatable=repeatable)
            assert isinstance(value, int)
            total += value
        return Complete.text(str(total))

    return call


async def ended(runner: TaskRunner, task: Task) -> Task:
    with anyio.fail_after(15):
        while not task.is_over:
            task = await runner.moved(task)
    return task


async def only_task(runner: TaskRunner) -> Task:
    (task,) = await runner.all_of("local")
    return task


def start_and_die(folder: Path, call: CallTool) -> None:
    async def main() -> None:
        async with running(folder, call) as runner:
            await ended(runner, await runner.start("tool", {}, CTX))

    assert in_a_process(main) == signal.SIGKILL


async def finish(folder: Path, call: CallTool) -> Task:
    async with running(folder, call) as runner:
        return await ended(runner, await only_task(runner))


ALL = [(number, when) for number in range(STEPS) for when in ("before", "after")]
FEW = [(0, "before"), (4, "after"), (9, "after")]
MATRIX = [pytest.param(death, marks=() if death in FEW else pytest.mark.faults) for death in ALL]


@pytest.mark.requirement(97)
@pytest.mark.parametrize("death", MATRIX)
def test_after_a_kill_the_task_goes_on_and_no_finished_step_runs_twice(death: Death, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    start_and_die(tmp_path, ten_steps(journal, death))
    task = anyio.run(finish, tmp_path, ten_steps(journal, None))
    assert (task.status, task.row.attempts) == ("completed", 2)
    assert task.result == Complete.text("45").result
    lines = journal.lines()
    assert sorted(set(lines)) == [f"{number} /step#{number + 1}" for number in range(STEPS)]
    twice = {line for line in lines if lines.count(line) > 1}
    assert twice <= {f"{death[0]} /step#{death[0] + 1}"} if death else not twice
    assert len(lines) <= STEPS + 1


@pytest.mark.requirement(97)
@pytest.mark.parametrize(("outcome", "runs"), [("retry", 11), ("skip", 6)])
def test_a_step_in_doubt_is_not_repeated_before_a_person_said_so(outcome: str, runs: int, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    start_and_die(tmp_path, ten_steps(journal, (5, "after"), repeatable=False))

    async def main() -> Task:
        async with running(tmp_path, ten_steps(journal, None, repeatable=False)) as runner:
            task = await only_task(runner)
            with anyio.fail_after(10):
                while task.status != "input_required":
                    task = await runner.moved(task)
            ((key, request),) = task.asks.items()
            assert "its outcome is unknown" in request["params"]["message"]
            assert len(journal.lines()) == 6
            await runner.answer(task, {"other": {}, key: {"action": "accept", "content": {"outcome": outcome}}})
            return await ended(runner, await runner.find(task.id, "local"))

    task = anyio.run(main)
    assert len(journal.lines()) == runs
    if outcome == "retry":
        assert task.status == "completed"
        assert journal.lines().count("5 /step#6") == 2
    else:
        assert (task.status, task.error) == (
            "failed",
            {"code": -32603, "message": "The gateway stopped while 'step' ran. Its outcome is unknown, and it was not repeated."},
        )


def asking(journal: Journal, death: str | None) -> CallTool:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        answer = await ctx.ask({"method": "elicitation/create", "params": {"mode": "form", "message": "Name?", "requestedSchema": {}}})
        journal.write(answer["content"]["name"])
        return Complete.text(answer["content"]["name"])

    return call


def test_an_answer_given_while_no_process_runs_is_found_after_the_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")

    async def ask_and_die() -> None:
        async with running(tmp_path, asking(journal, None)) as runner:
            task = await runner.start("tool", {}, CTX)
            while not task.asks:
                await task.moved.wait()
            die()

    async def answer() -> list[str]:
        records = Records(StateFolder(tmp_path), audit_days=1)
        rows = await records.tasks()
        (row,) = await rows.all_of()
        await rows.answer(row.id, {key: {"action": "accept", "content": {"name": "Ada"}} for key in row.asked})
        await records.aclose()
        return list(row.asked)

    assert in_a_process(ask_and_die) == signal.SIGKILL
    keys = anyio.run(answer)
    task = anyio.run(finish, tmp_path, asking(journal, None))
    assert (task.result, journal.lines()) == (Complete.text("Ada").result, ["Ada"])
    assert list(task.row.asked) == keys


# -- several processes at once -------------------------------------------------------------------------------------


def waiting(done: list[str]) -> CallTool:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        await ctx.progress(1, None, "at work")
        try:
            await ctx.ask({"method": "elicitation/create", "params": {"mode": "form", "message": "Go?", "requestedSchema": {}}})
        finally:
            done.append(tool)
        return Complete.text("went")

    return call


@pytest.mark.requirement(94)
@pytest.mark.requirement(95)
async def test_a_task_is_polled_answered_and_cancelled_through_another_process(tmp_path: Path) -> None:
    done: list[str] = []
    async with running(tmp_path, waiting(done)) as one, running(tmp_path, waiting([])) as two:
        first, second = await one.start("first", {}, CTX), await one.start("second", {}, CTX)
        with anyio.fail_after(10):
            for task in (first, second):
                while (await two.find(task.id, "local")).status != "input_required":
                    await anyio.sleep(0.02)
            seen = await two.find(first.id, "local")
            assert (seen.is_here, seen.message) == (False, "at work")
            await two.answer(seen, {key: {"action": "accept", "content": {}} for key in seen.asks})
            assert (await ended(two, seen)).status == "completed"
            for _ in range(2):
                assert (await two.cancel(await two.find(second.id, "local"))).status == "cancelled"
            assert (await two.cancel(await two.find(first.id, "local"))).status == "completed"
    assert sorted(done) == ["first", "second"]


@pytest.mark.requirement(97)
async def test_a_peer_takes_over_what_a_killed_process_ran(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")

    def start() -> None:
        start_and_die(tmp_path, ten_steps(journal, (3, "before")))

    async with running(tmp_path, ten_steps(journal, None)) as peer:
        await anyio.to_thread.run_sync(start)
        began = time.monotonic()
        task = await ended(peer, await only_task(peer))
        assert time.monotonic() - began < 3
    assert task.status == "completed"


# -- who may ask, how long, how many -------------------------------------------------------------------------------


async def quick(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
    return Complete.text("done")


@pytest.mark.requirement(90)
async def test_a_task_is_unknown_to_everybody_else_and_its_id_cannot_be_guessed(tmp_path: Path) -> None:
    async with running(tmp_path, quick) as runner:
        task = await runner.start("tool", {}, CallContext(principal=Principal("ann")))
        assert len(task.id) >= 32
        for id_, principal in ((task.id, "bob"), ("x" * 32, "ann"), (task.id[:-1] + "!", "ann")):
            with pytest.raises(NotFound) as caught:
                await runner.find(id_, principal)
            assert caught.value.name == ""
        assert await runner.all_of("bob") == []


@pytest.mark.requirement(93)
async def test_a_finished_task_is_readable_for_its_time_and_then_unknown(tmp_path: Path) -> None:
    async with running(tmp_path, quick) as runner:
        task = await ended(runner, await runner.start("tool", {}, CTX, ttl_seconds=0.6))
        assert (await runner.find(task.id, "local")).result == Complete.text("done").result
        with anyio.fail_after(5):
            while task.row.gone_at > time.time():
                await anyio.sleep(0.05)
        with pytest.raises(NotFound):
            await runner.find(task.id, "local")


async def test_one_caller_cannot_have_too_many_unfinished_tasks(tmp_path: Path) -> None:
    async with running(tmp_path, waiting([])) as runner:
        for _ in range(MAX_TASKS_PER_PRINCIPAL):
            await runner.start("tool", {}, CTX)
        with pytest.raises(TaskError, match=f"already {MAX_TASKS_PER_PRINCIPAL} unfinished"):
            await runner.start("tool", {}, CTX)
        await runner.start("tool", {}, CallContext(principal=Principal("ann"), client=ASKABLE))


# -- workflows -----------------------------------------------------------------------------------------------------

FLOW = """\
name: flow
description: Four tools in a row, and one beside the second.
input: {x: {type: string}}
executors:
  one: {tool: t/one, arguments: {x: "{{x}}"}}
  two: {tool: t/two, arguments: {x: "{{one}}"}}
  side: {tool: t/side, arguments: {x: "{{one}}"}}
  three: {tool: t/three, arguments: {x: "{{two}}{{side}}"}}
start: one
edges:
  - {from: one, to: two}
  - {from: one, to: side}
  - {from: two, to: three}
  - {from: side, to: three}
output: three
"""


def flow(journal: Journal, death: str | None) -> CallTool:
    def make(name: str) -> Callable[..., str]:
        def function(x: str) -> str:
            journal.write(name)
            if name == death:
                die()
            return f"{x}{name[0]}"

        return function

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        functions: dict[str, Any] = {f"t__{name}": make(name) for name in ("one", "two", "side", "three")}
        plan = await WorkflowPlan.prepare(parse_workflow(FLOW), base_dir=Path())
        outcome = await guard(WorkflowTool(plan, toolbox=ScriptedToolBox(**functions))).call({"x": "-"}, ctx)
        assert isinstance(outcome, Complete)
        return outcome

    return call


@pytest.mark.requirement(97)
def test_a_workflow_goes_on_from_its_last_round_and_asks_about_the_call_in_doubt(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    start_and_die(tmp_path, flow(journal, "three"))
    assert sorted(journal.lines()) == ["one", "side", "three", "two"]

    async def main() -> Task:
        async with running(tmp_path, flow(journal, None)) as runner:
            task = await only_task(runner)
            with anyio.fail_after(10):
                while task.status != "input_required":
                    task = await runner.moved(task)
            await runner.answer(task, {key: {"action": "accept", "content": {"outcome": "retry"}} for key in task.asks})
            return await ended(runner, await runner.find(task.id, "local"))

    task = anyio.run(main)
    assert task.result is not None
    assert task.result["content"] == Complete.text("-ot-ost").result["content"]
    assert sorted(journal.lines()) == ["one", "side", "three", "three", "two"]
