"""Tasks survive the process that runs them: no finished step runs twice, what is in doubt is asked, peers take over."""

from __future__ import annotations

import secrets
import signal
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.config.models import TaskSettings
from gateway.errors import TaskError
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.file_names import DATABASE_FILE
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tasks.task import Task, TaskKind
from gateway.tasks.task_executor import CallTool
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.tool import WorkflowTool
from tests.fakes.postgres import Postgres, postgres
from tests.tasks.calls import CTX, Gate, asking, ended, only_task
from tests.tasks.dying import Journal, die, in_a_process, last, once_asked, running, steady
from tests.workflows.scripted import ScriptedToolBox, guard, workflow_of

STEPS = 10
Death = tuple[int, str] | None
UNDISTURBED = [f"{number} /step#{number + 1}" for number in range(STEPS)]


def ten_steps(journal: Journal, death: Death, *, repeatable: bool = True) -> CallTool:
    """A call of ten steps, each with a side effect; dies at a step, before or after the effect."""

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        assert ctx.ports.durable is not None
        total = 0
        for number in range(STEPS):

            async def work(key: str, number: int = number) -> JsonValue:
                if death == (number, "before"):
                    die()
                journal.write(f"{number} {key.partition(':')[2]}")
                if death == (number, "after"):
                    die()
                return number

            value = await ctx.ports.durable.step("step", work, repeatable=repeatable)
            assert isinstance(value, int)
            total += value
        return Complete.text(str(total))

    return call


def caller(name: str) -> CallContext:
    return CallContext(CallFacts(principal=Principal(name), client=CTX.facts.client))


def start_and_die(folder: Path, call: CallTool, url: str | None = None) -> None:
    async def main() -> None:
        async with running(folder, call, url=url) as runner:
            await ended(runner, await runner.start("tool", {}, CTX))

    assert in_a_process(main) == signal.SIGKILL


async def finish(folder: Path, call: CallTool, url: str | None = None) -> Task:
    async with running(folder, call, url=url) as runner:
        return await ended(runner, await only_task(runner))


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running_server:
        yield running_server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str | None:
    """Where tasks are kept: in the state folder, or on a server."""
    return None if request.param == "sqlite" else request.getfixturevalue("server").database(f"tasks_{secrets.token_hex(4)}")


ALL = [(number, when) for number in range(STEPS) for when in ("before", "after")]
FEW = [(0, "before"), (4, "after"), (9, "after")]
MATRIX = [pytest.param(death, marks=() if death in FEW else pytest.mark.faults) for death in ALL]


@pytest.mark.requirement(97)
@pytest.mark.usefixtures("task_engine")
@pytest.mark.parametrize("death", MATRIX)
@pytest.mark.fault(2)
def test_task_resumes_after_a_kill_and_repeats_no_finished_step(death: Death, url: str | None, tmp_path: Path) -> None:
    """The side effects, de-duplicated by key, are those of the undisturbed run; at most the step in flight has two."""
    journal = Journal(tmp_path / "journal")
    start_and_die(tmp_path, ten_steps(journal, death), url)
    task = last(partial(finish, tmp_path, ten_steps(journal, None), url))
    assert (task.status, task.row.attempts) == ("completed", 2)
    assert task.result == Complete.text("45").result
    lines = journal.lines()
    assert list(dict.fromkeys(lines)) == UNDISTURBED
    assert {line for line in lines if lines.count(line) > 1} <= ({f"{death[0]} /step#{death[0] + 1}"} if death else set())
    assert len(lines) <= STEPS + 1


def test_undisturbed_run_has_each_side_effect_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")

    async def main() -> None:
        async with running(tmp_path, ten_steps(journal, None)) as runner:
            await ended(runner, await runner.start("tool", {}, CTX))

    anyio.run(main)
    assert journal.lines() == UNDISTURBED


@pytest.mark.requirement(97)
@pytest.mark.usefixtures("task_engine")
@pytest.mark.parametrize(("outcome", "runs"), [("retry", 11), ("skip", 6)])
def test_step_in_doubt_is_not_repeated_without_a_decision(outcome: str, runs: int, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    start_and_die(tmp_path, ten_steps(journal, (5, "after"), repeatable=False))

    async def main() -> Task:
        async with running(tmp_path, ten_steps(journal, None, repeatable=False)) as runner:
            task = await only_task(runner)
            task = await once_asked(runner, task)
            ((key, request),) = task.open_requests.items()
            assert "its outcome is unknown" in request["params"]["message"]
            assert len(journal.lines()) == 6
            await runner.answer(task, {"other": {}, key: {"action": "accept", "content": {"outcome": outcome}}})
            return await ended(runner, await runner.find(task.id, "local"))

    task = last(main)
    assert len(journal.lines()) == runs
    if outcome == "retry":
        assert task.status == "completed"
        assert journal.lines().count("5 /step#6") == 2
    else:
        assert (task.status, task.error) == (
            "failed",
            {"code": -32603, "message": "The gateway stopped while 'step' ran. Its outcome is unknown, and it was not repeated."},
        )


@pytest.mark.fault(3)
@pytest.mark.usefixtures("task_engine")
def test_answer_given_while_no_process_runs_is_found_after_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")

    async def ask_and_die() -> None:
        async with running(tmp_path, asking(journal, None)) as runner:
            task = await runner.start("tool", {}, CTX)
            await once_asked(runner, task)
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
    task = last(partial(finish, tmp_path, asking(journal, None)))
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
@pytest.mark.fault(8)
async def test_task_is_controllable_through_another_process(url: str | None, tmp_path: Path) -> None:
    done: list[str] = []
    async with steady(tmp_path, waiting(done), url=url) as one, steady(tmp_path, waiting([]), url=url) as two:
        first, second = await one.start("first", {}, CTX), await one.start("second", {}, CTX)
        with anyio.fail_after(20):
            for task in (first, second):
                while (await two.find(task.id, "local")).status != "input_required":
                    await anyio.sleep(0.02)
            seen = await two.find(first.id, "local")
            assert (seen.is_here, seen.message) == (False, "at work")
            await two.answer(seen, {key: {"action": "accept", "content": {}} for key in seen.open_requests})
            assert (await ended(two, seen)).status == "completed"
            for _ in range(2):
                assert (await two.cancel(await two.find(second.id, "local"))).status == "cancelled"
            assert (await two.cancel(await two.find(first.id, "local"))).status == "completed"
    assert sorted(done) == ["first", "second"]


async def test_cancellation_by_another_process_reaches_a_writing_owner(url: str | None, tmp_path: Path) -> None:
    begun, cancelled = anyio.Event(), anyio.Event()

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Any:
        begun.set()
        await cancelled.wait()
        return await waiting([])(tool, arguments, ctx)  # which stores its question with a new time

    async with steady(tmp_path, call, url=url) as one:
        task = await one.start("first", {}, CTX)
        await begun.wait()
        other = Records(StateFolder(tmp_path), audit_days=1, url=url)
        await (await other.tasks()).cancel(task.id)
        cancelled.set()
        assert (await ended(one, task)).status == "cancelled"
        await other.aclose()


@pytest.mark.requirement(97)
@pytest.mark.fault(7)
async def test_one_of_two_peers_takes_over_the_tasks_of_a_killed_process(url: str | None, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")

    def start() -> None:
        start_and_die(tmp_path, ten_steps(journal, (3, "before")), url)

    call = ten_steps(journal, None)
    async with running(tmp_path, call, url=url) as peer, running(tmp_path, call, url=url):
        await anyio.to_thread.run_sync(start)
        task = await ended(peer, await only_task(peer))
    assert task.status == "completed"
    assert journal.lines() == UNDISTURBED


async def test_process_that_lost_a_task_stops_working_on_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    stolen = anyio.Event()

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        assert ctx.ports.durable is not None

        def steal() -> None:
            with closing(sqlite3.connect(tmp_path / DATABASE_FILE, timeout=20)) as database:
                database.execute("UPDATE tasks SET owner = 'another'")
                database.execute("INSERT INTO task_owners VALUES ('another', 1e12)")
                database.commit()

        async def work(key: str) -> JsonValue:
            journal.write("first")
            await anyio.to_thread.run_sync(steal)  # in a thread, because the runner may hold a lock on the file until the event loop runs
            stolen.set()
            return None

        await ctx.ports.durable.step("step", work, repeatable=True)
        journal.write("second")
        return Complete.text("done")

    async with running(tmp_path, call) as runner:
        task = await runner.start("tool", {}, CTX)
        with anyio.fail_after(20):
            await stolen.wait()
            while task.is_here:
                await anyio.sleep(0.02)
        assert (await runner.find(task.id, "local")).status == "working"
    assert journal.lines() == ["first"]


# -- turns ---------------------------------------------------------------------------------------------------------


async def test_tool_limit_holds_across_processes_and_callers_take_turns(url: str | None, tmp_path: Path) -> None:
    gate = Gate()
    kind = TaskKind([{"scope": "tool:agent/slow", "running": 2}])
    async with steady(tmp_path, gate.call, url=url) as one, steady(tmp_path, gate.call, url=url) as two:
        tasks = [await one.start("tool", {"name": f"ann-{number}"}, caller("ann"), kind=kind) for number in range(6)]
        tasks.append(await two.start("tool", {"name": "bob"}, caller("bob"), kind=kind))
        with anyio.fail_after(20):
            while len(gate.began) < 2:
                await anyio.sleep(0.01)
        waits = await two.find(tasks[-1].id, "bob")
        assert (waits.status, waits.message, gate.began) == ("working", "Queued", ["ann-0", "ann-1"])
        gate.open()
        runners = [one] * 6 + [two]
        over = [await ended(runner, await runner.find(task.id, task.principal)) for runner, task in zip(runners, tasks, strict=True)]
    assert {task.status for task in over} == {"completed"}
    assert gate.most == 2
    assert over[6].row.admitted_at <= over[3].row.admitted_at  # the second caller's task does not wait for the first caller's whole queue


async def test_start_rate_and_caller_limits_hold(tmp_path: Path) -> None:
    gate = Gate()
    gate.open()
    kind = TaskKind([{"scope": "source:up", "perMinute": 2}])
    settings = TaskSettings(max_running_per_caller=2)
    async with running(tmp_path, gate.call, settings=settings) as runner:
        first = [await runner.start("tool", {"name": str(number)}, CTX, kind=kind) for number in range(3)]
        assert [(await ended(runner, task)).status for task in first[:2]] == ["completed"] * 2
        assert (await runner.cancel(first[2])).status == "cancelled"
        assert gate.began == ["0", "1"]
        other = await ended(runner, await runner.start("tool", {"name": "other"}, CTX))
        assert other.status == "completed"


async def test_task_that_waits_for_a_person_frees_its_slot(tmp_path: Path) -> None:
    settings = TaskSettings(max_running_per_caller=1)
    async with running(tmp_path, waiting([]), settings=settings) as runner:
        tasks = [await runner.start("tool", {}, CTX) for _ in range(3)]
        with anyio.fail_after(20):
            for task in tasks:
                while task.status != "input_required":
                    await task.changed.wait()


def test_task_queued_when_its_process_died_starts_later(tmp_path: Path) -> None:
    settings = TaskSettings(max_running_per_caller=1)
    journal = Journal(tmp_path / "journal")

    async def hang_and_die() -> None:
        async with running(tmp_path, Gate().call, settings=settings) as runner:
            for name in ("a", "b"):
                await runner.start("tool", {"name": name}, CTX)
            die()

    async def note(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        journal.write(str(arguments["name"]))
        return Complete.text("went")

    async def rest() -> list[Task]:
        async with running(tmp_path, note, settings=settings) as runner:
            return [await ended(runner, task) for task in await runner.all_of("local")]

    assert in_a_process(hang_and_die) == signal.SIGKILL
    tasks = anyio.run(rest)
    assert [(task.status, task.row.attempts) for task in tasks] == [("completed", 2), ("completed", 1)]
    assert sorted(journal.lines()) == ["a", "b"]


@pytest.mark.requirement(97)
def test_non_resumable_work_fails_after_a_kill_with_the_reason(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")

    async def start() -> None:
        async with running(tmp_path, ten_steps(journal, (3, "before"))) as runner:
            await ended(runner, await runner.start("tool", {}, CTX, kind=TaskKind(resumes=False)))

    assert in_a_process(start) == signal.SIGKILL
    task = anyio.run(finish, tmp_path, ten_steps(journal, None))
    assert task.status == "failed"
    assert task.error is not None and "`tasks.resume`" in task.error["message"]
    assert len(journal.lines()) == 3


async def test_unfinished_tasks_per_caller_are_limited(tmp_path: Path) -> None:
    async with running(tmp_path, waiting([]), settings=TaskSettings(max_per_caller=3)) as runner:
        for _ in range(3):
            await runner.start("tool", {}, CTX)
        with pytest.raises(TaskError, match="already have 3 unfinished tasks"):
            await runner.start("tool", {}, CTX)
        await runner.start("tool", {}, CallContext(CallFacts(principal=Principal("ann"), client=CTX.facts.client)))


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
        plan = await WorkflowPlan.prepare(workflow_of(FLOW), base_dir=Path())
        outcome = await guard(WorkflowTool(plan, toolbox=ScriptedToolBox(**functions))).call({"x": "-"}, ctx)
        assert isinstance(outcome, Complete)
        return outcome

    return call


@pytest.mark.requirement(97)
def test_workflow_resumes_at_its_last_round_and_asks_about_the_call(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    start_and_die(tmp_path, flow(journal, "three"))
    assert sorted(journal.lines()) == ["one", "side", "three", "two"]

    async def main() -> Task:
        async with running(tmp_path, flow(journal, None)) as runner:
            task = await only_task(runner)
            task = await once_asked(runner, task)
            await runner.answer(task, {key: {"action": "accept", "content": {"outcome": "retry"}} for key in task.open_requests})
            return await ended(runner, await runner.find(task.id, "local"))

    task = anyio.run(main)
    assert (task.result or {})["content"] == Complete.text("-ot-ost").result["content"]
    assert sorted(journal.lines()) == ["one", "side", "three", "three", "two"]
