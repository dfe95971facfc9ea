"""Durable tasks over real gateways: a workflow as a task, its gateway killed, another one on the same state folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from tests.fakes.nursery import Child, born
from tests.fakes.postgres import postgres
from tests.fakes.running import ROOT, free_port, wait_until_ready, write_config
from tests.interaction.wire import Era, Wire, over_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90), pytest.mark.usefixtures("task_engine")]

FUNCTIONS = """\
import os, pathlib, time
HERE = pathlib.Path(__file__).parent

def note(line):
    with (HERE / "journal").open("a") as file:
        file.write(line + "\\n")

def first(x: str) -> str:
    note("first")
    return x + "1"

def second(x: str) -> str:
    note("second")
    while not (HERE / "go").exists():
        time.sleep(0.02)
    return x + "2"
"""

FLOW = """\
name: flow
description: Two functions.
input: {x: {type: string}}
task: required
executors:
  one: {python: "durable_functions:first", arguments: {x: "{{x}}"}}
  two: {python: "durable_functions:second"}
start: one
edges: [{from: one, to: two}]
"""


def start_gateway(
    folder: Path, name: str, config: dict[str, Any] | None = None, *, module: str = "gateway", **env: str
) -> tuple[Child, str]:
    port = free_port()
    path = write_config(folder, config or {"expose": {"agents": ["."]}}, name)
    log = folder / f"{name}-{port}.log"
    argv = (module, "run", "--http", f"127.0.0.1:{port}", "--config", str(path))
    with log.open("wb") as out:
        process = born(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=out, env={**os.environ, **env})
    wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
    return process, f"http://127.0.0.1:{port}/mcp"


def stop(process: Child) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.requirement(91)
@pytest.mark.requirement(92)
@pytest.mark.requirement(97)
async def test_workflow_of_a_dead_gateway_is_finished_by_another(tmp_path: Path) -> None:
    (tmp_path / "durable_functions.py").write_text(FUNCTIONS)
    (tmp_path / "flow.workflow.yaml").write_text(FLOW)
    journal = tmp_path / "journal"
    first, url = start_gateway(tmp_path, "gateway")
    try:
        async with over_http(url, "modern", tasks=False) as plain, over_http(url, "legacy") as legacy:
            refused = await plain.send("tools/call", name="workflow__flow", arguments={"x": "-"})
            assert refused["error"]["code"] == -32021
            assert refused["error"]["data"] == {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
            refused = await legacy.send("tools/call", name="workflow__flow", arguments={"x": "-"})
            assert refused["error"]["code"] == -32601
            listed = await legacy.send("tools/list")
            tool = next(tool for tool in listed["result"]["tools"] if tool["name"] == "workflow__flow")
            assert tool["execution"] == {"taskSupport": "required"}
        async with over_http(url, "modern") as wire:
            started = await wire.send("tools/call", name="workflow__flow", arguments={"x": "-"})
            task_id: Any = started["result"]["taskId"]
            with anyio.fail_after(20):
                while not journal.exists() or "second" not in journal.read_text():
                    await anyio.sleep(0.05)
    finally:
        stop(first)
    second, url = start_gateway(tmp_path, "gateway")
    try:
        async with over_http(url, "modern") as wire:
            with anyio.fail_after(30):
                while (state := (await wire.send("tasks/get", taskId=task_id))["result"])["status"] != "input_required":
                    await anyio.sleep(0.1)
            assert journal.read_text().splitlines() == ["first", "second"]
            (tmp_path / "go").touch()
            answers = {key: {"action": "accept", "content": {"outcome": "retry"}} for key in state["inputRequests"]}
            await wire.send("tasks/update", taskId=task_id, inputResponses=answers)
            with anyio.fail_after(30):
                while (state := (await wire.send("tasks/get", taskId=task_id))["result"])["status"] != "completed":
                    await anyio.sleep(0.1)
            assert state["result"]["content"] == [{"type": "text", "text": "-12"}]
        assert journal.read_text().splitlines() == ["first", "second", "second"]
    finally:
        stop(second)


async def until(wire: Wire, task_id: str, *statuses: str) -> dict[str, Any]:
    with anyio.fail_after(30):
        while (state := (await wire.send("tasks/get", taskId=task_id))["result"])["status"] not in statuses:
            await anyio.sleep(0.1)
    return state


@pytest.mark.postgres
@pytest.mark.requirement(90, 94, 97)
@pytest.mark.faults
async def test_three_gateways_on_one_database_share_and_take_over_tasks(tmp_path: Path) -> None:
    """Each has a state folder of its own, as on machines of their own."""
    (tmp_path / "durable_functions.py").write_text(FUNCTIONS)
    (tmp_path / "flow.workflow.yaml").write_text(FLOW)
    journal, gateways = tmp_path / "journal", list[tuple[Child, str]]()
    with postgres() as server:
        url = server.database("shared")
        try:
            for name in "abc":
                storage = {"dir": str(tmp_path / f"state-{name}"), "url": "${env:TASKS_URL}", "installationKey": "${env:TASKS_KEY}"}
                config: dict[str, Any] = {"expose": {"agents": ["."]}, "storage": storage}
                gateways.append(start_gateway(tmp_path, name, config, TASKS_URL=url, TASKS_KEY=bytes(range(32)).hex()))
            (first, a), (_, b), (_, c) = gateways
            async with over_http(b, "modern") as on_b, over_http(c, "modern") as on_c:
                async with over_http(a, "modern") as on_a:
                    started = await on_a.send("tools/call", name="workflow__flow", arguments={"x": "-"})
                    task_id: str = started["result"]["taskId"]
                    with anyio.fail_after(20):
                        while not journal.exists() or "second" not in journal.read_text():
                            await anyio.sleep(0.05)
                    seen = await on_b.send("tasks/get", taskId=task_id)
                    assert "result" in seen, seen
                    assert seen["result"]["status"] == "working"
                stop(first)
                state = await until(on_b, task_id, "input_required")
                (tmp_path / "go").touch()
                answers = {key: {"action": "accept", "content": {"outcome": "retry"}} for key in state["inputRequests"]}
                await on_c.send("tasks/update", taskId=task_id, inputResponses=answers)
                done = await until(on_c, task_id, "completed", "failed")
                assert done["result"]["content"] == [{"type": "text", "text": "-12"}]
                assert journal.read_text().splitlines() == ["first", "second", "second"]
                (tmp_path / "go").unlink()
                second = (await on_b.send("tools/call", name="workflow__flow", arguments={"x": "+"}))["result"]["taskId"]
                assert (await on_c.send("tasks/cancel", taskId=second))["result"]["resultType"] == "complete"
                assert (await until(on_b, second, "cancelled", "completed"))["status"] == "cancelled"
        finally:
            for process, _ in gateways:
                stop(process)


WORKING: dict[str, Any] = {"taskId": "t1", "status": "working"}
DONE: dict[str, Any] = {"content": [{"type": "text", "text": "deleted"}]}
REMOTE: dict[str, tuple[list[str], dict[str, Any]]] = {
    "legacy": (
        [],
        {
            "support": "required",
            "tools/call": [{"result": {"task": {**WORKING, "createdAt": "2026-01-01T00:00:00Z"}}}],
            "tasks/result": [{"result": DONE}],
        },
    ),
    "modern": (["--modern"], {"tools/call": [{"result": {**WORKING, "resultType": "task"}}]}),
}


@pytest.mark.requirement(65, 97)
@pytest.mark.parametrize("server", ["legacy", "modern"])
@pytest.mark.faults
async def test_remote_task_is_followed_after_a_kill_without_a_second_call(
    server: Literal["legacy", "modern"], tmp_path: Path
) -> None:
    await hand_over(server, tmp_path, signal.SIGKILL)


@pytest.mark.requirement(65, 96, 97)
@pytest.mark.parametrize("server", ["legacy", pytest.param("modern", marks=pytest.mark.faults)])
async def test_remote_task_is_followed_by_another_gateway_after_a_stop(
    server: Literal["legacy", "modern"], tmp_path: Path
) -> None:
    await hand_over(server, tmp_path, signal.SIGTERM)


def requests(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


async def hand_over(server: Literal["legacy", "modern"], tmp_path: Path, how: signal.Signals) -> None:
    """End a gateway that follows a server's task, and check by the server's requests that the other gateway follows the same task."""
    options, script = REMOTE[server]
    log = tmp_path / "requests.jsonl"

    def saying(state: dict[str, Any]) -> dict[str, Any]:
        told = json.dumps({**script, "tasks/get": [{"result": state}]})
        args = ["-m", "tests.fakes.task_script", *options, "--log", str(log), told]
        servers = {"up": {"command": sys.executable, "args": args, "cwd": str(ROOT)}}
        return {"mcpServers": servers, "storage": {"dir": str(tmp_path)}, "server": {"reload": False}}  # for the rewrite below

    done = saying({"taskId": "t1", "status": "completed", "result": DONE})
    first, url = start_gateway(tmp_path, "gateway", saying(WORKING))
    peer = start_gateway(tmp_path, "gateway", done) if how == signal.SIGTERM else None
    client: Era = "modern" if server == "legacy" else "legacy"  # so that the task is the gateway's own, and follows the server's
    try:
        async with over_http(url, client) as wire:
            task: dict[str, Any] = {"task": {}} if client == "legacy" else {}
            made = (await wire.send("tools/call", name="up__job", arguments={}, **task))["result"]
            task_id = made["task"]["taskId"] if client == "legacy" else made["taskId"]
            with anyio.fail_after(20):
                while not log.exists() or "tasks/get" not in log.read_text():
                    await anyio.sleep(0.05)
        first.send_signal(how)
        assert await anyio.to_thread.run_sync(first.wait, 15) in (0, -signal.SIGKILL)
    except BaseException:
        stop(first)
        if peer is not None:
            stop(peer[0])
        raise
    second, url = peer or start_gateway(tmp_path, "gateway", done)
    try:
        async with over_http(url, "modern") as wire:
            state = await until(wire, task_id, "completed", "failed", "input_required")
    finally:
        stop(second)
    assert state["status"] == "completed", state
    assert state["result"]["content"] == DONE["content"]
    methods = [entry["method"] for entry in requests(log)]
    assert (methods.count("tools/call"), methods.count("tasks/cancel")) == (1, 0)
    assert {entry["params"]["taskId"] for entry in requests(log) if entry["method"].startswith("tasks/")} == {"t1"}


@pytest.mark.requirement(97)
@pytest.mark.fault(1)
@pytest.mark.parametrize("server", ["legacy", pytest.param("modern", marks=pytest.mark.faults)])
async def test_call_resent_after_a_kill_has_the_same_idempotency_key(
    server: Literal["legacy", "modern"], tmp_path: Path
) -> None:
    log = tmp_path / "requests.jsonl"
    args = ["-m", "tests.fakes.task_script", *(["--modern"] if server == "modern" else []), "--log", str(log)]
    told = json.dumps({"tools/call": ["hang", {"result": DONE}]})
    config: dict[str, Any] = {
        "mcpServers": {"up": {"command": sys.executable, "args": [*args, told], "cwd": str(ROOT)}},
        "policies": {"up": {"idempotent": ["job"], "tasks": {"promote": ["*"]}}},
    }
    client: Era = "modern" if server == "legacy" else "legacy"  # so that the task is the gateway's own

    async def ask(wire: Wire, of: str) -> dict[str, Any]:
        meta = {"dev.moongate/idempotencyKey": "mine", "example.com/kept": "yes"}
        task: dict[str, Any] = {"task": {}} if client == "legacy" else {}
        return await wire.send("tools/call", name="up__job", arguments={"of": of}, _meta=meta, **task)

    def told_id(answer: dict[str, Any]) -> str:
        return (answer["result"]["task"] if client == "legacy" else answer["result"])["taskId"]

    first, url = start_gateway(tmp_path, "gateway", config)
    try:
        async with over_http(url, client) as wire:
            task_id = told_id(await ask(wire, "x"))
            with anyio.fail_after(20):
                while not log.exists():
                    await anyio.sleep(0.02)
    finally:
        stop(first)
    second, url = start_gateway(tmp_path, "gateway", config)
    try:
        async with over_http(url, client) as wire, over_http(url, "modern") as polling:
            assert told_id(await ask(wire, "x")) == task_id
            assert "idempotency key" in (await ask(wire, "y"))["error"]["message"]
            assert (await until(polling, task_id, "completed", "failed", "input_required"))["status"] == "completed"
    finally:
        stop(second)
    metas = [entry["params"]["_meta"] for entry in requests(log)]
    keys = [meta["dev.moongate/idempotencyKey"] for meta in metas]
    assert len(keys) == 2
    assert keys[0] == keys[1]
    assert keys[0].startswith(f"{task_id}:")  # the gateway's key of task and step, not the caller's key
    assert [meta["example.com/kept"] for meta in metas] == ["yes", "yes"]
