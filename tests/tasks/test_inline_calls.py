"""Calls that a client waits for: when they become tasks, who gets their questions, and how they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.config.models import TaskSettings
from gateway.errors import PolicyDenied, TaskError
from gateway.json_types import JsonValue
from gateway.storage.file_names import DATABASE_FILE
from gateway.storage.task_rows import TaskRows
from gateway.tasks.rights import KEY_GONE
from gateway.tasks.task import Task
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import CallContext, CallPorts
from tests.tasks.calls import CTX, GO, forever, port, sql, until
from tests.tasks.dying import running
from tests.tasks.test_callers import Person

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


class Handover:
    """Holds up the moment in which an inline call is stored, and may refuse it then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusal: Exception | None = None) -> None:
        self.began, self.goes = anyio.Event(), anyio.Event()
        add = TaskRows.add

        async def held(rows: TaskRows, row: Any, **options: Any) -> str:
            self.began.set()
            await self.goes.wait()
            if refusal is not None:
                raise refusal
            return await add(rows, row, **options)

        monkeypatch.setattr(TaskRows, "add", held)


@pytest.mark.parametrize("is_refused", [False, True])
async def test_question_asked_while_the_call_becomes_a_task_is_not_lost(
    is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task shows the question in every process. The client of a call that cannot become a task is asked itself."""
    handover = Handover(monkeypatch, TaskError("too many") if is_refused else None)
    person = Person()

    async def work(ctx: CallContext) -> ToolOutcome:
        await handover.began.wait()
        return Complete.text((await ctx.ask(GO))["action"])

    async with running(tmp_path, forever, settings=TaskSettings(inline_seconds=0.02)) as runner:
        outcomes = list[ToolOutcome | Task]()

        async def attend() -> None:
            ctx = CTX.with_caller(person)
            outcomes.append(await runner.run_inline("tool", {}, ctx, work))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as client:
                client.start_soon(attend)
                await handover.began.wait()
                await anyio.wait_all_tasks_blocked()
                assert person.asked == []
                handover.goes.set()
        if is_refused:
            assert (outcomes, len(person.asked)) == ([Complete.text("accept")], 1)
        else:
            (task,) = outcomes
            assert isinstance(task, Task) and len(task.open_requests) == 1
            ((status,),) = await sql(tmp_path, "SELECT status FROM tasks WHERE asked LIKE '%Go?%'")
            assert status == "input_required"


async def test_call_with_an_unstorable_step_continues_for_its_client(tmp_path: Path) -> None:
    waited = anyio.Event()

    async def work(ctx: CallContext) -> ToolOutcome:
        async def step(key: str) -> JsonValue:
            return cast("JsonValue", object())

        await port(ctx).step("odd", step, repeatable=True)
        await waited.wait()
        return Complete.text("done")

    class Patient(Person):
        async def progress(self, progress: float, total: float | None, message: str | None) -> None:
            await super().progress(progress, total, message)
            if len(self.told) > 5:  # the call could have become a task by then
                waited.set()

    async with running(tmp_path, forever, settings=TaskSettings(inline_seconds=0.08)) as runner:
        with anyio.fail_after(10):
            assert await runner.run_inline("tool", {}, CallContext(ports=CallPorts(caller=Patient())), work) == Complete.text("done")
            assert await runner.all_of("local") == []


async def test_fast_call_returns_its_result_without_a_task(tmp_path: Path) -> None:
    """The client gets several heartbeats meanwhile."""
    person = Person()

    async def work(ctx: CallContext) -> ToolOutcome:
        await until(lambda: len(person.told) >= 2)
        return Complete.text("done")

    async with running(tmp_path, forever, settings=TaskSettings(inline_seconds=0.8)) as runner:
        assert await runner.run_inline("tool", {}, CallContext(ports=CallPorts(caller=person)), work) == Complete.text("done")
    assert not (tmp_path / DATABASE_FILE).exists()


async def test_cancelled_call_stops_and_creates_no_task(tmp_path: Path) -> None:
    stopped = list[bool]()

    async def work(ctx: CallContext) -> ToolOutcome:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(True)
        raise AssertionError

    async with running(tmp_path, forever) as runner:
        with anyio.move_on_after(0.05) as client:
            await runner.run_inline("tool", {}, CTX, work)
        await until(lambda: stopped)
        assert client.cancelled_caught
    assert not (tmp_path / DATABASE_FILE).exists()


@pytest.mark.attack(5)
async def test_call_of_a_caller_without_rights_ends_before_its_next_step(tmp_path: Path) -> None:
    ran = list[str]()

    async def gone(tool: str, principal: Principal) -> Principal:
        raise PolicyDenied(KEY_GONE, rule="scopes", subject=tool)

    async def work(ctx: CallContext) -> ToolOutcome:
        async def step(key: str) -> JsonValue:
            ran.append(key)
            return None

        await port(ctx).step("work", step, repeatable=True)
        raise AssertionError

    async with running(tmp_path, forever, caller_now=gone) as runner:
        with anyio.fail_after(10), pytest.raises(TaskError, match="is no longer valid"):
            await runner.run_inline("tool", {}, CTX, work)
    assert ran == []
