"""Tasks on Temporal: what only this engine has. `tests/tasks` and `tests/faults` run the tests of both engines with `task_engine`."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.config.models import TaskSettings
from gateway.errors import ConfigError
from gateway.json_types import items_of, members_of
from gateway.tasks.engine_choice import choose_engine
from gateway.tasks.local_engine import LocalEngine
from gateway.tasks.temporal_names import page, workflow_id
from tests.fakes.nursery import Child
from tests.fakes.running import ROOT, TASK_ENGINE, temporal_tasks, write_config
from tests.fakes.temporal import TemporalServer, temporal
from tests.interaction.wire import Wire, over_http
from tests.tasks.dying import in_a_process
from tests.tasks.test_gateways import start_gateway, stop, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

FUNCTIONS = """\
import pathlib, time
HERE = pathlib.Path(__file__).parent

def note(line):
    with (HERE / "journal").open("a") as file:
        file.write(line + "\\n")

def work(x: str) -> str:
    note("begun")
    while not (HERE / "go").exists():
        time.sleep(0.02)
    note("done")
    return x + "!"

def thank(x: str) -> str:
    note("thanked")
    return x
"""

WORKS = """\
name: works
description: Waits for a file.
input: {x: {type: string}}
task: required
executors: {one: {python: "temporal_functions:work", arguments: {x: "{{x}}"}}}
start: one
"""

ASKS = """\
name: asks
description: Asks after a step.
input: {x: {type: string}}
task: required
executors:
  one: {python: "temporal_functions:thank", arguments: {x: "{{x}}"}}
  two: {ask: "Go on with {{one}}?"}
start: one
edges: [{from: one, to: two}]
"""

HISTORIES = sorted((Path(__file__).parent / "temporal_histories").glob("*.json"))
"""Histories of workflows, each with the name of the version that recorded it and of what happened."""

SECRET = "argument-in-no-history"
ANSWER = "answer-in-no-history"


@pytest.fixture
def server(temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch) -> TemporalServer:
    """The shared server, which the gateways of the test use."""
    monkeypatch.setenv(TASK_ENGINE, temporal_server.address)
    return temporal_server


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[TemporalServer]:
    """A server that the test may kill."""
    with temporal(tmp_path) as started:
        monkeypatch.setenv(TASK_ENGINE, started.address)
        yield started


@contextmanager
def gateways(folder: Path, count: int = 1, tasks: dict[str, Any] | None = None) -> Generator[list[tuple[Child, str]]]:
    """Gateways on one state folder that have the two workflows. `tasks` are further keys of that section."""
    (folder / "temporal_functions.py").write_text(FUNCTIONS)
    (folder / "works.workflow.yaml").write_text(WORKS)
    (folder / "asks.workflow.yaml").write_text(ASKS)
    with ExitStack() as stack:
        started: list[tuple[Child, str]] = []
        for _ in range(count):
            started.append(start_gateway(folder, "gateway", {"expose": {"agents": ["."]}, "tasks": tasks or {}}))
            stack.callback(stop, started[-1][0])
        yield started


async def begun(wire: Wire, tool: str) -> str:
    """The id of a task just started."""
    answer = await wire.send("tools/call", name=f"workflow__{tool}", arguments={"x": SECRET})
    assert "result" in answer, answer
    return str(answer["result"]["taskId"])


def noted(folder: Path) -> list[str]:
    journal = folder / "journal"
    return journal.read_text().splitlines() if journal.exists() else []


async def until_noted(folder: Path, line: str) -> None:
    with anyio.fail_after(30):
        while line not in noted(folder):
            await anyio.sleep(0.02)


def described(server: TemporalServer, task_id: str) -> dict[str, Any]:
    """What Temporal says of a task's workflow."""
    told = server.run("workflow", "describe", "--workflow-id", workflow_id(task_id), "--output", "json")
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


async def until_parked(server: TemporalServer, task_id: str) -> None:
    """Wait until the workflow runs and has no activity."""
    with anyio.fail_after(30):
        while (state := await anyio.to_thread.run_sync(described, server, task_id)).get("pendingActivities"):
            await anyio.sleep(0.2)
    assert state["workflowExecutionInfo"]["status"] == "WORKFLOW_EXECUTION_STATUS_RUNNING"


async def answer(wire: Wire, task_id: str, state: dict[str, Any], **content: str) -> None:
    answers = {key: {"action": "accept", "content": content} for key in state["inputRequests"]}
    told = await wire.send("tasks/update", taskId=task_id, inputResponses=answers)
    assert "result" in told, told


# -- start ---------------------------------------------------------------------------------------------------------


async def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("temporalio", "gateway.tasks.temporal_"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "temporalio", None)
    with pytest.raises(ConfigError, match=r'pip install "moongate\[temporal\]"'):
        await choose_engine(TaskSettings(engine="temporal"), "gateway")


async def test_local_engine_imports_no_temporal_package() -> None:
    assert await choose_engine(TaskSettings(), "gateway") is LocalEngine
    code = (
        "import sys, anyio; from gateway.config.models import TaskSettings; from gateway.tasks.engine_choice import choose_engine; "
        "import gateway.tasks.runner; anyio.run(choose_engine, TaskSettings(), 'x'); print('temporalio' in sys.modules)"
    )
    ended = await anyio.run_process([sys.executable, "-c", code], cwd=ROOT)
    assert ended.stdout.strip() == b"False"


def test_page_of_a_task_needs_the_address_of_the_interface() -> None:
    settings = TaskSettings.model_validate({"temporal": {"ui": "https://temporal.example.com/", "namespace": "a b"}}).temporal
    assert page(settings, "t1") == "https://temporal.example.com/namespaces/a%20b/workflows/moongate-task-t1"
    assert page(TaskSettings().temporal, "t1") == ""


# -- tasks ---------------------------------------------------------------------------------------------------------


@pytest.mark.temporal
async def test_task_waits_without_activity_and_another_gateway_finishes_it(server: TemporalServer, tmp_path: Path) -> None:
    with gateways(tmp_path, 2) as ((first, a), (_, b)):
        async with over_http(b, "modern") as on_b:
            async with over_http(a, "modern") as on_a:
                task_id = await begun(on_a, "asks")
                state = await until(on_a, task_id, "input_required")
                await until_parked(server, task_id)
            stop(first)
            await answer(on_b, task_id, state, answer=ANSWER)
            done = await until(on_b, task_id, "completed", "failed")
    assert done["status"] == "completed", done
    assert noted(tmp_path) == ["thanked"]
    assert ANSWER in json.dumps(done["result"])


@pytest.mark.temporal
async def test_history_contains_no_argument_answer_or_result(server: TemporalServer, tmp_path: Path) -> None:
    with gateways(tmp_path) as ((_, url),):
        async with over_http(url, "modern") as wire:
            task_id = await begun(wire, "asks")
            state = await until(wire, task_id, "input_required")
            await until_parked(server, task_id)
            await anyio.sleep(3)  # longer than the waits of the workflow are at least
            await answer(wire, task_id, state, answer=ANSWER)
            assert (await until(wire, task_id, "completed", "failed"))["status"] == "completed"
            with anyio.fail_after(20):
                while "STATUS_COMPLETED" not in described(server, task_id)["workflowExecutionInfo"]["status"]:
                    await anyio.sleep(0.2)
    told = server.run("workflow", "show", "--workflow-id", workflow_id(task_id), "--output", "json")
    history = told.stdout + "".join(decoded(json.loads(told.stdout)))
    assert task_id in history and "input_required" in history
    assert told.stdout.count("EVENT_TYPE_ACTIVITY_TASK_SCHEDULED") == 2, "before and after the answer"
    assert [text for text in (SECRET, ANSWER, "Go on", str(tmp_path / "gateway.json")) if text in history] == []


def decoded(value: Any) -> Generator[str]:
    """The decoded payloads of a history."""
    members = members_of(value)
    if isinstance(data := members.get("data"), str):
        yield base64.b64decode(data).decode("utf-8", "replace")
    for item in [*members.values(), *items_of(value)]:
        yield from decoded(item)


@pytest.mark.temporal
@pytest.mark.parametrize("tool", ["works", "asks"])
async def test_workflow_cancelled_at_temporal_cancels_its_task(server: TemporalServer, tool: str, tmp_path: Path) -> None:
    with gateways(tmp_path) as ((_, url),):
        async with over_http(url, "modern") as wire:
            task_id = await begun(wire, tool)
            if tool == "asks":
                await until(wire, task_id, "input_required")
                await until_parked(server, task_id)
            else:
                await until_noted(tmp_path, "begun")
            told = await anyio.to_thread.run_sync(server.run, "workflow", "cancel", "--workflow-id", workflow_id(task_id))
            assert told.returncode == 0, told.stderr
            assert (await until(wire, task_id, "cancelled", "completed", "failed"))["status"] == "cancelled"


@pytest.mark.temporal
async def test_task_goes_on_after_its_workflow_was_terminated(server: TemporalServer, tmp_path: Path) -> None:
    with gateways(tmp_path) as ((_, url),):
        async with over_http(url, "modern") as wire:
            task_id = await begun(wire, "works")
            await until_noted(tmp_path, "begun")
            told = await anyio.to_thread.run_sync(server.run, "workflow", "terminate", "--workflow-id", workflow_id(task_id))
            assert told.returncode == 0, told.stderr
            await anyio.sleep(4)  # longer than the heartbeat timeout
            (tmp_path / "go").touch()
            assert (await until(wire, task_id, "completed", "failed"))["status"] == "completed"
    assert noted(tmp_path) == ["begun", "done"]


@pytest.mark.temporal
async def test_tasks_are_found_at_temporal_by_tool_and_state(server: TemporalServer, tmp_path: Path) -> None:
    query = 'MoongateTool="workflow__asks" AND MoongateSource="workflow" AND MoongateState="input_required"'
    with gateways(tmp_path) as ((_, url),):
        async with over_http(url, "modern") as wire:
            task_id = await begun(wire, "asks")
            await until(wire, task_id, "input_required")
            with anyio.fail_after(30):
                while workflow_id(task_id) not in server.run("workflow", "list", "--query", query).stdout:
                    await anyio.sleep(0.3)
            assert (await wire.send("tasks/cancel", taskId=task_id))["result"]["resultType"] == "complete"


@pytest.mark.temporal
async def test_queued_task_has_no_workflow_and_starts_after_its_gateway_died(server: TemporalServer, tmp_path: Path) -> None:
    tasks = {"maxRunningPerCaller": 1}
    with gateways(tmp_path, 2, tasks=tasks) as ((first, a), (_, b)):
        async with over_http(b, "modern") as on_b:
            async with over_http(a, "modern") as on_a:
                running, queued = await begun(on_a, "works"), await begun(on_a, "works")
                await until_noted(tmp_path, "begun")
                assert await status_message(on_a, queued) == "Queued"
                assert server.run("workflow", "describe", "--workflow-id", workflow_id(queued)).returncode != 0
            stop(first)
            state = await until(on_b, running, "input_required", "completed")
            (tmp_path / "go").touch()
            if state["status"] == "input_required":  # the first gateway ran the task, and its step is in doubt
                await answer(on_b, running, state, outcome="retry")
            for task_id in (running, queued):
                assert (await until(on_b, task_id, "completed", "failed"))["status"] == "completed"


# -- outages of Temporal -------------------------------------------------------------------------------------------


@pytest.mark.temporal
async def test_killed_server_loses_no_task_and_repeats_no_step(own_server: TemporalServer, tmp_path: Path) -> None:
    with gateways(tmp_path) as ((_, url),):
        async with over_http(url, "modern") as wire:
            running, asking = await begun(wire, "works"), await begun(wire, "asks")
            state = await until(wire, asking, "input_required")
            await until_noted(tmp_path, "begun")
            await until_parked(own_server, asking)
            own_server.kill()
            await answer(wire, asking, state, answer=ANSWER)
            late = await begun(wire, "asks")
            with anyio.fail_after(30):
                for task_id in (late, asking):
                    while "Waiting for Temporal at 127.0.0.1" not in (now := await status_message(wire, task_id)):
                        await anyio.sleep(0.1)
                    assert own_server.address in now
            assert "result" in await wire.send("tools/list")  # calls without tasks are served
            await anyio.sleep(3)  # longer than the heartbeat timeout
            await anyio.to_thread.run_sync(own_server.start)
            assert (await until(wire, asking, "completed", "failed"))["status"] == "completed"
            await until(wire, late, "input_required")
            (tmp_path / "go").touch()
            assert (await until(wire, running, "completed", "failed"))["status"] == "completed"
    assert sorted(noted(tmp_path)) == ["begun", "done", "thanked", "thanked"]


@pytest.mark.temporal
async def test_outage_writes_only_messages_to_standard_output(own_server: TemporalServer, tmp_path: Path) -> None:
    """The library of Temporal writes its log to standard output by default, which carries the messages of MCP."""
    path = write_config(tmp_path, {})
    log = tmp_path / "stdio.log"
    with log.open("wb") as stderr:
        argv = [sys.executable, "-m", "gateway", "run", "--stdio", "--config", str(path)]
        gateway = await anyio.open_process(argv, cwd=ROOT, stderr=stderr)
    async with gateway:
        assert gateway.stdin is not None and gateway.stdout is not None
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        await gateway.stdin.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}).encode() + b"\n")
        received = await gateway.stdout.receive()
        await anyio.to_thread.run_sync(own_server.kill)
        with anyio.fail_after(30):
            while b"temporalio.core" not in await anyio.to_thread.run_sync(log.read_bytes):
                await anyio.sleep(0.1)
        await gateway.stdin.aclose()
        async for more in gateway.stdout:
            received += more
    assert [json.loads(line)["jsonrpc"] for line in received.splitlines()] == ["2.0"] * len(received.splitlines())


async def status_message(wire: Wire, task_id: str) -> str:
    return str((await wire.send("tasks/get", taskId=task_id))["result"].get("statusMessage", ""))


@pytest.mark.temporal
async def test_task_of_a_gateway_killed_before_its_workflow_started_is_run(own_server: TemporalServer, tmp_path: Path) -> None:
    with gateways(tmp_path) as ((process, url),):
        async with over_http(url, "modern") as wire:
            own_server.kill()
            task_id = await begun(wire, "works")
            os.killpg(process.pid, signal.SIGKILL)
    own_server.start()
    (tmp_path / "go").touch()
    with gateways(tmp_path) as ((_, url),):
        async with over_http(url, "modern") as wire:
            assert (await until(wire, task_id, "completed", "failed"))["status"] == "completed"
    assert noted(tmp_path) == ["begun", "done"]


# -- commands ------------------------------------------------------------------------------------------------------


@pytest.mark.temporal
async def test_answer_from_the_command_line_wakes_a_waiting_task(server: TemporalServer, tmp_path: Path) -> None:
    with gateways(tmp_path) as ((_, url),):
        async with over_http(url, "modern") as wire:
            task_id = await begun(wire, "asks")
            await until(wire, task_id, "input_required")
            await until_parked(server, task_id)
            shown = await anyio.to_thread.run_sync(command, tmp_path, "show", task_id)
            assert f"temporal: http://127.0.0.1:8233/namespaces/default/workflows/{workflow_id(task_id)}" in shown
            await anyio.to_thread.run_sync(command, tmp_path, "answer", task_id, f"answer={ANSWER}")
            assert (await until(wire, task_id, "completed", "failed"))["status"] == "completed"
            listed = json.loads(await anyio.to_thread.run_sync(command, tmp_path, "list", "--json"))
            assert listed["engine"] == "temporal"
            assert listed["tasks"][0]["page"].endswith(workflow_id(task_id))


@pytest.mark.temporal
async def test_doctor_checks_the_server_and_runs_none_of_its_tasks(own_server: TemporalServer, tmp_path: Path) -> None:
    with gateways(tmp_path) as ((process, url),):
        async with over_http(url, "modern") as wire:
            task_id = await begun(wire, "works")
            await until_noted(tmp_path, "begun")
            os.killpg(process.pid, signal.SIGKILL)
        argv = [sys.executable, "-m", "gateway", "doctor", "--config", str(tmp_path / "gateway.json")]
        await anyio.sleep(3)  # the task waits for a gateway
        assert f"{own_server.address} can be used" in (await anyio.run_process(argv, cwd=ROOT, check=False)).stdout.decode()
        await anyio.to_thread.run_sync(own_server.kill)
        told = await anyio.run_process(argv, cwd=ROOT, check=False)
        assert f"Temporal at {own_server.address} cannot be used" in told.stdout.decode()
        assert told.returncode != 0
    assert "working" in await anyio.to_thread.run_sync(command, tmp_path, "show", task_id)
    assert noted(tmp_path) == ["begun"]


def command(folder: Path, *arguments: str) -> str:
    argv = [sys.executable, "-m", "gateway", "tasks", *arguments, "--config", str(folder / "gateway.json")]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def make_current(server: TemporalServer, deployment: str, build: str) -> None:
    arguments = ("--deployment-name", deployment, "--build-id", build, "--ignore-missing-task-queues", "--yes")
    deadline = time.monotonic() + 30
    while (told := server.run("worker", "deployment", "set-current-version", *arguments)).returncode != 0:
        assert time.monotonic() < deadline, told.stderr
        time.sleep(0.5)


@pytest.mark.temporal
async def test_waiting_task_continues_in_the_build_that_became_current(server: TemporalServer, tmp_path: Path) -> None:
    deployment = f"moongate-{tmp_path.name}-{os.getpid()}"
    section = temporal_tasks(tmp_path, server.address)["temporal"]

    def tasks(build: str) -> dict[str, Any]:
        return {"temporal": {**section, "versioning": {"deployment": deployment, "buildId": build}}}

    with gateways(tmp_path, tasks=tasks("one")) as ((_, url),):
        await anyio.to_thread.run_sync(make_current, server, deployment, "one")
        async with over_http(url, "modern") as wire:
            task_id = await begun(wire, "asks")
            await until(wire, task_id, "input_required")
            await until_parked(server, task_id)
    with gateways(tmp_path, tasks=tasks("two")) as ((_, url),):
        await anyio.to_thread.run_sync(make_current, server, deployment, "two")
        async with over_http(url, "modern") as wire:
            await answer(wire, task_id, await until(wire, task_id, "input_required"), answer=ANSWER)
            assert (await until(wire, task_id, "completed", "failed"))["status"] == "completed"
    assert noted(tmp_path) == ["thanked"]


# -- upgrades ------------------------------------------------------------------------------------------------------


@pytest.mark.temporal
@pytest.mark.fault(15)
def test_histories_of_earlier_versions_are_replayed_by_this_one() -> None:
    """Temporal continues a workflow only if this version's code takes the decisions of the recorded history again."""
    pytest.importorskip("temporalio", reason="Temporal's package is not installed: run `make temporal`")
    assert len(HISTORIES) == 4

    async def replay() -> None:
        from temporalio.client import WorkflowHistory
        from temporalio.worker import Replayer

        from gateway.tasks.temporal_workflow import TaskWorkflow

        replayer = Replayer(workflows=[TaskWorkflow])
        for path in HISTORIES:
            await replayer.replay_workflow(WorkflowHistory.from_json(workflow_id("t1"), path.read_text()))

    assert in_a_process(replay) == 0
