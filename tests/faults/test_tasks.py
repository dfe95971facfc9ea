"""Tasks whose process or database dies, stops or comes back at the wrong moment: each task ends once, with its true outcome."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from gateway.errors import STORAGE_TEXT
from tests.fakes.nursery import Child
from tests.fakes.postgres import Postgres, postgres
from tests.interaction.wire import over_http
from tests.tasks.test_gateways import FLOW, FUNCTIONS, start_gateway, stop

pytestmark = [pytest.mark.anyio, pytest.mark.faults, pytest.mark.timeout(300), pytest.mark.usefixtures("task_engine")]
ENDED = {"completed", "cancelled", "failed"}


def prepared(folder: Path) -> Path:
    """The workflow and its functions; the journal of what they did."""
    (folder / "durable_functions.py").write_text(FUNCTIONS)
    (folder / "flow.workflow.yaml").write_text(FLOW)
    return folder / "journal"


async def begun(wire: Any) -> str:
    """The id of a task just started."""
    started = await wire.send("tools/call", name="workflow__flow", arguments={"x": "-"})
    assert "result" in started, started
    return str(started["result"]["taskId"])


async def state_of(wire: Any, task_id: str) -> dict[str, Any]:
    """What a gateway says of a task now."""
    answer = await wire.send("tasks/get", taskId=task_id)
    assert "result" in answer, answer
    return answer["result"]


async def until(wire: Any, task_id: str, *statuses: str) -> dict[str, Any]:
    """Wait until the task has one of these statuses, and return its state."""
    with anyio.fail_after(60):
        while (state := await state_of(wire, task_id))["status"] not in statuses:
            await anyio.sleep(0.05)
    return state


def log_text(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.log"))


def noted(journal: Path) -> list[str]:
    return journal.read_text().splitlines() if journal.exists() else []


async def until_noted(journal: Path, line: str) -> None:
    with anyio.fail_after(30):
        while line not in noted(journal):
            await anyio.sleep(0.02)


@pytest.mark.fault(4)
@pytest.mark.parametrize("milliseconds", [0, 2, 10, 50, 300])
async def test_kill_during_a_cancellation_leaves_one_end(tmp_path: Path, milliseconds: int) -> None:
    journal = prepared(tmp_path)
    first, url = start_gateway(tmp_path, "gateway")
    task_id = ""
    try:
        async with over_http(url, "modern") as wire, anyio.create_task_group() as asking:
            task_id = await begun(wire)
            await until_noted(journal, "second")

            async def cancel() -> None:
                try:
                    await wire.send("tasks/cancel", taskId=task_id)
                except httpx2.HTTPError:
                    return  # its gateway is dead

            asking.start_soon(cancel)
            await anyio.sleep(milliseconds / 1000)
            stop(first)
    finally:
        if first.poll() is None:
            stop(first)
    second, url = start_gateway(tmp_path, "gateway")
    try:
        async with over_http(url, "modern") as wire:
            state = await until(wire, task_id, "cancelled", "input_required")  # the cancel request arrived before the kill or not
            if state["status"] == "input_required":
                await wire.send("tasks/cancel", taskId=task_id)
                state = await until(wire, task_id, *ENDED)
            assert state["status"] == "cancelled"
            await anyio.sleep(4)  # longer than a lease: no gateway resumes the task
            assert (await state_of(wire, task_id))["status"] == "cancelled"
        assert noted(journal) == ["first", "second"]
    finally:
        stop(second)


@pytest.mark.fault(6)
async def test_process_that_slept_past_its_lease_changes_nothing(tmp_path: Path) -> None:
    journal = prepared(tmp_path)
    async with two_gateways(tmp_path) as ((first, url), (_, other)), over_http(url, "modern") as one, over_http(other, "modern") as two:
        task_id = await begun(one)
        await until_noted(journal, "second")
        os.killpg(first.pid, signal.SIGSTOP)
        try:
            state = await until(two, task_id, "input_required")
            (tmp_path / "go").touch()
            answers = {key: {"action": "accept", "content": {"outcome": "retry"}} for key in state["inputRequests"]}
            await two.send("tasks/update", taskId=task_id, inputResponses=answers)
            ended = await until(two, task_id, "completed")
        finally:
            os.killpg(first.pid, signal.SIGCONT)
        await anyio.sleep(4)  # the stopped gateway's step ends, and it tries to record the step
        for wire in (one, two):
            state = await state_of(wire, task_id)
            assert state["status"] == "completed"
            assert state["result"] == ended["result"]
    assert noted(journal) == ["first", "second", "second"]


@asynccontextmanager
async def two_gateways(folder: Path) -> AsyncGenerator[list[tuple[Child, str]]]:
    """On one state folder."""
    async with AsyncExitStack() as stack:
        both: list[tuple[Child, str]] = []
        for _ in range(2):
            both.append(start_gateway(folder, "gateway"))
            stack.callback(stop, both[-1][0])
        yield both


def on_server(folder: Path, server: Postgres) -> dict[str, Any]:
    """The configuration of a gateway whose state is on a database server."""
    return {"expose": {"agents": ["."]}, "storage": {"dir": str(folder / "state"), "url": server.database("flow")}}


@pytest.mark.fault(9)
async def test_database_outage_fails_calls_clearly_and_tasks_resume(tmp_path: Path) -> None:
    journal = prepared(tmp_path)
    with postgres() as server:
        process, url = start_gateway(tmp_path, "gateway", on_server(tmp_path, server))
        try:
            async with over_http(url, "modern") as wire:
                task_id = await begun(wire)
                await until_noted(journal, "second")
                server.stop()
                with anyio.fail_after(20):
                    refused = await wire.send("tools/call", name="workflow__flow", arguments={"x": "-"})
                assert refused["error"] == {"code": -32603, "message": STORAGE_TEXT}
                logged = await anyio.to_thread.run_sync(log_text, tmp_path)
                assert "127.0.0.1" in logged and "cannot be used" in logged
                await anyio.sleep(4)  # longer than a lease
                server.start()
                (tmp_path / "go").touch()
                state = await until(wire, task_id, "completed", "input_required")
                if state["status"] == "input_required":  # the lease expired without the database, so the step is in doubt
                    answers = {key: {"action": "accept", "content": {"outcome": "retry"}} for key in state["inputRequests"]}
                    await wire.send("tasks/update", taskId=task_id, inputResponses=answers)
                    state = await until(wire, task_id, "completed")
                assert state["result"]["content"] == [{"type": "text", "text": "-12"}]
                assert (await until(wire, await begun(wire), *ENDED))["status"] == "completed"
        finally:
            stop(process)


@pytest.mark.fault(10)
async def test_task_id_is_not_sent_if_the_killed_database_lost_the_task(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / "go").touch()
    told: list[str] = []
    with postgres() as server:
        process, url = start_gateway(tmp_path, "gateway", on_server(tmp_path, server))
        try:
            async with over_http(url, "modern") as wire:
                for _ in range(5):
                    async with anyio.create_task_group() as asking:

                        async def ask() -> None:
                            for _ in range(4):
                                started = await wire.send("tools/call", name="workflow__flow", arguments={"x": "-"})
                                if "result" in started and "taskId" in started["result"]:
                                    told.append(started["result"]["taskId"])

                        for _ in range(4):
                            asking.start_soon(ask)
                        await anyio.sleep(0.15)
                        await anyio.to_thread.run_sync(server.stop)
                    await anyio.to_thread.run_sync(server.start)
                    assert (await until(wire, await begun(wire), *ENDED))["status"] == "completed"
                assert told
                for task_id in told:
                    assert (await until(wire, task_id, *ENDED, "input_required"))["taskId"] == task_id
        finally:
            stop(process)
