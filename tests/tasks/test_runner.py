"""Background calls over stops, starts, other processes and faults of the database, with real SQLite. Nothing here starts a process."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.config.models import TaskSettings
from gateway.errors import NotFound, StorageError, ToolFailed
from gateway.json_types import JsonObject
from gateway.storage.file_names import DATABASE_FILE
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.storage.task_rows import TaskRows
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task, TaskKind
from gateway.tasks.task_tools import TaskTools
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import CallContext
from tests.tasks.calls import CTX, GO, YES, ended, forever, port, sql, taken_up, until
from tests.tasks.dying import running, steady

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60), pytest.mark.requirement(97)]


# -- stops and starts --------------------------------------------------------------------------------------------------


async def test_stop_waits_for_pending_writes_and_then_releases_the_lease(tmp_path: Path) -> None:
    """Other processes take the task up at once."""
    at_work = anyio.Event()

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Any:
        try:
            at_work.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.1)
                await port(ctx).keep("place", 7)

    async def go_on(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        return Complete.text(str(port(ctx).kept("place")))

    async with running(tmp_path, call) as runner:
        await runner.start("tool", {}, CTX)
        await at_work.wait()
    assert (runner.callers(), await sql(tmp_path, "SELECT * FROM task_owners")) == (set(), [])
    async with running(tmp_path, go_on) as runner:
        assert (await ended(runner, await taken_up(runner))).result == Complete.text("7").result


async def test_call_turned_task_is_left_to_the_next_process_at_a_stop(tmp_path: Path) -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        await anyio.sleep_forever()
        raise AssertionError

    async def go_on(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        return Complete.text(f"{tool} {arguments}")

    async with running(tmp_path, forever, settings=TaskSettings(inline_seconds=0.02)) as runner:
        assert isinstance(await runner.run_inline("tool", {"a": 1}, CTX, work), Task)
        assert runner.callers() == {"local"}
    assert runner.callers() == set()
    async with running(tmp_path, go_on) as runner:
        assert (await ended(runner, await taken_up(runner))).result == Complete.text("tool {'a': 1}").result


@pytest.mark.parametrize("how", ["stopped", "cancelled", "not resumed", "inline"])
async def test_cancelled_work_can_read_whether_its_task_continues(how: str, tmp_path: Path) -> None:
    said, at_work = list[bool](), anyio.Event()

    async def work(ctx: CallContext) -> Any:
        try:
            at_work.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                if how == "cancelled":  # the process stops before the work has ended
                    await anyio.sleep(0.1)
                said.append(await port(ctx).will_resume())

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Any:
        await work(ctx)

    async with running(tmp_path, call) as runner:
        async with anyio.create_task_group() as client:
            if how == "inline":
                client.start_soon(partial(runner.run_inline, "tool", {}, CTX, work))
                await at_work.wait()
                client.cancel_scope.cancel()
            else:
                task = await runner.start("tool", {}, CTX, kind=TaskKind(resumes=how != "not resumed"))
                await at_work.wait()
                if how == "cancelled":
                    task.scope.cancel()
    assert said == [how == "stopped"]


async def test_orphan_behind_one_that_ends_is_taken_up(tmp_path: Path) -> None:
    async def go_on(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        return Complete.text(tool)

    async with running(tmp_path, forever) as runner:
        for number in range(3):
            await runner.start(f"tool{number}", {}, CTX, kind=TaskKind(resumes=number != 1))
        await anyio.sleep(0.02)
    await sql(tmp_path, "UPDATE tasks SET is_cancelled = 1 WHERE tool = 'tool0'")
    async with running(tmp_path, go_on) as runner:
        tasks = [await ended(runner, task) for task in await runner.all_of("local")]
    assert [task.status for task in tasks] == ["cancelled", "failed", "completed"]
    assert "`tasks.resume`" in (tasks[1].error or {})["message"]


async def test_resumed_task_waits_for_its_tool_and_a_new_task_does_not(tmp_path: Path) -> None:
    at = list[float]()

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        at.append(anyio.current_time())
        if tool == "gone" or len(at) < 3:
            raise NotFound("tool", tool)
        return Complete.text("there")

    async with running(tmp_path, call) as runner:
        task = await ended(runner, await runner.start("gone", {}, CTX))
        assert (task.status, len(at)) == ("failed", 1)
    async with running(tmp_path, forever) as runner:
        await runner.start("tool", {}, CTX)
        await anyio.sleep(0.02)
    async with running(tmp_path, call) as runner:
        task = await ended(runner, await taken_up(runner, 1))
    assert (task.status, len(at)) == ("completed", 3)
    assert at[2] - at[1] >= 0.4


async def test_task_that_waits_for_its_turn_begins_when_another_ends(tmp_path: Path) -> None:
    async with running(tmp_path, forever, settings=TaskSettings(max_running_per_caller=1)) as runner:
        first, second = await runner.start("tool", {}, CTX), await runner.start("tool", {}, CTX)
        assert (bool(second.row.admitted_at), second.message) == (False, "Queued")
        await runner.cancel(first)
        await until(lambda: second.row.admitted_at)
        assert second.message == ""


async def test_background_call_gets_progress_but_no_task_or_logs(tmp_path: Path) -> None:
    seen = list[CallContext]()

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        seen.append(ctx)
        return Complete.text("done")

    ctx = CTX.with_facts(dataclasses.replace(CTX.facts, takes_tasks=True, log_level="info"))
    async with running(tmp_path, call, settings=TaskSettings(ask_timeout_seconds=77)) as runner:
        await ended(runner, await runner.start("tool", {}, ctx))
    got = seen.pop().facts
    assert not seen
    assert (got.wants_progress, got.in_task, got.takes_tasks, got.log_level, got.ask_timeout_seconds) == (True, True, False, None, 77)


# -- other processes ---------------------------------------------------------------------------------------------------


async def test_answers_through_another_process_reach_only_their_questions(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Any:
        await ctx.progress(1, None, "at work")
        if tool == "asks":
            await ctx.ask(GO)
        await anyio.sleep_forever()

    async with running(tmp_path, call, settings=TaskSettings(max_running_per_caller=1)) as one, steady(tmp_path, forever) as two:
        tasks = [await one.start(tool, {}, CTX) for tool in ("asks", "runs", "waits")]  # a waiting `asks` frees its slot for `runs`
        await until(lambda: tasks[0].open_requests and tasks[1].message == "at work")
        for task in tasks:
            seen = await two.find(task.id, "local")
            assert not seen.is_here
            await two.answer(seen, {"other": YES})
        states = [(task.status, task.message) for task in tasks]
        assert states == [("input_required", "at work"), ("working", "at work"), ("working", "Queued")]
        assert [bool(task.row.admitted_at) for task in tasks] == [True, True, False]
        await two.answer(await two.find(tasks[0].id, "local"), dict.fromkeys(tasks[0].open_requests, YES))
        await until(lambda: not tasks[0].open_requests)
        assert tasks[0].status == "working"


async def test_answer_is_stored_when_it_is_given_and_wakes_the_task(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Any:
        await ctx.ask(GO)
        await anyio.sleep_forever()

    async with running(tmp_path, call) as runner:
        task = await runner.start("tool", {}, CTX)
        await until(lambda: task.open_requests)
        await runner.answer(task, dict.fromkeys(task.open_requests, YES))
        assert (task.open_requests, task.status) == ({}, "working")
        ((asked, status),) = await sql(tmp_path, "SELECT asked, status FROM tasks")
        assert '"answer"' in asked and status == "working"


@pytest.mark.fault(3)
async def test_question_is_shown_once_it_is_stored(tmp_path: Path) -> None:
    """After a crash the name of a question that is not on disk may be given to another question."""
    go = anyio.Event()

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Any:
        await go.wait()
        return Complete.text(str(await ctx.ask(GO)))

    async with steady(tmp_path, call) as runner:
        task = await runner.start("tool", {}, CTX)
        with closing(sqlite3.connect(tmp_path / DATABASE_FILE, timeout=20, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            go.set()
            await until(lambda: task.row.asked)
            await anyio.sleep(0.3)
            assert (task.open_requests, task.status, task.waits_for_input) == ({}, "working", True)
            database.execute("ROLLBACK")
        await until(lambda: task.open_requests)
        assert task.status == "input_required"
        (name,) = task.open_requests
        await runner.answer(task, {name: YES})
        assert (await ended(runner, task)).status == "completed"


@pytest.mark.fault(12)
async def test_answer_that_could_not_be_stored_does_not_count(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Any:
        return Complete.text((await ctx.ask(GO))["action"])

    async with steady(tmp_path, call) as runner:
        task = await runner.start("tool", {}, CTX)
        await until(lambda: task.open_requests)
        await sql(tmp_path, "CREATE TRIGGER full BEFORE UPDATE OF asked ON tasks BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        with pytest.raises(StorageError, match="disk full"):
            await runner.answer(task, dict.fromkeys(task.open_requests, YES))
        assert len(task.open_requests) == 1
        await sql(tmp_path, "DROP TRIGGER full")
        await runner.answer(task, {key: {"action": "decline"} for key in task.open_requests})
        task = await ended(runner, task)
    assert task.result == Complete.text("decline").result


async def test_first_answer_counts_where_two_processes_take_one(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Any:
        return Complete.text((await ctx.ask(GO))["action"])

    async with steady(tmp_path, call) as one, steady(tmp_path, forever) as two:
        task = await one.start("tool", {}, CTX)
        await until(lambda: task.open_requests)
        names = list(task.open_requests)
        await two.answer(await two.find(task.id, "local"), {key: {"action": "decline"} for key in names})
        await one.answer(task, dict.fromkeys(names, YES))
        task = await ended(one, task)
    assert task.result == Complete.text("decline").result


async def test_task_taken_by_another_process_is_found_but_not_counted(tmp_path: Path) -> None:
    async with running(tmp_path, forever) as runner:
        task = await runner.start("tool", {}, CTX)
        await anyio.sleep(0.02)
        await sql(tmp_path, "INSERT INTO task_owners VALUES ('another', 1e12)")
        await sql(tmp_path, "UPDATE tasks SET owner = 'another', message = 'there'")
        with anyio.fail_after(10):
            while task.is_here:
                task = await runner.wait_for_change(task)
        assert (task.is_lost, runner.callers()) == (True, set())
        found = await runner.find(task.id, "local")
        assert (found.is_here, found.status, found.message) == (False, "working", "there")
        assert [seen.message for seen in await runner.all_of("local")] == ["there"]


async def test_new_task_has_a_lease_before_it_is_stored(tmp_path: Path) -> None:
    records = Records(StateFolder(tmp_path), audit_days=1)
    try:
        async with anyio.create_task_group() as group:
            runner = TaskRunner(group, records, forever, lease_seconds=60)  # longer than the test, because nothing renews the lease
            task = await runner.start("tool", {}, CTX)
            assert task.is_here
            assert not await (await records.tasks()).any_orphans(owner="another")
            group.cancel_scope.cancel()
    finally:
        await records.aclose()


async def test_gateway_without_tasks_does_not_write_to_a_shared_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a server it is not known without a query whether there are orphans."""
    looks = list[float]()

    def as_on_a_server(records: Records, now: float) -> bool:
        looks.append(now)
        return True

    monkeypatch.setattr(Records, "has_orphans", as_on_a_server)
    async with running(tmp_path, forever):
        await until(lambda: len(looks) >= 3)
    assert await sql(tmp_path, "SELECT * FROM task_owners") == []


# -- faults of the database --------------------------------------------------------------------------------------------


async def test_start_that_cannot_be_stored_is_an_error_and_runs_nothing(tmp_path: Path) -> None:
    ran = list[str]()

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        ran.append(tool)
        return Complete.text("done")

    async with running(tmp_path, call) as runner:
        await ended(runner, await runner.start("first", {}, CTX))
        await sql(tmp_path, "CREATE TRIGGER full BEFORE INSERT ON tasks BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        with pytest.raises(StorageError, match="disk full"):
            await runner.start("second", {}, CTX)
        assert runner.callers() == set()
        await anyio.wait_all_tasks_blocked()
    assert ran == ["first"]


async def test_stored_task_whose_start_was_rejected_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = TaskRows.add

    async def lost(rows: TaskRows, row: Any, **options: Any) -> str:
        await add(rows, row, **options)
        raise StorageError("the connection ended after the commit")

    monkeypatch.setattr(TaskRows, "add", lost)
    async with running(tmp_path, forever) as runner:
        with pytest.raises(StorageError, match="after the commit"):
            await runner.start("tool", {}, CTX)
        assert len(await runner.all_of("local")) == 1
        with anyio.fail_after(10):
            while await runner.all_of("local"):
                await anyio.sleep(0.02)


# -- the tools ---------------------------------------------------------------------------------------------------------


def test_task_tools_are_annotated_as_reading_or_changing() -> None:
    tools = {tool.definition.name: tool.definition for tool in TaskTools().tools}
    reads: JsonObject = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
    stops: JsonObject = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False}
    assert {name: tool.annotations for name, tool in tools.items()} == {"task_status": reads, "task_result": reads, "task_cancel": stops}
    assert [name for name, tool in tools.items() if tool.may_request_input] == ["task_result"]


async def test_result_tool_gives_the_error_of_a_task_that_failed(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        raise ToolFailed("the printer is on fire")

    tools = TaskTools()
    async with running(tmp_path, call) as runner:
        tools.run_with(runner)
        task = await ended(runner, await runner.start("tool", {}, CTX))
        outcome = await tools.tools[1].call({"task_id": task.id}, CTX)
    assert isinstance(outcome, Complete)
    assert (outcome.is_error, outcome.as_text()) == (True, "the printer is on fire")


async def test_answer_by_task_copy_reaches_its_running_process_at_once(tmp_path: Path) -> None:
    async def asks(tool: str, arguments: JsonObject, ctx: CallContext) -> Any:
        await ctx.ask(GO)
        await ctx.ask(GO)
        return Complete.text("done")

    async with steady(tmp_path, asks) as runner:
        task = await runner.start("x", {}, CTX)
        await until(lambda: task.open_requests)
        before = Task(dataclasses.replace(task.row))  # a copy as another process would have read it
        await runner.answer(before, dict.fromkeys(before.open_requests, YES))
        assert (await runner.find(task.id, "local")).open_requests == {}
