"""Calls that ask or wait, and functions that wait for the tasks of a runner and read its database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from gateway.json_types import JsonObject
from gateway.storage.file_names import DATABASE_FILE
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task
from gateway.tasks.task_executor import CallTool
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, DurablePort
from gateway.tools.ports import ClientProfile
from tests.tasks.dying import Journal

CTX = CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {"form": {}}})))
GO: JsonObject = {"method": "elicitation/create", "params": {"mode": "form", "message": "Go?", "requestedSchema": {}}}
YES: JsonObject = {"action": "accept", "content": {}}


async def until(is_so: Callable[[], object]) -> None:
    with anyio.fail_after(10):
        while not is_so():
            await anyio.sleep(0.01)


async def ended(runner: TaskRunner, task: Task) -> Task:
    with anyio.fail_after(20):
        while not task.is_over:
            task = await runner.wait_for_change(task)
    return task


async def taken_up(runner: TaskRunner, number: int = 0) -> Task:
    """Wait until this runner runs or has ended the caller's task at index `number`, and return the task."""
    with anyio.fail_after(10):
        while True:
            task = (await runner.all_of("local"))[number]
            if task.is_here or task.is_over:
                return task
            await anyio.sleep(0.02)


async def sql(folder: Path, statement: str) -> list[Any]:
    """The rows of a statement on the database. It runs in a thread, because the runner may hold the lock across an await."""

    def run() -> list[Any]:
        with closing(sqlite3.connect(folder / DATABASE_FILE, timeout=20)) as database:
            rows = database.execute(statement).fetchall()
            database.commit()
            return rows

    return await anyio.to_thread.run_sync(run)


def port(ctx: CallContext) -> DurablePort:
    assert ctx.ports.durable is not None
    return ctx.ports.durable


async def forever(tool: str, arguments: JsonObject, ctx: CallContext) -> Any:
    await anyio.sleep_forever()


async def only_task(runner: TaskRunner) -> Task:
    (task,) = await runner.all_of("local")
    return task


def asking(journal: Journal, death: str | None) -> CallTool:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        params: JsonObject = {"mode": "form", "message": "Name?", "requestedSchema": {}}
        answer = await ctx.ask({"method": "elicitation/create", "params": params}, ctx.question("name"))
        journal.write(answer["content"]["name"])
        return Complete.text(answer["content"]["name"])

    return call


class Gate:
    """A call that runs until `open`, and counts how many calls run at the same time."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.most = 0
        self._running = 0
        self._go = anyio.Event()

    def open(self) -> None:
        self._go.set()

    async def call(self, tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        self.began.append(str(arguments["name"]))
        self._running += 1
        self.most = max(self.most, self._running)
        await self._go.wait()
        await anyio.sleep(0.02)
        self._running -= 1
        return Complete.text("went")
