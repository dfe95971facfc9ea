"""Clients that have no tasks: a call that takes too long becomes a handle for three small tools, over real processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client

from tests.fakes.running import ROOT, gateway_http
from tests.interaction.ways import MODERN, Way, connected
from tests.interaction.wire import ELICITS, Era, Wire, over_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

FUNCTIONS = """\
import pathlib, time
HERE = pathlib.Path(__file__).parent

def slow(name: str) -> str:
    while not (HERE / f"go-{name}").exists():
        time.sleep(0.02)
    return f"done {name}"

def fails(name: str) -> str:
    raise RuntimeError("no")
"""

FLOW = """\
name: NAME
description: One slow function.
input: {name: {type: string}}
task: SUPPORT
executors:
  one: {python: "handle_functions:slow", arguments: {name: "{{name}}"}}
start: one
output: one
"""
OLD = "2025-06-18"
ERAS: tuple[Era, ...] = ("legacy", "modern")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("handles")


@pytest.fixture(scope="module")
def front(folder: Path) -> Generator[str]:
    """Start a gateway that turns a client's call into a handle after half a second, and yield its URL."""
    (folder / "handle_functions.py").write_text(FUNCTIONS)
    for name, support in (("flow", "optional"), ("must", "required"), ("plain", "never"), ("broken", "optional")):
        text = FLOW.replace("NAME", name).replace("SUPPORT", support)
        (folder / f"{name}.workflow.yaml").write_text(text.replace(":slow", ":fails") if name == "broken" else text)
    form: dict[str, Any] = {"type": "object", "properties": {}}
    asks: dict[str, Any] = {"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": form}}
    script: dict[str, Any] = {
        "tools/call": [{"result": {"resultType": "task", "taskId": "t1", "status": "working"}}],
        "tasks/get": [
            {"result": {"taskId": "t1", "status": "working"}},
            {"result": {"taskId": "t1", "status": "working", "statusMessage": "half way"}},
            {"result": {"taskId": "t1", "status": "input_required", "inputRequests": {"sure": asks}}},
            {"result": {"taskId": "t1", "status": "completed", "result": {"content": [{"type": "text", "text": "deleted"}]}}},
        ],
        "tasks/update": [{"result": {}}],
    }
    args = ["-m", "tests.fakes.task_script", "--modern", "--log", str(folder / "requests.jsonl"), json.dumps(script)]
    config: dict[str, Any] = {
        "mcpServers": {"up": {"command": sys.executable, "args": args, "cwd": str(ROOT)}},
        "expose": {"agents": ["."]},
        "tasks": {"inlineSeconds": 0.5},
    }
    with gateway_http(folder, config) as url:
        yield url


async def result_of(wire: Wire, handle: dict[str, Any]) -> dict[str, Any]:
    return await wire.send("tools/call", name="task_result", arguments={"task_id": handle["taskId"]})


async def status_of(wire: Wire, handle: dict[str, Any]) -> dict[str, Any]:
    return structured(await wire.send("tools/call", name="task_status", arguments={"task_id": handle["taskId"]}))


async def whole(wire: Wire, handle: dict[str, Any]) -> dict[str, Any]:
    """Call `task_result` repeatedly, because each call waits only a while, and return the result of the handle's call."""
    with anyio.fail_after(20):
        while "structuredContent" in (done := await result_of(wire, handle))["result"]:
            pass
    return done["result"]


def structured(answer: dict[str, Any]) -> dict[str, Any]:
    return answer["result"]["structuredContent"]


@pytest.mark.requirement(92, 96)
@pytest.mark.parametrize("era", ERAS)
async def test_call_longer_than_client_wait_continues_under_a_handle(front: str, folder: Path, era: Era) -> None:
    async with over_http(front, era, tasks=False) as wire:
        started = await wire.send("tools/call", name="workflow__flow", arguments={"name": era})
        handle = structured(started)
        assert started["result"]["_meta"]["dev.moongate/task"] == handle
        assert handle["taskId"] in started["result"]["content"][0]["text"]
        assert (handle["status"], handle["tool"], started["result"].get("isError")) == ("working", "workflow__flow", None)
    async with over_http(front, era, tasks=False) as wire:  # the client that made the call is disconnected
        with anyio.fail_after(20):
            while (shown := await status_of(wire, handle)).get("statusMessage") != "one started":
                await anyio.sleep(0.02)
        assert shown["status"] == "working"
        assert structured(await result_of(wire, handle))["taskId"] == handle["taskId"]
        (folder / f"go-{era}").touch()
        done = await whole(wire, handle)
        assert done["content"] == [{"type": "text", "text": f"done {era}"}]
        quick = (await wire.send("tools/call", name="workflow__flow", arguments={"name": era}))["result"]
        if "structuredContent" in quick:  # the call took longer than the gateway lets a client wait
            quick = await whole(wire, quick["structuredContent"])
        assert quick["content"] == done["content"]


@pytest.mark.requirement(94)
async def test_handle_can_be_cancelled_and_is_unknown_to_others(front: str) -> None:
    async with over_http(front, "modern", tasks=False) as wire:
        handle = structured(await wire.send("tools/call", name="workflow__flow", arguments={"name": "never"}))
        for _ in range(2):
            ended = structured(await wire.send("tools/call", name="task_cancel", arguments={"task_id": handle["taskId"]}))
            assert (ended["status"], ended["statusMessage"]) == ("cancelled", "Cancelled")
        gone = await wire.send("tools/call", name="task_result", arguments={"task_id": handle["taskId"]})
        unknown = [await wire.send("tools/call", name=name, arguments={"task_id": "x" * 32}) for name in ("task_status", "task_cancel")]
    assert gone["result"]["content"][0]["text"] == "The task was cancelled."
    assert all(answer["result"]["isError"] and "no such task" in answer["result"]["content"][0]["text"] for answer in unknown)


@pytest.mark.requirement(91, 92)
async def test_task_only_tool_serves_each_client_by_its_capabilities(front: str, folder: Path) -> None:
    (folder / "go-must").touch()
    async with over_http(front, "modern", tasks=False) as modern, over_http(front, "legacy") as legacy:
        assert (await modern.send("tools/call", name="workflow__must", arguments={"name": "must"}))["error"]["code"] == -32021
        assert (await legacy.send("tools/call", name="workflow__must", arguments={"name": "must"}))["error"]["code"] == -32601
    async with over_http(front, "legacy", version=OLD) as old:
        handle = structured(await old.send("tools/call", name="workflow__must", arguments={"name": "must"}))
        done = await old.send("tools/call", name="task_result", arguments={"task_id": handle["taskId"]})
        assert done["result"]["content"] == [{"type": "text", "text": "done must"}]


KINDS: list[tuple[str, Era, bool, str]] = [
    ("modern", "modern", True, "2026-07-28"),
    ("modern without tasks", "modern", False, "2026-07-28"),
    ("legacy", "legacy", False, "2025-11-25"),
    ("older", "legacy", False, OLD),
]


@pytest.mark.requirement(91, 92)
async def test_never_task_tool_is_a_plain_call_for_every_client(front: str, folder: Path) -> None:
    kinds: dict[str, Any] = {}
    listed: dict[str, Any] = {}

    async def ask(kind: str, wire: Wire, **task: Any) -> None:
        kinds[kind] = await wire.send("tools/call", name="workflow__plain", arguments={"name": "plain"}, **task)

    async with AsyncExitStack() as stack, anyio.create_task_group() as calls:
        for kind, era, tasks, version in KINDS:
            wire = await stack.enter_async_context(over_http(front, era, tasks=tasks, version=version))
            calls.start_soon(ask, kind, wire)
        legacy = await stack.enter_async_context(over_http(front, "legacy"))
        await ask("legacy with task", legacy, task={})
        listed |= {tool["name"]: tool.get("execution") for tool in (await legacy.send("tools/list"))["result"]["tools"]}
        await anyio.sleep(0.8)  # longer than the time after which other calls become handles
        assert set(kinds) == {"legacy with task"}
        (folder / "go-plain").touch()
        with anyio.fail_after(20):
            while len(kinds) < 5:
                await anyio.sleep(0.02)
    assert kinds.pop("legacy with task")["error"]["code"] == -32601
    assert {kind: answer["result"]["content"][0]["text"] for kind, answer in kinds.items()} == {kind: "done plain" for kind, *_ in KINDS}
    support = [listed[f"workflow__{name}"] for name in ("plain", "flow", "must")]
    assert support == [None, {"taskSupport": "optional"}, {"taskSupport": "required"}]


@pytest.mark.requirement(91, 92)
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("tool", "is_error"), [("flow", False), ("must", False), ("broken", True)])
async def test_clients_with_tasks_get_a_task_and_failure_in_their_protocol(
    front: str, folder: Path, era: Era, tool: str, is_error: bool
) -> None:
    (folder / "go-quick").touch()
    task: dict[str, Any] = {"task": {}} if era == "legacy" else {}
    async with over_http(front, era) as wire:
        made = (await wire.send("tools/call", name=f"workflow__{tool}", arguments={"name": "quick"}, **task))["result"]
        task_id = made["task"]["taskId"] if era == "legacy" else made["taskId"]
        with anyio.fail_after(20):
            while (state := (await wire.send("tasks/get", taskId=task_id))["result"])["status"] == "working":
                await anyio.sleep(0.02)
        result = state["result"] if era == "modern" else (await wire.send("tasks/result", taskId=task_id))["result"]
    assert state["status"] == ("failed" if is_error and era == "legacy" else "completed")
    assert bool(result.get("isError")) == is_error
    assert ("'fails' failed" if is_error else "done quick") in result["content"][0]["text"]


async def test_waiting_client_gets_progress_that_work_continues(front: str, folder: Path) -> None:
    heard: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    async with Client(front, mode=MODERN) as client:
        result: Any = await client.call_tool("workflow__flow", {"name": "heard"}, progress_callback=note)
        (folder / "go-heard").touch()
        done: Any = await client.call_tool("task_result", {"task_id": result.structured_content["taskId"]})
    assert len(heard) >= 2  # the workflow's progress and the gateway's heartbeats
    assert {message for _, message in heard if message and not message.startswith("Still running")} == {"one started"}
    assert [number for number, _ in heard] == sorted({number for number, _ in heard})
    assert done.content[0].text == "done heard"


@pytest.mark.requirement(89)
async def test_task_elicitation_reaches_person_waiting_for_its_result(front: str, folder: Path) -> None:
    async with connected(Way("http", "modern", "up"), front) as (client, told):
        result: Any = await client.call_tool("up__job", {})
        with anyio.fail_after(20):
            while result.structured_content is not None:
                result = await client.call_tool("task_result", {"task_id": result.structured_content["taskId"]})
    assert [params.message for params in told.asked] == ["Server 'up' asks:\n│ Sure?"]
    assert result.content[0].text == "deleted"
    sent = [json.loads(line)["method"] for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert sent.count("tools/call") == 1


async def test_task_tools_are_listed_only_if_some_tool_can_become_a_task(front: str, tmp_path: Path) -> None:
    with gateway_http(tmp_path, {}) as bare:
        for url, listed in ((front, True), (bare, False)):
            async with over_http(url, "modern", capabilities=ELICITS) as wire:
                names = {tool["name"] for tool in (await wire.send("tools/list"))["result"]["tools"]}
                assert ({"task_status", "task_result", "task_cancel"} <= names, "task_status" in names) == (listed, listed)
