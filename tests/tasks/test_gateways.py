"""Durable tasks over real gateways: a workflow as a task, its gateway killed, another one on the same state folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.running import ROOT, free_port, wait_until_ready, write_config
from tests.interaction.wire import over_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

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


def start_gateway(folder: Path, name: str, storage: dict[str, Any] | None = None) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port()
    path = write_config(folder, {"expose": {"agents": ["."]}, **({"storage": storage} if storage else {})}, name)
    log = folder / f"{name}-{port}.log"
    command = [sys.executable, "-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
    return process, f"http://127.0.0.1:{port}/mcp"


def stop(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.requirement(91)
@pytest.mark.requirement(92)
@pytest.mark.requirement(97)
async def test_a_workflow_started_on_one_gateway_is_finished_by_another_after_its_death(tmp_path: Path) -> None:
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
