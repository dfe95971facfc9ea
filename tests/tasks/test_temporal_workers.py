"""Task queues of sources, and versions of the gateway side by side, on a Temporal server."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from pydantic import ValidationError

from gateway.config.models import GatewayConfig
from gateway.storage.record_types import TaskRow
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from tests.fakes.nursery import Child
from tests.fakes.running import TASK_ENGINE, temporal_tasks, write_config
from tests.fakes.temporal import TemporalServer
from tests.interaction.wire import Wire, over_http
from tests.tasks.test_gateways import start_gateway, stop, until
from tests.tasks.test_temporal import described, noted, until_noted, until_parked

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

FUNCTIONS = """\
import os, pathlib, time
HERE = pathlib.Path(__file__).parent

def work(x: str) -> str:
    with (HERE / "journal").open("a") as file:
        file.write(f"{x} {os.environ['GATEWAY_NAME']}\\n")
    while x.startswith("hold") and not (HERE / "go").exists():
        time.sleep(0.02)
    return x
"""

FLOW = """\
name: {name}
description: Notes which gateway runs it.
input: {{x: {{type: string}}}}
task: required
executors:
  one: {{python: "worker_functions:work", arguments: {{x: "{{{{x}}}}"}}}}
  two: {{ask: "Go on?"}}
  three: {{python: "worker_functions:work"}}
start: one
edges: {edges}
"""


@pytest.fixture
def server(temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch) -> TemporalServer:
    """The shared server, which the gateways of the test use."""
    monkeypatch.setenv(TASK_ENGINE, temporal_server.address)
    return temporal_server


def lay_out(folder: Path) -> None:
    """Write two workflows: `asks` asks between its two functions, and `works` does not."""
    (folder / "worker_functions.py").write_text(FUNCTIONS)
    works = FLOW.format(name="works", edges="[{from: one, to: three}]").replace('  two: {ask: "Go on?"}\n', "")
    (folder / "works.workflow.yaml").write_text(works)
    (folder / "asks.workflow.yaml").write_text(FLOW.format(name="asks", edges="[{from: one, to: two}, {from: two, to: three}]"))


@contextmanager
def gateways(folder: Path, *sections: dict[str, Any]) -> Generator[list[tuple[Child, str]]]:
    """Gateways on one state folder, each with further sections of the configuration. `GATEWAY_NAME` is `g0`, `g1` and so on."""
    with ExitStack() as stack:
        started: list[tuple[Child, str]] = []
        for number, section in enumerate(sections):
            started.append(start_gateway(folder, "gateway", section, GATEWAY_NAME=f"g{number}"))
            stack.callback(stop, started[-1][0])
        yield started


async def begun(wire: Wire, tool: str, x: str) -> str:
    """Start a task and return its id."""
    told = await wire.send("tools/call", name=f"workflow__{tool}", arguments={"x": x})
    assert "result" in told, told
    return str(told["result"]["taskId"])


async def answer(wire: Wire, task_id: str) -> None:
    """Answer the question of a task."""
    state = await until(wire, task_id, "input_required")
    answers = {key: {"action": "accept", "content": {"answer": "yes"}} for key in state["inputRequests"]}
    assert "result" in await wire.send("tasks/update", taskId=task_id, inputResponses=answers)


def test_task_queue_of_a_source_needs_the_engine_temporal() -> None:
    policies = {"up": {"tasks": {"taskQueue": "q"}}}
    with pytest.raises(ValidationError, match=r"policies\.up\.tasks\.taskQueue: has an effect only with `tasks\.engine: temporal`"):
        GatewayConfig.model_validate({"policies": policies})
    config = GatewayConfig.model_validate({"policies": policies, "tasks": {"engine": "temporal"}})
    assert config.task_queues_of(["up", "other"]) == {"q"}


@pytest.mark.parametrize(("ahead", "is_found"), [(0.0, False), (300.0, True), (-300.0, True)])
async def test_task_without_workflow_is_found_by_any_clock(tmp_path: Path, ahead: float, *, is_found: bool) -> None:
    """The process that stored the task had a clock that was ahead or behind, and died before it started the workflow."""
    records = Records(StateFolder(tmp_path), audit_days=1)
    try:
        rows = await records.tasks()
        row = TaskRow("t1", "local", "up__work", {"arguments": {}}, 60.0)
        row.updated_at = time.time() + ahead
        assert not await rows.add(row, max_open=9, max_kept=9, choose=None)
        assert [task.id for task in await rows.stranded()] == (["t1"] if is_found else [])
    finally:
        await records.aclose()


@pytest.mark.temporal
async def test_source_with_a_task_queue_runs_where_it_is_polled(server: TemporalServer, tmp_path: Path) -> None:
    """Both gateways have the workflows, but only the second has the task queue in its policy."""
    lay_out(tmp_path)
    agents: dict[str, Any] = {"expose": {"agents": ["."]}, "server": {"reload": False}}
    queue = f"gpu-{tmp_path}"
    special = {**agents, "policies": {"workflow": {"tasks": {"taskQueue": queue}}}}
    with gateways(tmp_path, agents, special) as ((_, plain), (process, on_queue)):
        async with over_http(plain, "modern") as one:
            async with over_http(on_queue, "modern") as two:
                asking = await begun(two, "asks", "q")
                await until(one, asking, "input_required")
                await until_parked(server, asking)
                told = await anyio.to_thread.run_sync(described, server, asking)
                assert told["executionConfig"]["taskQueue"]["name"] == queue
                for number in range(4):
                    task_id = await begun(two, "works", f"w{number}")
                    assert (await until(two, task_id, "completed", "failed"))["status"] == "completed"
            assert {line for line in noted(tmp_path) if line[0] in "qw"} == {f"{name} g1" for name in ("q", "w0", "w1", "w2", "w3")}
            stop(process)
            await answer(one, asking)  # the gateway that knows nothing of the queue wakes the workflow there
            await anyio.sleep(3)
            assert (await one.send("tasks/get", taskId=asking))["result"]["status"] == "working"
            with gateways(tmp_path, {**special, "server": {"reload": False}}):
                assert (await until(one, asking, "completed", "failed"))["status"] == "completed"


@pytest.mark.temporal
async def test_task_queue_that_is_configured_later_is_polled(server: TemporalServer, tmp_path: Path) -> None:
    lay_out(tmp_path)
    agents: dict[str, Any] = {"expose": {"agents": ["."]}}
    with gateways(tmp_path, agents) as ((_, url),):
        queue = f"late-{tmp_path}"
        write_config(tmp_path, {**agents, "policies": {"workflow": {"tasks": {"taskQueue": queue}}}})
        async with over_http(url, "modern") as wire:
            with anyio.fail_after(40):
                while True:  # until the gateway has read the configuration
                    task_id = await begun(wire, "works", "w")
                    assert (await until(wire, task_id, "completed", "failed"))["status"] == "completed"
                    told = await anyio.to_thread.run_sync(described, server, task_id)
                    if told["executionConfig"]["taskQueue"]["name"] == queue:
                        break
                    await anyio.sleep(0.5)


# -- versions ------------------------------------------------------------------------------------------------------


def make_current(server: TemporalServer, deployment: str, build: str) -> None:
    """Make a build the current version of the deployment, once Temporal knows it."""
    arguments = ("--deployment-name", deployment, "--build-id", build, "--ignore-missing-task-queues", "--yes")
    deadline = time.monotonic() + 30
    while (told := server.run("worker", "deployment", "set-current-version", *arguments)).returncode != 0:
        assert time.monotonic() < deadline, told.stderr
        time.sleep(0.5)


@pytest.mark.temporal
@pytest.mark.fault(15)
async def test_two_builds_side_by_side_lose_and_repeat_nothing(server: TemporalServer, tmp_path: Path) -> None:
    """Temporal starts tasks in the current build. What runs in the old build ends there, what waits continues in the new build."""
    lay_out(tmp_path)
    deployment = f"moongate-{tmp_path.name}-{os.getpid()}"
    section = temporal_tasks(tmp_path, server.address)["temporal"]

    def build(name: str) -> dict[str, Any]:
        temporal = {**section, "versioning": {"deployment": deployment, "buildId": name}}
        return {"expose": {"agents": ["."]}, "server": {"reload": False}, "tasks": {"temporal": temporal}}

    with gateways(tmp_path, build("old"), build("new")) as ((_, old), (_, new)):
        await anyio.to_thread.run_sync(make_current, server, deployment, "old")
        async with over_http(old, "modern") as one, over_http(new, "modern") as two:
            for number in range(4):  # from both gateways, because a call may arrive at any
                task_id = await begun((one, two)[number % 2], "works", f"w{number}")
                assert (await until(one, task_id, "completed", "failed"))["status"] == "completed"
            held, asking = await begun(two, "works", "hold"), await begun(two, "asks", "a")
            await until_noted(tmp_path, "hold g0")
            await until(one, asking, "input_required")
            await until_parked(server, asking)
            assert {line.partition(" ")[2] for line in noted(tmp_path)} == {"g0"}
            await anyio.to_thread.run_sync(make_current, server, deployment, "new")
            await answer(one, asking)
            assert (await until(one, asking, "completed", "failed"))["status"] == "completed"
            task_id = await begun(one, "works", "later")
            assert (await until(one, task_id, "completed", "failed"))["status"] == "completed"
            (tmp_path / "go").touch()
            assert (await until(two, held, "completed", "failed"))["status"] == "completed"
    lines = noted(tmp_path)
    assert [line for line in lines if line.startswith("hold")] == ["hold g0", "hold g0"], "its two functions, both in the old build"
    assert [line for line in lines if line.startswith("later")] == ["later g1", "later g1"]
    assert lines.count("a g0") == 1
    assert sum(line.endswith(" g1") for line in lines) == 3, "the last function of the task that waited ran in the new build"
