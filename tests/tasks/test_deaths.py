"""What counts against a task when its process ends: deaths at work do, stops and deaths while a person is asked do not."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.gate.approvals import Approvals, Question
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tasks import task_executor
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task
from gateway.tasks.task_executor import CallTool
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile
from tests.fakes.postgres import Postgres, postgres
from tests.interaction.wire import over_http
from tests.tasks.dying import Journal, die, in_a_process, last, once_asked, running
from tests.tasks.test_gateways import start_gateway, stop, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.requirement(97)]
CTX = CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {"form": {}}})))
FORM: JsonObject = {"mode": "form", "message": "Go on?", "requestedSchema": {"type": "object", "properties": {"x": {"type": "string"}}}}
ASKS: JsonObject = {"method": "elicitation/create", "params": FORM}
DEPLOYS = task_executor.MAX_DEATHS + 2
FEW = 3
"""Number of deaths that end a task in the quick tests."""


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running_server:
        yield running_server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str | None:
    """Where tasks are kept: in the state folder, or on a server."""
    if request.param == "sqlite":
        return None
    return request.getfixturevalue("server").database(f"deaths_{secrets.token_hex(4)}")


@pytest.fixture(params=[FEW, pytest.param(task_executor.MAX_DEATHS, marks=pytest.mark.faults)])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Number of deaths that end a task."""
    monkeypatch.setattr(task_executor, "MAX_DEATHS", request.param)
    return request.param


fast = partial(running, lease_seconds=0.25)


async def asks(ctx: CallContext) -> None:
    """Ask, with a durable key."""
    await ctx.ask(ASKS, ctx.question("q"))


async def works(ctx: CallContext) -> None:
    """Run a repeatable step that never ends."""

    async def work(key: str) -> JsonValue:
        await anyio.sleep_forever()

    assert ctx.ports.durable is not None
    await ctx.ports.durable.step("work", work, repeatable=True)


def call_of(*parts: Callable[[CallContext], Coroutine[Any, Any, None]], begun: Journal | None = None) -> CallTool:
    """Return a call that runs these parts concurrently."""

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        if begun is not None:
            begun.write("begun")
        async with anyio.create_task_group() as group:
            for part in parts:
                group.start_soon(part, ctx)
        return Complete.text("done")

    return call


async def the_task(runner: TaskRunner) -> Task:
    """Return the only task, and start it first if necessary."""
    known = await runner.all_of("local")
    return known[0] if known else await runner.start("tool", {}, CTX)


async def ended(runner: TaskRunner) -> Task:
    task = await the_task(runner)
    with anyio.fail_after(30):
        while not task.is_over:
            task = await runner.wait_for_change(task)
    return task


async def taken_up(runner: TaskRunner, attempt: int) -> Task:
    """The task, once this process has it and has begun to work."""
    task = await the_task(runner)
    with anyio.fail_after(30):
        while not (task.is_here and task.row.attempts == attempt):
            await anyio.sleep(0.01)
            task = await the_task(runner)
    return task


@pytest.mark.anyio
@pytest.mark.parametrize("part", [asks, works])
async def test_task_outlives_many_graceful_stops(
    part: Callable[[CallContext], Coroutine[Any, Any, None]], limit: int, url: str | None, tmp_path: Path
) -> None:
    begun = Journal(tmp_path / "begun")
    for number in range(limit + 1):
        async with fast(tmp_path, call_of(part, begun=begun), url=url) as runner:
            task = await taken_up(runner, number + 1)
            with anyio.fail_after(30):
                while len(begun.lines()) <= number:
                    await anyio.sleep(0.01)
            assert task.row.deaths == 0
    async with fast(tmp_path, call_of(), url=url) as runner:
        assert (await ended(runner)).status == "completed"


async def run_and_die(folder: Path, call: CallTool, url: str | None, *, when: Callable[[TaskRunner, Task], Awaitable[Any]]) -> None:
    async with fast(folder, call, url=url) as runner:
        await when(runner, await the_task(runner))
        die()


def killed(folder: Path, call: CallTool, url: str | None, *, when: Callable[[TaskRunner, Task], Awaitable[Any]]) -> None:
    assert in_a_process(partial(run_and_die, folder, call, url, when=when)) == signal.SIGKILL


async def is_asked(runner: TaskRunner, task: Task) -> None:
    """Wait until this process runs the task and the task has an open question."""
    with anyio.fail_after(30):
        while not task.is_here:
            await anyio.sleep(0.01)
            task = await the_task(runner)
    await once_asked(runner, task)


@pytest.mark.usefixtures("task_engine")
def test_deaths_while_a_question_is_open_do_not_count(limit: int, url: str | None, tmp_path: Path) -> None:
    for _ in range(limit + 1):
        killed(tmp_path, call_of(asks), url, when=is_asked)
    task = last(partial(finished, tmp_path, url))
    assert (task.status, task.row.deaths, task.row.attempts) == ("completed", 0, limit + 2)


async def finished(folder: Path, url: str | None, call: CallTool | None = None) -> Task:
    async with fast(folder, call or call_of(), url=url) as runner:
        return await ended(runner)


async def dies_at_work(ctx: CallContext) -> None:
    """A step that kills its process."""

    async def work(key: str) -> JsonValue:
        die()
        return None

    assert ctx.ports.durable is not None
    await anyio.sleep(0.1)
    await ctx.ports.durable.step("work", work, repeatable=True)


@pytest.mark.usefixtures("task_engine")
@pytest.mark.parametrize("parts", [(dies_at_work,), (asks, dies_at_work)], ids=["alone", "beside-a-question"])
def test_task_that_kills_its_process_fails_at_the_limit(
    parts: tuple[Callable[[CallContext], Coroutine[Any, Any, None]], ...], limit: int, url: str | None, tmp_path: Path
) -> None:
    async def dying() -> None:
        await finished(tmp_path, url, call_of(*parts))

    for _ in range(limit):
        assert in_a_process(dying) == signal.SIGKILL
    task = last(partial(finished, tmp_path, url, call_of(*parts)))
    assert task.status == "failed"
    assert f"died {limit} times" in str(task.error)


def test_deaths_while_an_approval_waits_on_the_list_do_not_count(tmp_path: Path) -> None:
    async def approved(ctx: CallContext) -> None:
        records = Records(StateFolder(tmp_path), audit_days=1)
        question = Question("call", "s", "t", "Call t?")
        try:
            await Approvals(records, EventStream()).ask(question, ctx, "other-principal", ctx.question("approval"))
        finally:
            await records.aclose()

    async def is_listed(runner: TaskRunner, task: Task) -> None:
        """Wait until this process runs the task and the approval waits on the list."""
        with anyio.fail_after(30):
            while not (task.is_here and "waits up to" in task.message):
                await anyio.sleep(0.02)
                task = await the_task(runner)

    for _ in range(FEW):
        killed(tmp_path, call_of(approved), None, when=is_listed)
    task = anyio.run(finished, tmp_path, None)
    assert (task.status, task.row.deaths, task.row.attempts) == ("completed", 0, FEW + 1)


FLOW = """\
name: flow
description: Asks.
task: required
executors: {one: {ask: Go on?}}
start: one
"""


@pytest.mark.faults
@pytest.mark.anyio
@pytest.mark.timeout(300)
async def test_task_that_waits_for_a_person_outlives_twenty_deploys(tmp_path: Path) -> None:
    (tmp_path / "flow.workflow.yaml").write_text(FLOW)
    task_id: Any = ""
    for number in range(DEPLOYS):
        process, url = start_gateway(tmp_path, "gateway")
        try:
            async with over_http(url, "modern") as wire:
                if not task_id:
                    task_id = (await wire.send("tools/call", name="workflow__flow", arguments={}))["result"]["taskId"]
                state = await until(wire, task_id, "input_required", "failed")
                assert state["status"] == "input_required"
                if number == DEPLOYS - 1:
                    answers = {key: {"action": "accept", "content": {"answer": "yes"}} for key in state["inputRequests"]}
                    await wire.send("tasks/update", taskId=task_id, inputResponses=answers)
                    assert (await until(wire, task_id, "completed", "failed"))["status"] == "completed"
                else:
                    await anyio.sleep(2)  # the gateway has resumed the task
                    os.kill(process.pid, signal.SIGTERM)
                    with anyio.fail_after(30):
                        while process.poll() is None:
                            await anyio.sleep(0.05)
        finally:
            stop(process)
