"""Steps in doubt: a step that was in flight when its gateway stopped is repeated only if a person decides so.

A gateway that stops while a step runs leaves the step in flight, as a crash does. Nothing here starts a process.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from gateway.errors import ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task
from gateway.tools.base import Complete
from gateway.tools.context import CallContext
from tests.tasks.calls import CTX, ended, port, taken_up, until
from tests.tasks.dying import running

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60), pytest.mark.requirement(97)]


class OneStep:
    """A call of one step that must not run twice. The step hangs, or fails if `fails` is set."""

    def __init__(self) -> None:
        self.runs = 0
        self.fails = self.has_failed = False

    async def call(self, tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        async def work(key: str) -> JsonValue:
            self.runs += 1
            if self.fails:
                raise ToolFailed("not today")
            await anyio.sleep_forever()
            return None

        try:
            await port(ctx).step("deliver", work, repeatable=False)
        except ToolFailed as error:
            if "not today" not in str(error):
                raise
            self.has_failed = True
            await anyio.sleep_forever()
        return Complete.text("done")


async def doubt(runner: TaskRunner, answer: JsonObject | None = None) -> tuple[Task, str]:
    """Wait until the task asks about its step, send `answer` if given, and return the task and the question's text."""
    task = await taken_up(runner)
    await until(lambda: task.open_requests)
    ((key, request),) = task.open_requests.items()
    if answer is not None:
        await runner.answer(task, {key: answer})
    return task, request["params"]["message"]


RETRY: JsonObject = {"action": "accept", "content": {"outcome": "retry"}}


@pytest.mark.fault(3)
async def test_person_decides_about_each_doubt_of_a_step(tmp_path: Path) -> None:
    step = OneStep()
    async with running(tmp_path, step.call) as runner:
        await runner.start("tool", {}, CTX)
        await until(lambda: step.runs == 1)
    for again in ("", " again (after 1 retry)", " again (after 2 retries)"):
        before = step.runs
        async with running(tmp_path, step.call) as runner:
            _, text = await doubt(runner)
            assert text.startswith(f"The gateway stopped{again} while 'deliver' ran, so its outcome is unknown")
            assert step.runs == before
            await doubt(runner, RETRY)
            await until(lambda before=before: step.runs == before + 1)


@pytest.mark.fault(3)
async def test_step_in_doubt_is_not_repeated_without_a_persons_decision(tmp_path: Path) -> None:
    step = OneStep()
    async with running(tmp_path, step.call) as runner:
        await runner.start("tool", {}, CTX)
        await until(lambda: step.runs == 1)
    async with running(tmp_path, step.call) as runner:
        task, _ = await doubt(runner, {"action": "decline"})
        task = await ended(runner, task)
    text = "The gateway stopped while 'deliver' ran. Its outcome is unknown, and it was not repeated."
    assert (task.status, (task.error or {})["message"], step.runs) == ("failed", text, 1)


@pytest.mark.fault(3)
async def test_failed_step_is_not_in_doubt_and_keeps_its_retry_count(tmp_path: Path) -> None:
    step = OneStep()
    step.fails = True
    async with running(tmp_path, step.call) as runner:
        await runner.start("tool", {}, CTX)
        await until(lambda: step.has_failed)
    step.fails = False
    async with running(tmp_path, step.call) as runner:  # the step failed, so it starts again as if for the first time
        task = await taken_up(runner)
        await until(lambda: step.runs == 2)
        assert not task.open_requests
    step.fails, step.has_failed = True, False
    async with running(tmp_path, step.call) as runner:
        _, text = await doubt(runner, RETRY)
        assert text.startswith("The gateway stopped while")
        await until(lambda: step.has_failed)
    step.fails = False
    async with running(tmp_path, step.call) as runner:
        task = await taken_up(runner)
        await until(lambda: step.runs == 4)
        assert not task.open_requests
    async with running(tmp_path, step.call) as runner:
        _, text = await doubt(runner)
        assert text.startswith("The gateway stopped again (after 1 retry)")


async def test_failed_step_is_retried_in_the_process_without_a_question(tmp_path: Path) -> None:
    runs = list[str]()

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        async def work(key: str) -> JsonValue:
            runs.append(key.partition(":")[2])
            if len(runs) < 3:
                raise ToolFailed("not yet")
            return len(runs)

        for _ in range(3):
            with suppress(ToolFailed):
                value = await port(ctx).scoped("round").step("work", work, repeatable=False)
                return Complete.text(str(value))
        raise AssertionError

    async with running(tmp_path, call) as runner:
        task = await ended(runner, await runner.start("tool", {}, CTX))
    assert (task.status, task.result, runs) == ("completed", Complete.text("3").result, ["/round/work#1"] * 3)
