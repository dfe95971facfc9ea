"""agent-framework-core 1.13 as a client of the gateway's 2025-11-25 tasks: it lists, drives and cancels tasks of the gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.accept.clients import HOME, TIMEOUT_SECONDS
from tests.fakes.running import ROOT, gateway_http

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

PYTHON = HOME / "agent-framework/bin/python"
CLIENT = Path(__file__).with_name("agent_framework_client.py")
CREATED = {"result": {"task": {"taskId": "t1", "status": "working", "createdAt": "2026-01-01T00:00:00Z"}}}
WORKING = {"result": {"taskId": "t1", "status": "working"}}
DONE = {"result": {"taskId": "t1", "status": "completed"}}
RESULT = {"result": {"content": [{"type": "text", "text": "the tide is high"}]}}


def run(url: str, *words: str) -> Any:
    """One run of the client."""
    if not PYTHON.exists():
        pytest.skip(f"agent-framework is not installed in {HOME}; run `make accept`")
    argv = [str(PYTHON), str(CLIENT), url, *words]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(argv, cwd=CLIENT.parent, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def server(log: Path, **told: Any) -> dict[str, Any]:
    """A 2025 server whose tool's task support is `required`."""
    script = {"support": "required", **{name.replace("_", "/"): answers for name, answers in told.items()}}
    args = ["-m", "tests.fakes.task_script", "--log", str(log), json.dumps(script)]
    return {"mcpServers": {"up": {"command": sys.executable, "args": args, "cwd": str(ROOT)}}}


def methods(log: Path) -> list[str]:
    return [json.loads(line)["method"] for line in log.read_text().splitlines()]


def test_agent_framework_lists_and_runs_a_task_only_tool(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    config = server(log, tools_call=[CREATED], tasks_get=[WORKING, DONE], tasks_result=[RESULT])
    with gateway_http(tmp_path, config) as front:
        assert "up__job" in run(front, "list")
        assert run(front, "call", "up__job", '{"of": "sea"}') == "the tide is high"
    assert methods(log).count("tools/call") == 1


def test_call_it_gives_up_is_cancelled_at_the_server(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    config = server(log, tools_call=[CREATED], tasks_get=[WORKING], tasks_cancel=[{"result": {"taskId": "t1", "status": "cancelled"}}])
    with gateway_http(tmp_path, config) as front:
        assert run(front, "cancel", "up__job", "{}") == "cancelled"
    assert methods(log).count("tasks/cancel") == 1
    assert methods(log).count("tools/call") == 1
