"""Own tools of an agent, such as those of its key `files`, inside a task whose gateway is killed and replaced by another."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.storage.file_names import DATABASE_FILE
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.interaction.wire import over_http
from tests.tasks.test_gateways import start_gateway, stop, until

pytestmark = [pytest.mark.requirement(97), pytest.mark.timeout(120)]

CLERK = """---
name: clerk
description: Keeps files.
model: openai-chat:scripted
files: {root: ../data, access: delete}
context-providers: [work:provider, work:todos]
history: none
task: required
---
Keep them.
"""

WORK = '''
from pathlib import Path

import anyio

from gateway import ContextProvider, FunctionTool, TodoProvider

FOLDER = Path(__file__).parent


def note(name):
    with (FOLDER / "ran.txt").open("a") as file:
        file.write(name + "\\n")


async def pay(amount: int) -> str:
    """Pays, and hangs until the test lets it return."""
    note(f"pay {amount}")
    while not (FOLDER / "go").exists():
        await anyio.sleep(0.02)
    return "paid"


def fail() -> str:
    """Has an effect, then fails."""
    note("fail")
    raise RuntimeError("the reason")


class Provider(ContextProvider):
    async def before_run(self, *, agent, session, context, state):
        context.extend_tools("work", [FunctionTool(pay), FunctionTool(fail)])


def provider():
    return Provider("work")


def todos():
    return TodoProvider()
'''

Call = tuple[str, dict[str, Any]]
SAVE: Call = ("file_access_save_file", {"file_name": "new.txt", "content": "new"})
DELETE: Call = ("file_access_delete_file", {"file_name": "kept.txt"})
READ: Call = ("file_access_read_file", {"file_name": "kept.txt"})
PAY: Call = ("pay", {"amount": 5})
FAIL: Call = ("fail", {})
ADD: Call = ("todos_add", {"todos": [{"title": "buy milk"}]})
TODOS: Call = ("todos_get_all", {})
NOT_REPEATED = "Error: The gateway stopped while {!r} ran. Its outcome is unknown, and it was not repeated."


@pytest.fixture
def model() -> Generator[ScriptedServer]:
    with openai_server() as server:
        yield server


@contextmanager
def gateway(folder: Path, model: ScriptedServer) -> Generator[str]:
    """A gateway process with the agent; it is killed with SIGKILL at the end."""
    own = folder / "own"
    if not own.exists():
        own.mkdir()
        (own / "clerk.agent.md").write_text(CLERK)
        (folder / "work.py").write_text(WORK)
        (folder / "data").mkdir()
        (folder / "data" / "kept.txt").write_text("kept")
    env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": ""}
    process, url = start_gateway(folder, "gateway", {"expose": {"agents": ["own"]}}, **env)
    try:
        yield url
    finally:
        stop(process)


async def script(model: ScriptedServer, *calls: Call, then: str | None = None) -> None:
    """Have the model make these calls in order. Then it answers `then`, or, if that is `None`, never finishes its answer."""
    turns: list[dict[str, Any]] = [{"tool_calls": [{"name": name, "arguments": given}]} for name, given in calls]
    await model.play(*turns, {"fault": "hang"} if then is None else {"text": then})


async def run_until(model: ScriptedServer, url: str, is_time: Callable[[int], bool]) -> str:
    """Start a task of the agent, and wait until `is_time`, which receives the number of model calls. Return the task's id."""
    async with over_http(url, "modern") as wire:
        task_id: str = (await wire.send("tools/call", name="agent__clerk", arguments={"task": "Go."}))["result"]["taskId"]
        with anyio.fail_after(20):
            while not is_time(len(await model.requests())):
                await anyio.sleep(0.05)
        return task_id


async def tool_results(model: ScriptedServer) -> list[str]:
    """The results of tools that the model received with its last call."""
    return [message["content"] for message in (await model.requests())[-1]["body"]["messages"] if message["role"] == "tool"]


def data(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder / "data").iterdir()}


def ran(folder: Path) -> list[str]:
    """Return the names of the provider's functions that ran."""
    noted = folder / "ran.txt"
    return noted.read_text().splitlines() if noted.exists() else []


async def test_finished_own_tools_are_not_repeated_after_a_kill(tmp_path: Path, model: ScriptedServer) -> None:
    await script(model, READ, SAVE, DELETE, FAIL, ADD)
    with gateway(tmp_path, model) as url:
        task_id = await run_until(model, url, lambda calls: calls == 6)
        before = await tool_results(model)
    assert (before[:3], data(tmp_path)) == (["kept", "File 'new.txt' saved.", "File 'kept.txt' deleted."], {"new.txt": "new"})
    (tmp_path / "data" / "new.txt").unlink()
    (tmp_path / "data" / "kept.txt").write_text("kept again by the user")
    await script(model, TODOS, then="done")
    with gateway(tmp_path, model) as url:
        async with over_http(url, "modern") as wire:
            state = await until(wire, task_id, "completed", "failed", "input_required")
    assert (state["status"], state["result"]["content"][0]["text"]) == ("completed", "done")
    after = await tool_results(model)
    assert after[:3] == before[:3] and "failed" in after[3]
    assert "buy milk" in after[5]  # the todo list is part of the run, so it is built again
    assert (data(tmp_path), ran(tmp_path)) == ({"kept.txt": "kept again by the user"}, ["fail"])


@pytest.mark.parametrize("outcome", ["retry", "skip"])
async def test_killed_own_tool_retries_only_after_approval(
    tmp_path: Path, model: ScriptedServer, outcome: str
) -> None:
    await script(model, PAY)
    with gateway(tmp_path, model) as url:
        task_id = await run_until(model, url, lambda calls: bool(ran(tmp_path)))
    (tmp_path / "go").touch()
    await script(model, then="done")
    assert await resume(tmp_path, model, task_id, "pay", outcome) == ["paid" if outcome == "retry" else NOT_REPEATED.format("pay")]
    assert ran(tmp_path) == ["pay 5"] * (2 if outcome == "retry" else 1)


async def test_unrecorded_delete_waits_for_decision(tmp_path: Path, model: ScriptedServer) -> None:
    """The gateway dies after the file was deleted, and before the outcome is recorded."""
    await script(model, DELETE)
    with gateway(tmp_path, model) as url:
        task_id = await run_until(model, url, lambda calls: calls == 2)
    with closing(sqlite3.connect(tmp_path / "gateway-state" / DATABASE_FILE)) as database:
        lost = database.execute("UPDATE task_steps SET is_done = 0, value = 'null' WHERE key LIKE '%file_access_delete_file:%'").rowcount
        database.commit()
    assert lost == 1
    (tmp_path / "data" / "kept.txt").write_text("kept again by the user")
    await script(model, then="done")
    assert await resume(tmp_path, model, task_id, DELETE[0], "skip") == [NOT_REPEATED.format(DELETE[0])]
    assert data(tmp_path) == {"kept.txt": "kept again by the user"}


async def resume(folder: Path, model: ScriptedServer, task_id: str, name: str, outcome: str) -> list[str]:
    """Have another gateway take over the task, answer its question about `name`, and return the tool results that the model received."""
    before = (data(folder), ran(folder))
    with gateway(folder, model) as url:
        async with over_http(url, "modern") as wire:
            state = await until(wire, task_id, "input_required", "completed", "failed")
            assert state["status"] == "input_required", state
            [(key, request)] = state["inputRequests"].items()
            assert f"stopped while {name!r} ran" in request["params"]["message"]
            assert (data(folder), ran(folder)) == before
            answers = {key: {"action": "accept", "content": {"outcome": outcome}}}
            await wire.send("tasks/update", taskId=task_id, inputResponses=answers)
            state = await until(wire, task_id, "completed", "failed")
            assert state["result"]["content"][0]["text"] == "done"
    return await tool_results(model)
