"""Questions with equal words over real gateways that are killed, for clients of both dialects of tasks."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.fakes.running import ROOT
from tests.interaction.wire import Era, HttpWire, over_http
from tests.tasks.test_gateways import requests, start_gateway, stop

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.fault(3)]
SECONDS = 40
LONG = pytest.mark.faults
"""Marks tests that only `make faults` runs."""

Choose = Callable[[str], dict[str, Any] | None]
"""Returns the content of the answer to a question with this text, or `None` to leave the question open."""


@dataclass
class Person:
    """Answers the questions of one task through a client of either dialect, one at a time."""

    wire: HttpWire
    asked: list[str] = field(default_factory=lambda: list[str]())
    """The text of each question that was shown."""

    async def start(self, name: str) -> str:
        """Start a task and return its id."""
        task: dict[str, Any] = {"task": {}} if self.wire.era == "legacy" else {}
        result = (await self.wire.send("tools/call", name=name, arguments={}, **task))["result"]
        return (result["task"] if self.wire.era == "legacy" else result)["taskId"]

    async def answer(self, task_id: str, choose: Choose) -> dict[str, Any]:
        """Answer until the task has ended or `choose` has no answer. Return the result, which is empty in the second case."""
        with anyio.fail_after(SECONDS):
            return await (self._modern if self.wire.era == "modern" else self._legacy)(task_id, choose)

    async def _modern(self, task_id: str, choose: Choose) -> dict[str, Any]:
        known: set[str] = set()
        while True:
            state = (await self.wire.send("tasks/get", taskId=task_id))["result"]
            if state["status"] in ("completed", "failed", "cancelled"):
                return state.get("result") or state
            questions: dict[str, Any] = state.get("inputRequests") or {}
            for key, request in questions.items():
                if key in known:
                    continue
                known.add(key)
                self.asked.append(request["params"]["message"])
                if (content := choose(self.asked[-1])) is None:
                    return {}
                response = {key: {"action": "accept", "content": content}}
                await self.wire.send("tasks/update", taskId=task_id, inputResponses=response)
            await anyio.sleep(0.05)

    async def _legacy(self, task_id: str, choose: Choose) -> dict[str, Any]:
        """Answer the questions of a 2025 task, which arrive on the open stream of `tasks/result`."""
        headers = {"Accept": "application/json, text/event-stream", **self.wire.headers}
        body = {"jsonrpc": "2.0", "id": 7, "method": "tasks/result", "params": {"taskId": task_id}}
        async with self.wire.http.stream("POST", self.wire.url, headers=headers, json=body) as stream:
            async for line in stream.aiter_lines():
                message: dict[str, Any] = json.loads(line.removeprefix("data: ")) if "{" in line else {}
                if message.get("method") == "elicitation/create":
                    self.asked.append(message["params"]["message"])
                    if (content := choose(self.asked[-1])) is None:
                        return {}
                    answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"action": "accept", "content": content}}
                    await self.wire.http.post(self.wire.url, headers=headers, json=answer)
                elif message.get("id") == 7:
                    return message.get("result") or message["error"]
        raise AssertionError("the stream ended without a result")


@asynccontextmanager
async def person(folder: Path, config: dict[str, Any], era: Era) -> AsyncGenerator[tuple[Person, Callable[[], None]]]:
    """Start a gateway, and yield a client of the gateway and a function that kills the gateway."""
    process, url = start_gateway(folder, "gateway", config)
    try:
        async with over_http(url, era) as wire:
            wire.http.timeout = httpx2.Timeout(SECONDS)
            yield Person(wire), lambda: stop(process)
    finally:
        stop(process)


FUNCTIONS = """\
import pathlib, time
HERE = pathlib.Path(__file__).parent

def note(line):
    with (HERE / "journal").open("a") as file:
        file.write(line + "\\n")

def ship(x: str) -> str:
    note(f"ship {x}")
    while not (HERE / "go").exists():
        time.sleep(0.02)
    return "shipped"

def sell(x: str) -> str:
    note(f"sell {x}")
    return "sold"
"""
FLOW = """\
name: release
description: Two questions.
task: required
executors:
  first: {ask: "Release now?"}
  ship: {python: "release_functions:ship", arguments: {x: "{{first}}"}}
  second: {ask: "Release now?"}
  sell: {python: "release_functions:sell", arguments: {x: "{{second}}"}}
start: first
edges: [{from: first, to: ship}, {from: ship, to: second}, {from: second, to: sell}]
"""


def has(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


async def begun(folder: Path, config: dict[str, Any], era: Era, tool: str, content: dict[str, str], *, until: tuple[Path, str]) -> str:
    """Start a task, answer its question, kill the gateway when the file in `until` contains the text, and return the task's id."""
    async with person(folder, config, era) as (ada, kill), anyio.create_task_group() as tasks:
        task_id = await ada.start(tool)

        def choose(text: str) -> dict[str, Any]:
            return content

        tasks.start_soon(ada.answer, task_id, choose)
        with anyio.fail_after(SECONDS):
            while not has(*until):
                await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
        kill()
        return task_id
    raise AssertionError


@pytest.mark.parametrize("era", ["modern", pytest.param("legacy", marks=LONG)])
async def test_second_of_two_equal_questions_is_shown_after_a_kill(era: Era, tmp_path: Path) -> None:
    (tmp_path / "release_functions.py").write_text(FUNCTIONS)
    (tmp_path / "release.workflow.yaml").write_text(FLOW)
    config: dict[str, Any] = {"expose": {"agents": ["."]}}
    journal = tmp_path / "journal"
    task_id = await begun(tmp_path, config, era, "workflow__release", {"answer": "the first"}, until=(journal, "ship the first"))
    (tmp_path / "go").touch()
    async with person(tmp_path, config, era) as (ada, _):
        result = await ada.answer(task_id, lambda text: {"answer": "the second"} if text.endswith("Release now?") else {"outcome": "retry"})
        assert [text.rpartition("│ ")[2].partition(" while")[0] for text in ada.asked] == ["The gateway stopped", "Release now?"]
    assert result["content"][0]["text"] == "sold"
    assert journal.read_text().splitlines() == ["ship the first", "ship the first", "sell the second"]


def asks(then: str = "") -> dict[str, Any]:
    """Return a script for a call: the server sends an elicitation first, and then returns the result or hangs."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    request = {"method": "elicitation/create", "params": {"message": "Delete all?", "requestedSchema": schema}}
    return {"ask": request, "then": then, "result": {"content": [{"type": "text", "text": "deleted"}]}}


@pytest.mark.parametrize("era", [pytest.param("modern", marks=LONG), "legacy"])
async def test_question_of_a_retried_call_is_elicited_again(era: Era, tmp_path: Path) -> None:
    """A server's question ends with the call in which it was asked."""
    log = tmp_path / "requests.jsonl"
    told = json.dumps({"tools/call": [asks("hang"), asks()]})
    config: dict[str, Any] = {
        "mcpServers": {
            "up": {"command": sys.executable, "args": ["-m", "tests.fakes.task_script", "--log", str(log), told], "cwd": str(ROOT)}
        },
        "policies": {"up": {"idempotent": ["job"], "tasks": {"promote": ["*"]}}},
    }
    task_id = await begun(tmp_path, config, era, "up__job", {"name": "first"}, until=(log, '"first"'))
    async with person(tmp_path, config, era) as (ada, _):
        result = await ada.answer(task_id, lambda text: {"name": "second"})
        assert len(ada.asked) == 1
    assert result["content"][0]["text"] == "deleted"
    answers = [entry["params"]["content"]["name"] for entry in requests(log) if entry["method"] == "answer"]
    assert answers == ["first", "second"]


async def test_question_of_a_followed_task_is_answered_once(tmp_path: Path) -> None:
    """The server's task outlives the kill and still shows its question: it gets the recorded answer."""
    log = tmp_path / "requests.jsonl"
    task: dict[str, Any] = {"taskId": "t1", "status": "working"}
    waiting = {"result": {**task, "status": "input_required", "inputRequests": {"confirm": asks()["ask"]}}}
    done = {"result": {**task, "status": "completed", "result": asks()["result"]}}
    told = json.dumps(
        {
            "tools/call": [{"result": {**task, "resultType": "task"}}],
            "tasks/get": [*[waiting] * 8, done],
            "tasks/update": [{"result": {}}],
        }
    )
    args = ["-m", "tests.fakes.task_script", "--modern", "--log", str(log), told]
    config: dict[str, Any] = {"mcpServers": {"up": {"command": sys.executable, "args": args, "cwd": str(ROOT)}}}
    task_id = await begun(tmp_path, config, "legacy", "up__job", {"name": "first"}, until=(log, "tasks/update"))
    async with person(tmp_path, config, "legacy") as (ada, _):
        result = await ada.answer(task_id, lambda text: {"name": "second"})
        assert ada.asked == []
    assert result["content"][0]["text"] == "deleted"
    updates = [entry["params"]["inputResponses"] for entry in requests(log) if entry["method"] == "tasks/update"]
    assert [update["confirm"]["content"]["name"] for update in updates] == ["first", "first"]


ASKS = """\
name: asks
description: Asks for a number.
task: required
executors:
  count: {ask: "How many?", output: {count: {type: integer}}}
start: count
"""


async def test_wrong_answer_before_a_kill_leaves_the_question_open(tmp_path: Path) -> None:
    (tmp_path / "asks.workflow.yaml").write_text(ASKS)
    config = {"expose": {"agents": ["."]}}

    def wrong_once(message: str) -> dict[str, Any] | None:
        return None if "cannot be used" in message else {"count": "many"}

    async with person(tmp_path, config, "legacy") as (old, kill):
        task_id = await old.start("workflow__asks")
        assert await old.answer(task_id, wrong_once) == {}
        first, again = old.asked
        assert first in again and "field 'count'" in again
        kill()
    async with person(tmp_path, config, "modern") as (new, _):
        with anyio.fail_after(SECONDS):
            while (state := (await new.wire.send("tasks/get", taskId=task_id))["result"])["status"] != "input_required":
                await anyio.sleep(0.1)
        [key] = state["inputRequests"]
        wrong = {key: {"action": "accept", "content": {"count": "many"}}}
        refused = await new.wire.send("tasks/update", taskId=task_id, inputResponses=wrong)
        assert refused["error"]["code"] == -32602 and "field 'count'" in refused["error"]["message"]
        done = await new.answer(task_id, lambda message: {"count": 3})
    assert done["structuredContent"] == {"count": 3}
