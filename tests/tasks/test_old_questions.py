"""Open questions and approvals of tasks that the version before stored keep their names and their answers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.gate.approvals import Approvals, Grant
from gateway.json_types import JsonObject
from gateway.policy.framing import frame
from gateway.storage.file_names import DATABASE_FILE
from gateway.storage.record_types import TaskRow
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tasks.caller import TaskCaller
from gateway.tasks.task import Task
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import Complete, InputRequired
from gateway.tools.context import CallContext
from gateway.tools.ports import NoCaller
from tests.tasks.dying import die, in_a_process, running
from tests.tasks.killing import ASKABLE, SECONDS, Fuse, Ledger, answer_all, in_file

pytestmark = [pytest.mark.timeout(120), pytest.mark.fault(3), pytest.mark.requirement(97)]


def of_version_1(state: Path, change: Callable[[JsonObject], JsonObject]) -> None:
    """Convert a stored task to the form of version 1, which identified questions by their text."""
    with closing(sqlite3.connect(state / DATABASE_FILE)) as database:
        ((call, asked),) = database.execute("SELECT call, asked FROM tasks").fetchall()
        old = {key: value for key, value in json.loads(call).items() if key != "steps"}
        questions = {name: {k: v for k, v in item.items() if k != "step"} for name, item in json.loads(asked).items()}
        database.execute("UPDATE tasks SET call = ?, asked = ?", (json.dumps(old), json.dumps(change(questions))))
        database.commit()


ONCE: JsonObject = {"executors": {"ask": {"ask": "Release now?"}}, "start": "ask"}


async def shown_after_upgrade(state: Path, ledger: Ledger) -> dict[str, JsonObject]:
    async with running(state, in_file(ONCE)(ledger, Fuse())) as runner:
        (task,) = await runner.all_of("local")
        with anyio.fail_after(SECONDS):
            while not (task.is_here and any("step" in task.row.asked[name] for name in task.open_requests)):
                await anyio.sleep(0.02)
                task = await runner.find(task.id, "local")
        asked = dict(task.open_requests)
        names = [name for name, item in task.row.asked.items() if "step" in item]
        await runner.answer(task, {name: {"action": "accept", "content": {"answer": "yes"}} for name in names})
        task = await answer_all(runner, task, ledger, Fuse())
        assert task.result is not None
        assert task.result["content"][0]["text"] == "yes"
        return asked


def old_task(state: Path, ledger: Ledger, change: Callable[[JsonObject], JsonObject]) -> dict[str, JsonObject]:
    """Return the questions that this version shows when it resumes a task of version 1."""

    async def ask_and_die() -> None:
        async with running(state, in_file(ONCE)(ledger, Fuse())) as runner:
            task = await runner.start("x", {}, ASKABLE)
            while not task.open_requests:
                task = await runner.wait_for_change(task)
            with anyio.fail_after(SECONDS):
                while not Task(await row_of(state)).open_requests:
                    await anyio.sleep(0.02)
            die()

    assert in_a_process(ask_and_die)
    of_version_1(state, change)
    return anyio.run(shown_after_upgrade, state, ledger)


async def row_of(state: Path) -> Any:
    records = Records(StateFolder(state), audit_days=1)
    try:
        (row,) = await (await records.tasks()).all_of()
        return row
    finally:
        await records.aclose()


def test_open_question_of_an_old_task_keeps_its_name(tmp_path: Path) -> None:
    shown = old_task(tmp_path / "state", Ledger(tmp_path / "ledger"), lambda asked: asked)
    assert list(shown) == ["ask-1"]


@pytest.mark.parametrize("which", ["answered", "answered-and-open", "two-open"])
def test_ambiguous_answer_to_an_old_task_is_requested_again(which: str, tmp_path: Path) -> None:
    def change(asked: JsonObject) -> JsonObject:
        item = asked["ask-1"]
        answered = {**item, "answer": {"action": "accept", "content": {"answer": "old"}}}
        more = {"answered": {}, "answered-and-open": {"second": item}, "two-open": {"second": item}}[which]
        return {"first": item if which == "two-open" else answered, **more}

    shown = old_task(tmp_path / "state", Ledger(tmp_path / "ledger"), change)
    assert shown.keys() - {"first", "second"}, shown


class Approving(NoCaller):
    """A person who approves everything."""

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        return {"action": "accept", "content": {"decision": "approve"}}


@pytest.mark.anyio
async def test_approved_task_is_not_approved_again_after_a_restart(tmp_path: Path) -> None:
    records, seen = Records(StateFolder(tmp_path), audit_days=1), list[str | None]()
    approvals = Approvals(records, EventStream())
    first = await approvals.approve_call("s", "t", {}, ASKABLE.with_caller(Approving()))
    assert isinstance(first, Grant)
    asked = first.sealed(InputRequired({}, "round 1"))
    assert isinstance(asked, InputRequired)

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        grant = await approvals.approve_call("s", "t", {}, ctx)
        assert isinstance(grant, Grant)
        seen.append(grant.opened(ctx).facts.request_state)
        await anyio.sleep_forever()
        raise AssertionError

    try:
        for number in range(2):
            async with running(tmp_path, call) as runner:
                if number == 0:
                    await runner.start("x", {}, ASKABLE.with_answers({}, asked.state))
                with anyio.fail_after(SECONDS):
                    while len(seen) == number:
                        (task,) = await runner.all_of("local")
                        assert task.open_requests == {}
                        await anyio.sleep(0.02)
    finally:
        await records.aclose()
    assert seen == ["round 1", "round 1"]


@pytest.mark.anyio
@pytest.mark.parametrize(("message", "shown"), [("Release now?", ["old"]), ("Delete all?", ["ask-2", "old"])])
async def test_open_question_of_an_old_task_counts_with_marked_lines_too(message: str, shown: list[str]) -> None:
    params: JsonObject = {"mode": "form", "message": "Release now?", "requestedSchema": {}}
    row = TaskRow("t", "local", "x", {}, 60, asked={"old": {"request": {"method": "elicitation/create", "params": params}}})
    task = Task(row, is_here=True)

    async def save(task: Task) -> None:
        task.unsaved.clear()
        task.notify()

    caller = TaskCaller(task, ASKABLE.facts.client, save, ask_timeout_seconds=60, live_timeout_seconds=60)
    caller.resume(1)
    marked: JsonObject = {**params, "message": frame("Workflow 'x' asks:", message)}
    async with anyio.create_task_group() as group:
        group.start_soon(caller.ask, {"method": "elicitation/create", "params": marked}, "/key")
        await anyio.wait_all_tasks_blocked()
        assert sorted(task.open_requests) == shown
        group.cancel_scope.cancel()
