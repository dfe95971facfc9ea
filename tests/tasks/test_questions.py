"""Questions of a task belong to the step that asks: no answer is used for another question, whatever its words."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.errors import StorageUnusable, ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.pending_questions import PendingQuestions
from gateway.storage.record_types import PendingQuestion
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task
from gateway.tools.base import Complete
from gateway.tools.context import CallContext
from tests.fakes.postgres import Postgres, postgres
from tests.tasks.dying import die, in_a_process, running
from tests.tasks.killing import ASKABLE, SECONDS, Fuse, Ledger, answer_all, in_file, run_killed

pytestmark = [pytest.mark.timeout(120), pytest.mark.fault(3), pytest.mark.requirement(97)]
TWICE: JsonObject = {
    "executors": {
        "first": {"ask": "Release now?"},
        "ship": {"tool": "t/act", "arguments": {"x": "{{first}}"}},
        "second": {"ask": "Release now?"},
        "sell": {"tool": "t/act", "arguments": {"x": "{{second}}"}},
    },
    "start": "first",
    "edges": [{"from": "first", "to": "ship"}, {"from": "ship", "to": "second"}, {"from": "second", "to": "sell"}],
    "output-from": "all",
}
EVENTS_OF_TWICE = 8


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running_server:
        yield running_server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str | None:
    if request.param == "sqlite":
        return None
    return request.getfixturevalue("server").database(f"questions_{abs(hash(request.node.name)) % 10**9}")


FEW = (4,)
WALK = [pytest.param(number, marks=() if number in FEW else pytest.mark.faults) for number in range(1, EVENTS_OF_TWICE + 1)]


@pytest.mark.parametrize("answer_down", [False, True], ids=["answered-alive", "answered-down"])
@pytest.mark.parametrize("kill_at", WALK)
def test_equal_questions_in_a_row_get_their_own_answers(kill_at: int, answer_down: bool, url: str | None, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ended = run_killed(tmp_path / "state", in_file(TWICE), ledger, [kill_at], url=url, answer_down=answer_down)
    asked = [key for key, text in ledger.answered() if text.endswith("Release now?")]
    assert len(asked) == len(set(asked)) == 2
    assert ended.texts == sorted([f"A {key}" for key in asked] + [f"did(A {key})" for key in asked])
    doubts = sum(text.startswith("The gateway stopped") for _, text in ledger.answered())
    assert len(ledger.effects.lines()) <= 2 + doubts


LOOP: JsonObject = {
    "executors": {"ask": {"ask": "Once more?"}, "ship": {"tool": "t/act", "arguments": {"x": "{{ask}}"}}},
    "start": "ask",
    "edges": [{"from": "ask", "to": "ship"}, {"from": "ship", "to": "ask", "max": 2}],
    "output-from": "all",
}


@pytest.mark.parametrize("kills", [[3, 3, 3], pytest.param([4, 5, 2], marks=pytest.mark.faults)])
def test_loop_asks_again_in_each_turn(kills: list[int], tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ended = run_killed(tmp_path / "state", in_file(LOOP), ledger, kills)
    asked = [key for key, text in ledger.answered() if text == "Once more?"]
    assert len(asked) == len(set(asked)) == 3
    assert ended.texts == sorted([f"A {key}" for key in asked] + [f"did(A {key})" for key in asked])


def test_start_executor_that_loops_asks_in_the_first_round_too(tmp_path: Path) -> None:
    form = {"executors": {"ask": {"tool": "t/pay", "arguments": {"x": "same"}}}, "start": "ask"}
    ledger = Ledger(tmp_path / "ledger")
    loop = {**form, "edges": [{"from": "ask", "to": "ask", "max": 2}], "output-from": "all"}
    run_killed(tmp_path / "state", in_file(loop), ledger, [])
    assert len({key for key, _ in ledger.answered()}) == 3
    assert len(set(ledger.effects.lines())) == 3


# -- steps in doubt ----------------------------------------------------------------------------------------------------

FORK: JsonObject = {
    "executors": {
        "begin": {"tool": "t/look", "arguments": {"x": "-"}},
        "left": {"tool": "t/act", "arguments": {"x": "left"}},
        "right": {"tool": "t/act", "arguments": {"x": "right"}},
    },
    "start": "begin",
    "edges": [{"from": "begin", "to": ["left", "right"]}],
    "output-from": ["left", "right"],
}


async def doubts(runner: TaskRunner, count: int) -> tuple[Task, dict[str, str]]:
    """Wait until the only task has `count` open questions, and return the task and the questions' names by executor."""
    (task,) = await runner.all_of("local")
    with anyio.fail_after(SECONDS):
        while True:
            task = await runner.find(task.id, "local")
            open_ones = {str(task.row.asked[name]["step"]).split("/")[2].partition("@")[0]: name for name in task.open_requests}
            if len(open_ones) == count:
                return task, open_ones
            await anyio.sleep(0.02)


def test_each_step_in_doubt_has_its_own_decision(tmp_path: Path) -> None:
    """Both questions have the same words. One step is retried and killed again; the decision about the other is kept."""
    state, ledger = tmp_path / "state", Ledger(tmp_path / "ledger")

    async def begin() -> None:
        async with running(state, in_file(FORK)(ledger, Fuse(6))) as runner:  # both effects happened, neither is recorded
            task = await runner.start("x", {}, ASKABLE)
            await answer_all(runner, task, ledger, Fuse())

    async def decide() -> None:
        async with running(state, in_file(FORK)(ledger, Fuse(2))) as runner:
            task, names = await doubts(runner, 2)
            assert len({json.dumps(request) for request in task.open_requests.values()}) == 1
            await runner.answer(task, {names["left"]: {"action": "accept", "content": {"outcome": "retry"}}})
            await anyio.sleep(SECONDS)

    async def finish() -> Task:
        async with running(state, in_file(FORK)(ledger, Fuse())) as runner:
            task, names = await doubts(runner, 2)
            texts = {branch: task.open_requests[name]["params"]["message"] for branch, name in names.items()}
            assert {branch: "again (after 1 retry)" in text for branch, text in texts.items()} == {"left": True, "right": False}
            await runner.answer(task, {names["right"]: {"action": "accept", "content": {"outcome": "retry"}}})
            task, names = await doubts(runner, 1)
            await runner.answer(task, {names["left"]: {"action": "decline"}})
            with anyio.fail_after(SECONDS):
                while not task.is_over:
                    task = await runner.wait_for_change(await runner.find(task.id, "local"))
            return task

    assert in_a_process(begin) and in_a_process(decide)
    task = anyio.run(finish)
    assert "outcome is unknown" in str(task.result or task.error)
    effects = [line.rpartition(" ")[2] for line in ledger.effects.lines()]
    assert (effects.count("left"), effects.count("right")) == (2, 2)


def test_decision_about_a_step_may_outlast_the_call_timeout(tmp_path: Path) -> None:
    """Inside a call with a timeout the question stops its clock."""
    state, ledger = tmp_path / "state", Ledger(tmp_path / "ledger")
    form = {"executors": {"act": {"tool": "t/act", "arguments": {"x": "-"}}}, "start": "act"}

    async def begin() -> None:
        async with running(state, in_file(form)(ledger, Fuse(2))) as runner:
            await answer_all(runner, await runner.start("x", {}, ASKABLE), ledger, Fuse())

    async def finish() -> Task:
        async with running(state, in_file(form, {"timeoutSeconds": 0.2})(ledger, Fuse())) as runner:
            task, names = await doubts(runner, 1)
            await anyio.sleep(0.6)
            await runner.answer(task, {name: {"action": "accept", "content": {"outcome": "retry"}} for name in names.values()})
            return await answer_all(runner, await runner.find(task.id, "local"), ledger, Fuse())

    assert in_a_process(begin)
    task = anyio.run(finish)
    assert task.result is not None
    assert task.result["content"][0]["text"] == "did(-)"
    assert len(ledger.effects.lines()) == 2


# -- approvals ---------------------------------------------------------------------------------------------------------

PAID: JsonObject = {
    "executors": {"pay": {"tool": "t/pay", "arguments": {"x": "10"}}, "act": {"tool": "t/act", "arguments": {"x": "-"}}},
    "start": "pay",
    "edges": [{"from": "pay", "to": "act"}],
}


@pytest.mark.parametrize("kill_at", [2, 3, 4, 6])
def test_approval_counts_once_for_its_call(kill_at: int, tmp_path: Path) -> None:
    """After a kill nobody is asked again, and no second decision is in the audit log."""
    ledger = Ledger(tmp_path / "ledger")
    run_killed(tmp_path / "state", in_file(PAID), ledger, [kill_at])
    assert len([key for key, text in ledger.answered() if not text.startswith("The gateway stopped")]) == 1
    assert ledger.decisions.lines().count("approval.decided") == 1


@asynccontextmanager
async def listing(state: Path, ledger: Ledger, fuse: Fuse) -> AsyncGenerator[tuple[TaskRunner, PendingQuestions]]:
    """Yield a runner whose client does not support elicitation, and the list on which its approvals wait."""
    records = Records(StateFolder(state), audit_days=1)
    try:
        async with running(state, in_file(PAID, records=records)(ledger, fuse)) as runner:
            yield runner, await records.questions()
    finally:
        await records.aclose()


async def listed(asks: PendingQuestions) -> list[PendingQuestion]:
    with anyio.fail_after(SECONDS):
        while not (found := await asks.list(only_open=True)):
            await anyio.sleep(0.02)
    return found


def test_approval_on_the_list_outlives_the_process(tmp_path: Path) -> None:
    state, ledger = tmp_path / "state", Ledger(tmp_path / "ledger")

    async def ask() -> None:
        async with listing(state, ledger, Fuse()) as (runner, asks):
            await runner.start("x", {}, CallContext())
            await listed(asks)
            die()

    async def approve() -> None:
        records = Records(StateFolder(state), audit_days=1)
        asks = await records.questions()
        (entry,) = await asks.list(only_open=True)
        assert await asks.move(entry.id, "open", "approved")
        await records.aclose()

    async def act() -> None:
        async with listing(state, ledger, Fuse(4)) as (runner, _):
            (task,) = await runner.all_of("local")
            await answer_all(runner, task, ledger, Fuse())

    async def finish() -> list[PendingQuestion]:
        async with listing(state, ledger, Fuse()) as (runner, asks):
            (task,) = await runner.all_of("local")
            task = await answer_all(runner, task, ledger, Fuse())
            assert "outcome is unknown" in str(task.result or task.error)  # of `act`: nobody can be asked about it
            return await asks.list(only_open=False)

    assert in_a_process(ask)
    anyio.run(approve)
    assert in_a_process(act)
    assert [entry.state for entry in anyio.run(finish)] == ["delivered"]
    assert [line.rpartition(" ")[2] for line in ledger.effects.lines()] == ["10", "-"]


async def test_approval_on_the_list_waits_on_over_a_graceful_stop(tmp_path: Path) -> None:
    state, ledger = tmp_path / "state", Ledger(tmp_path / "ledger")
    async with listing(state, ledger, Fuse()) as (runner, asks):
        await runner.start("x", {}, CallContext())
        (before,) = await listed(asks)
    async with listing(state, ledger, Fuse()) as (runner, asks):
        with anyio.fail_after(SECONDS):
            while not (task := (await runner.all_of("local"))[0]).is_here:
                await anyio.sleep(0.02)
        (after,) = await listed(asks)
        assert (after.id, await asks.move(after.id, "open", "approved")) == (before.id, True)
        task = await answer_all(runner, await runner.find(task.id, "local"), ledger, Fuse())
        assert task.status == "completed"


async def test_approval_on_the_list_waits_for_an_unavailable_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    def away(name: str) -> None:
        """Make this method of the list fail twice with a locked database."""
        method = getattr(PendingQuestions, name)

        async def refusing(asks: PendingQuestions, *given: Any) -> Any:
            if refused.count(name) < 2 and (name == "get" or "delivered" in given):
                refused.append(name)
                raise StorageUnusable("The database is locked.")
            return await method(asks, *given)

        monkeypatch.setattr(PendingQuestions, name, refusing)

    ledger = Ledger(tmp_path / "ledger")
    async with listing(tmp_path / "state", ledger, Fuse()) as (runner, asks):
        task = await runner.start("x", {}, CallContext())
        (entry,) = await listed(asks)
        away("get")
        away("move")
        with anyio.fail_after(SECONDS):
            while refused.count("get") < 2:
                await anyio.sleep(0.05)
        assert await asks.move(entry.id, "open", "approved")
        task = await answer_all(runner, task, ledger, Fuse())
    assert (task.status, sorted(refused)) == ("completed", ["get", "get", "move", "move"])
    assert len(ledger.effects.lines()) == 2


async def test_questions_at_once_outlive_a_graceful_stop(tmp_path: Path) -> None:
    """All open questions keep their names, although the stop ends the waits for their answers."""
    form = {
        "executors": {"go": {"tool": "t/look", "arguments": {"x": "-"}}, "a": {"ask": "Sure?"}, "b": {"ask": "Sure?"}},
        "start": "go",
        "edges": [{"from": "go", "to": ["a", "b"]}],
        "output-from": "all",
    }
    state, ledger = tmp_path / "state", Ledger(tmp_path / "ledger")
    names: list[list[str]] = []
    for _ in range(2):
        async with running(state, in_file(form)(ledger, Fuse())) as runner:
            known = await runner.all_of("local")
            task = known[0] if known else await runner.start("x", {}, ASKABLE)
            with anyio.fail_after(SECONDS):
                while not (task.is_here and len(task.open_requests) == 2):
                    await anyio.sleep(0.02)
                    task = await runner.find(task.id, "local")
            names.append(sorted(task.open_requests))
    assert names == [["ask-1", "ask-2"]] * 2


# -- steps that failed -------------------------------------------------------------------------------------------------


@pytest.mark.faults  # `test_runner` has the same with processes that stop
def test_decision_about_a_step_does_not_count_for_its_next_doubt(tmp_path: Path) -> None:
    """A retried step that fails is not recorded. If the step is in doubt again, a person is asked again."""
    state, ledger = tmp_path / "state", Ledger(tmp_path / "ledger")
    fails, dies = tmp_path / "fails", tmp_path / "dies"

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        assert ctx.ports.durable is not None

        async def work(key: str) -> JsonValue:
            ledger.effects.write("effect")
            if fails.exists():
                fails.unlink()
                raise ToolFailed("not today")
            die()
            return None

        with suppress(ToolFailed):
            await ctx.ports.durable.step("work", work, repeatable=False)
        if dies.exists():
            dies.unlink()
            die()
        return Complete.text("done")

    async def once() -> None:
        async with running(state, call) as runner:
            known = await runner.all_of("local")
            task = known[0] if known else await runner.start("tool", {}, ASKABLE)
            await answer_all(runner, task, ledger, Fuse())

    assert in_a_process(once)  # the step is in doubt
    fails.touch()
    dies.touch()
    assert in_a_process(once)  # a person decides to retry the step, the step fails, and the process dies
    assert in_a_process(once)  # the step begins again, and is in doubt again
    assert in_a_process(once)  # a person has it retried
    assert ledger.effects.lines() == ["effect"] * 4
    doubts = [key for key, text in ledger.answered() if text.startswith("The gateway stopped")]
    assert len(doubts) == len(set(doubts)) == 2


# -- trying again ------------------------------------------------------------------------------------------------------


def test_retried_task_asks_again_about_a_step_in_doubt(tmp_path: Path) -> None:
    """The decision of the first attempt does not count for the second, and a late answer to its question reaches no other question."""
    state, ledger = tmp_path / "state", Ledger(tmp_path / "ledger")
    form = {"executors": {"act": {"tool": "t/act", "arguments": {"x": "-"}}}, "start": "act"}

    async def begin() -> None:
        async with running(state, in_file(form)(ledger, Fuse(2))) as runner:
            known = await runner.all_of("local")
            task = known[0] if known else await runner.start("x", {}, ASKABLE)
            await answer_all(runner, task, ledger, Fuse())

    async def decide(content: JsonObject) -> str:
        async with running(state, in_file(form)(ledger, Fuse())) as runner:
            task, names = await doubts(runner, 1)
            answer: JsonObject = {"action": "accept", "content": content}
            await runner.answer(task, dict.fromkeys(names.values(), answer))
            task = await runner.find(task.id, "local")
            with anyio.fail_after(SECONDS):
                while not task.is_over:
                    task = await runner.wait_for_change(task)
            return next(iter(names.values()))

    async def try_again() -> None:
        records = Records(StateFolder(state), audit_days=1)
        rows = await records.tasks()
        (row,) = await rows.all_of()
        assert await rows.retry(row.id, from_start=False)
        await records.aclose()

    assert in_a_process(begin)
    first = anyio.run(decide, {"outcome": "skip"})
    anyio.run(try_again)
    assert in_a_process(begin)  # the step runs again, and its process dies
    assert len(ledger.effects.lines()) == 2
    second = anyio.run(decide, {"outcome": "skip"})
    assert second != first
    assert len(ledger.effects.lines()) == 2
