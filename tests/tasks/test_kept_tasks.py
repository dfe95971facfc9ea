"""Tasks, their questions and their steps are kept for their time, and only for their caller."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.config.models import TaskSettings
from gateway.errors import NotFound
from gateway.json_types import JsonObject
from gateway.storage.file_names import DATABASE_FILE
from gateway.tasks.task import Task
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from tests.tasks.calls import CTX, Gate, asking, ended, only_task
from tests.tasks.dying import Journal, die, in_a_process, running

# -- people take their time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("days", "expected"), [(6, "completed"), (8, "failed")])
@pytest.mark.fault(14)
def test_question_stays_open_for_days_and_then_expires(days: int, expected: str, tmp_path: Path) -> None:
    async def ask_and_die() -> None:
        async with running(tmp_path, asking(Journal(tmp_path / "journal"), None)) as runner:
            task = await runner.start("tool", {}, CTX)
            while not task.open_requests:
                await task.changed.wait()
            await runner.find(task.id, "local")
            await anyio.sleep(0.1)
            die()

    assert in_a_process(ask_and_die) == signal.SIGKILL
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as database:  # move the task `days` days into the past
        ((asked,),) = database.execute("SELECT asked FROM tasks").fetchall()
        stored = json.loads(asked)
        for item in stored.values():
            item["at"] -= days * 86_400
        database.execute("UPDATE tasks SET asked = ?, created_at = created_at - ?", (json.dumps(stored), days * 86_400))
        database.commit()

    async def answered() -> Task:
        async with running(tmp_path, asking(Journal(tmp_path / "journal"), None)) as runner:
            task = await only_task(runner)
            if expected == "completed":
                await runner.answer(task, {key: {"action": "accept", "content": {"name": "Ada"}} for key in task.open_requests})
            return await ended(runner, task)

    task = anyio.run(answered)
    assert task.status == expected
    if task.error is not None:
        assert "Nobody answered within 604800 s" in task.error["message"]


async def test_task_steps_are_deleted_with_the_task(tmp_path: Path) -> None:
    async def fails(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        assert ctx.ports.durable is not None
        await ctx.ports.durable.keep("checkpoint", {"round": 1})
        return Complete.text("no", is_error=True)

    async with running(tmp_path, fails, settings=TaskSettings(ttl_seconds=0.3)) as runner:
        task = await ended(runner, await runner.start("tool", {}, CTX))
        with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as database:
            assert database.execute("SELECT count(*) FROM task_steps").fetchone() == (1,)
            with anyio.fail_after(20):
                while task.row.gone_at > time.time():
                    await anyio.sleep(0.05)
            assert await runner.all_of("local") == []
            assert database.execute("SELECT count(*) FROM task_steps").fetchone() == (0,)


# -- who may ask, how long, how many -------------------------------------------------------------------------------


async def quick(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
    return Complete.text("done")


@pytest.mark.requirement(90)
@pytest.mark.attack(6)
async def test_task_is_unknown_to_other_callers_and_its_id_is_unguessable(tmp_path: Path) -> None:
    async with running(tmp_path, quick) as runner:
        task = await runner.start("tool", {}, CallContext(CallFacts(principal=Principal("ann"))))
        assert len(task.id) >= 32
        for id_, principal in ((task.id, "bob"), ("x" * 32, "ann"), (task.id[:-1] + "!", "ann")):
            with pytest.raises(NotFound) as caught:
                await runner.find(id_, principal)
            assert caught.value.name == ""
        assert await runner.all_of("bob") == []


@pytest.mark.requirement(93)
async def test_finished_task_is_readable_for_its_ttl_and_then_unknown(tmp_path: Path) -> None:
    async with running(tmp_path, quick) as runner:
        task = await ended(runner, await runner.start("tool", {}, CTX, ttl_seconds=3600))
        assert (await runner.find(task.id, "local")).result == Complete.text("done").result
        assert time.time() < task.row.gone_at <= time.time() + 3600
        with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as database:  # an hour goes by
            database.execute("UPDATE tasks SET gone_at = gone_at - 3600")
            database.commit()
        with pytest.raises(NotFound):
            await runner.find(task.id, "local")


@pytest.mark.requirement(93)
async def test_ttl_of_a_task_counts_from_its_end(tmp_path: Path) -> None:
    gate = Gate()
    async with running(tmp_path, gate.call) as runner:
        task = await runner.start("tool", {"name": "long"}, CTX, ttl_seconds=0.2)
        await anyio.sleep(0.4)
        assert [found.status for found in await runner.all_of("local")] == ["working"]  # `all_of` deletes expired tasks
        gate.open()
        task = await ended(runner, task)
        assert (await runner.find(task.id, "local")).status == "completed"


@pytest.mark.requirement(95)
async def test_task_message_changes_at_most_twice_a_second(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        for number in range(30):
            await ctx.progress(number, None, f"round {number}")
            await anyio.sleep(0.04)
        return Complete.text("done")

    said: list[str] = []
    async with running(tmp_path, call) as runner:
        began = anyio.current_time()
        task = await runner.start("tool", {}, CTX)
        while not task.is_over:
            task = await runner.wait_for_change(task)
            said += [task.message] if task.message not in said[-1:] else []
    assert said.pop() == "Completed" and all(text.startswith("round ") for text in said)
    assert 2 <= len(said) <= 2 * (anyio.current_time() - began) + 1
