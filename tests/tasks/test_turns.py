"""The configuration's limits on tasks, through a gateway: a server's, a workflow's and a caller's; what waits says so."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.inside import gateway_inside
from tests.fakes.running import ROOT
from tests.interaction.wire import over_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
FLOW = """\
name: NAME
description: Asks.
input: {x: {type: string}}
task: required
executors:
  one: {tool: up/job, arguments: {of: "{{x}}"}}
start: one
"""


async def test_tasks_queue_by_the_limits_of_server_workflow_and_caller(tmp_path: Path) -> None:
    for name in ("counted", "paced", "free"):
        (tmp_path / f"{name}.workflow.yaml").write_text(FLOW.replace("NAME", name))
    args = ["-m", "tests.fakes.task_script", "--log", str(tmp_path / "requests.jsonl"), json.dumps({"tools/call": ["hang"]})]
    limits = {"overrides": {"counted": {"maxRunningTasks": 1}, "paced": {"taskStartsPerMinute": 2}}}
    config: dict[str, Any] = {
        "mcpServers": {"up": {"command": sys.executable, "args": args, "cwd": str(ROOT)}},
        "policies": {"up": {"tasks": {"promote": ["*"], "maxRunning": 1}}, "workflow": limits},
        "expose": {"agents": ["."]},
        "tasks": {"maxRunningPerCaller": 6},
    }
    with gateway_inside(tmp_path, config) as front:
        async with over_http(front.url, "modern") as wire:
            waits, made = Counter[str](), dict[str, Any]()
            for name in ["up__job"] * 2 + ["workflow__counted"] * 2 + ["workflow__paced"] * 3 + ["workflow__free"] * 4:
                arguments = {"of": "x"} if name == "up__job" else {"x": "x"}
                made = (await wire.send("tools/call", name=name, arguments=arguments))["result"]
                state = (await wire.send("tasks/get", taskId=made["taskId"]))["result"]
                waits[name] += state.get("statusMessage") == "Queued"
            # The caller may run six tasks: one `up__job`, one `counted` and two `paced` run, so two of `free` run as well.
            assert waits == {"up__job": 1, "workflow__counted": 1, "workflow__paced": 1, "workflow__free": 2}
            listed = (await wire.send("tasks/get", taskId=made["taskId"]))["result"]
            assert (listed["status"], listed["taskId"]) == ("working", made["taskId"])
            with anyio.fail_after(20):
                assert (await wire.send("tasks/cancel", taskId=made["taskId"]))["result"]["resultType"] == "complete"
