"""Tasks over the wire: configurations of servers with tasks, and functions that start a task and wait for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from tests.fakes.running import ROOT, upstream_http
from tests.interaction.wire import Era, Wire

NAME_ANSWER = {"action": "accept", "content": {"name": "Ada"}}
ERAS: tuple[Era, ...] = ("legacy", "modern")


@contextmanager
def jobs() -> Generator[str]:
    """Start a 2026 server that runs its calls as tasks, and yield its URL."""
    with upstream_http(module="tests.conformance.upstream") as url:
        yield url


def http_server(url: str, **policy: Any) -> dict[str, Any]:
    return {"mcpServers": {"up": {"type": "http", "url": url}}, "policies": {"up": policy}}


def scripted(log: Path, *options: str, **told: Any) -> dict[str, Any]:
    """Return a configuration with a scripted server, whose responses to a method are given by keyword (`tasks_get` for `tasks/get`)."""
    script = {name.replace("_", "/"): answers for name, answers in told.items()}
    args = ["-m", "tests.fakes.task_script", *options, "--log", str(log), json.dumps(script)]
    return {"mcpServers": {"up": {"command": sys.executable, "args": args, "cwd": str(ROOT)}}}


def heard(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


async def until(wire: Wire, task_id: str, *statuses: str) -> dict[str, Any]:
    """Wait until the task has one of these statuses, and return the task."""
    with anyio.fail_after(20):
        while True:
            answer = await wire.send("tasks/get", taskId=task_id)
            if answer["result"]["status"] in statuses:
                return answer["result"]
            await anyio.sleep(0.05)


def text(result: dict[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


async def start(wire: Wire, era: Era, name: str, **arguments: Any) -> dict[str, Any]:
    """Start a call as a task, and return the task from the response."""
    task: dict[str, Any] = {"task": {"ttl": 60_000}} if era == "legacy" else {}
    answer = await wire.send("tools/call", name=name, arguments=arguments, **task)
    assert "result" in answer, answer
    if era == "legacy":
        assert set(answer["result"]) == {"task"}
        return answer["result"]["task"]
    assert answer["result"]["resultType"] == "task"
    return answer["result"]
