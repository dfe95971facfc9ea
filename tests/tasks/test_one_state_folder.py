"""Tasks of two chained gateways of one user, which share a state folder: each keeps to its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.nursery import Child, born
from tests.fakes.running import ROOT, free_port, wait_until_ready, write_config
from tests.interaction.wire import over_http
from tests.tasks.test_gateways import FLOW, FUNCTIONS, stop, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

KEY = {"dev.moongate/idempotencyKey": "order 66"}


def start(path: Path, port: int) -> Child:
    log = path.with_suffix(".log")
    with log.open("ab") as out:
        argv = ("gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path))
        process = born(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=out, env=dict(os.environ))
    wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
    return process


@pytest.mark.faults
async def test_gateway_leaves_tasks_of_another_configuration_alone(tmp_path: Path) -> None:
    (tmp_path / "durable_functions.py").write_text(FUNCTIONS)
    (tmp_path / "flow.workflow.yaml").write_text(FLOW.replace("task: required", "task: optional"))
    ports, storage, journal = (free_port(), free_port()), {"dir": str(tmp_path / "state")}, tmp_path / "journal"
    behind_path = write_config(tmp_path, {"expose": {"agents": ["."]}, "storage": storage}, "behind")
    hub = {"type": "http", "url": f"http://127.0.0.1:{ports[0]}/mcp"}
    front_path = write_config(tmp_path, {"mcpServers": {"hub": hub}, "storage": storage}, "front")
    processes = [start(behind_path, ports[0]), start(front_path, ports[1])]
    url = f"http://127.0.0.1:{ports[1]}/mcp"
    try:
        async with over_http(url, "modern") as wire:
            started = await wire.send("tools/call", name="hub__workflow__flow", arguments={"x": "-"}, _meta=KEY)
            task_id: Any = started["result"]["taskId"]
            with anyio.fail_after(20):
                while not journal.exists() or "second" not in journal.read_text():
                    await anyio.sleep(0.05)
            stop(processes[0])
            await anyio.sleep(4)  # longer than the lease of a process that died: the front would take the task over
            processes[0] = start(behind_path, ports[0])
            state = await until(wire, task_id, "input_required", "failed")
            assert state["status"] == "input_required", state
            (tmp_path / "go").touch()
            answers = {key: {"action": "accept", "content": {"outcome": "retry"}} for key in state["inputRequests"]}
            await wire.send("tasks/update", taskId=task_id, inputResponses=answers)
            done = await until(wire, task_id, "completed", "failed")
            assert done["status"] == "completed", done
            again = await wire.send("tools/call", name="hub__workflow__flow", arguments={"x": "-"}, _meta=KEY)
            assert (await until(wire, again["result"]["taskId"], "completed"))["result"] == done["result"]
            assert journal.read_text().splitlines() == ["first", "second", "second"]
        async with over_http(url, "modern", tasks=False) as plain:  # the front would find the task behind it under this key
            told = await plain.send("tools/call", name="hub__workflow__flow", arguments={"x": "-"}, _meta=KEY)
        assert told["result"]["content"] == done["result"]["content"], told
    finally:
        for process in processes:
            stop(process)
