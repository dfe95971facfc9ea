"""The three tools for tasks: they show a task, wait for it with its questions, and cancel it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.config.models import TaskSettings
from gateway.errors import ToolFailed
from gateway.json_types import JsonObject
from gateway.policy.metadata import TASK_META_KEY
from gateway.storage.record_types import TaskRow
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task
from gateway.tasks.task_tools import TaskTools, still_running
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, CallPorts
from tests.tasks.asking import ASKABLE, Answers, question
from tests.tasks.dying import steady


async def use(runner: TaskRunner, name: str, task_id: str, ctx: CallContext | None = None) -> Complete:
    tools = TaskTools()
    tools.run_with(runner)
    outcome = await next(tool for tool in tools.tools if tool.definition.name == name).call({"task_id": task_id}, ctx or CallContext())
    assert isinstance(outcome, Complete)
    return outcome


async def test_tools_show_wait_for_and_stop_tasks_of_their_caller(tmp_path: Path) -> None:
    gate = anyio.Event()

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        await ctx.progress(1, None, "at work")
        await (anyio.sleep_forever() if tool == "slow" else gate.wait())
        return Complete.text("done", structured={"n": 1})

    async with steady(tmp_path, call, settings=TaskSettings(inline_seconds=0.1)) as runner:
        with anyio.fail_after(30):
            fast, slow = await runner.start("fast", {}, CallContext()), await runner.start("slow", {}, CallContext(), ttl_seconds=5)
            while not (fast.message and slow.message):
                await anyio.sleep(0.01)
            shown = (await use(runner, "task_status", slow.id)).structured
            assert shown == {
                "taskId": slow.id, "tool": "slow", "status": "working", "statusMessage": "at work",
                "createdAt": slow.created.isoformat(), "lastUpdatedAt": slow.updated.isoformat(), "ttlMs": 5_000,
            }  # fmt: skip
            late = await use(runner, "task_result", slow.id)
            assert late.as_text().startswith("Still running: 'slow'") and late.as_text().endswith("Last progress: at work")
            assert (late.structured, late.result["_meta"]) == (shown, {TASK_META_KEY: shown})
            gate.set()
            while "Still running" in (done := await use(runner, "task_result", fast.id)).as_text():
                pass
            assert done.result == Complete.text("done", structured={"n": 1}).result
            stopped: Any = (await use(runner, "task_cancel", slow.id)).structured
            assert stopped["status"] == "cancelled"
            ended = await use(runner, "task_result", slow.id)
            assert (ended.is_error, ended.as_text()) == (True, "The task was cancelled.")
            for name in ("task_status", "task_result", "task_cancel"):
                with pytest.raises(ToolFailed, match="There is no such task"):
                    await use(runner, name, slow.id, CallContext(CallFacts(principal=Principal("ada"))))
    with pytest.raises(ToolFailed, match="This gateway keeps no tasks"):
        await TaskTools().tools[0].call({"task_id": "x"}, CallContext())


async def test_result_tool_elicits_the_questions_of_a_task_from_its_caller(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        answer = await ctx.ask(question())
        return Complete.text(answer["content"]["name"])

    person = Answers()
    async with steady(tmp_path, call, settings=TaskSettings(inline_seconds=5)) as runner:
        with anyio.fail_after(30):
            task = await runner.start("tool", {}, CallContext(CallFacts(client=ASKABLE)))
            while not task.open_requests:
                await anyio.sleep(0.01)
            handle = still_running(task)
            shown: Any = handle.structured
            assert (shown["questions"], shown["status"]) == (["Go?"], "input_required")
            assert "It waits for an answer" in handle.as_text()
            bare = still_running(task, has_output_schema=True)
            assert (bare.is_error, bare.structured) == (True, None) and bare.result["_meta"][TASK_META_KEY]["taskId"] == task.id
            done = await use(runner, "task_result", task.id, CallContext(CallFacts(client=ASKABLE), CallPorts(caller=person)))
    assert (done.as_text(), len(person.asked)) == ("Ada", 1)


async def test_question_without_a_message_is_shown_by_its_method() -> None:
    row = TaskRow("t", "local", "tool", {}, 60)
    row.asked = {"a": {"request": {"method": "roots/list"}}}
    shown: Any = still_running(Task(row)).structured
    assert shown["questions"] == ["roots/list"]


async def test_result_tool_keeps_waiting_if_its_caller_has_no_elicitation(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        await ctx.ask(question())
        raise AssertionError

    async with steady(tmp_path, call, settings=TaskSettings(inline_seconds=0.1)) as runner:
        with anyio.fail_after(30):
            task = await runner.start("tool", {}, CallContext(CallFacts(client=ASKABLE)))
            while not task.open_requests:
                await anyio.sleep(0.01)
            waiting = await use(runner, "task_result", task.id)
            assert waiting.as_text().startswith("Still running") and "It waits for an answer" in waiting.as_text()


async def test_result_tool_puts_one_question_after_the_other(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        for message in ("One?", "Two?"):
            await ctx.ask(question(message=message))
        return Complete.text("done")

    person = Answers()
    async with steady(tmp_path, call, settings=TaskSettings(inline_seconds=20)) as runner:
        with anyio.fail_after(30):
            task = await runner.start("tool", {}, CallContext(CallFacts(client=ASKABLE)))
            done = await use(runner, "task_result", task.id, CallContext(CallFacts(client=ASKABLE), CallPorts(caller=person)))
    assert (done.as_text(), [asked["params"]["message"] for asked in person.asked]) == ("done", ["One?", "Two?"])
