"""Agents inside a task: turns of a session, and agents elsewhere; their process killed in the middle."""

from __future__ import annotations

import json
import signal
import sqlite3
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from gateway import FunctionTool
from gateway.agents.conversations import SESSION_META_KEY, ConversationLimits, Conversations
from gateway.agents.source import AgentSource
from gateway.chat.model_resolver import ModelResolver
from gateway.config.policies import SourcePolicy
from gateway.json_types import JsonObject
from gateway.server.task_wire import legacy_task, modern_state
from gateway.storage.file_names import DATABASE_FILE
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task
from gateway.tools.base import Complete, Tool, ToolOutcome
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.running import upstream_http
from tests.tasks.dying import Journal, die, in_a_process, running
from tests.workflows.scripted import ScriptedToolBox, guard

pytestmark = pytest.mark.timeout(60)
ASKABLE = CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {"form": {}}})))
HELPER = "---\ndescription: Helps.\nmodel: openai-chat:scripted\ntools: [t/look]\n---\nHelp.\n"


def seen() -> str:
    return "seen"


class DyingAfter:
    """A tool that runs an agent and kills the process before it returns the agent's result."""

    records_steps = True

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self.definition = tool.definition

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        await self._tool.call(arguments, ctx)
        die()
        raise AssertionError


@asynccontextmanager
async def agents(folder: Path, model: str, look: Callable[[], str], *, dies: bool = False) -> AsyncGenerator[TaskRunner]:
    """Run tasks that call the folder's agents, which have the tool `t/look`. If `dies`, the process is killed when an agent has ended."""
    records = Records(StateFolder(folder), audit_days=1)
    models = ModelResolver({"OPENAI_BASE_URL": model, "OPENAI_API_KEY": ""}, None)
    talks = Conversations(records, ConversationLimits(ttl_seconds=60, max_per_caller=9, wait_seconds=5))
    toolbox = ScriptedToolBox()
    toolbox.add("t/look", guard(FunctionTool(look, name="look"), source="t", policy=SourcePolicy(idempotent=["look"])))
    try:
        async with AgentSource([folder], toolbox=toolbox, models=models, environ={}, conversations=talks, base_dir=folder) as source:
            tools = {tool.definition.name: guard(DyingAfter(tool) if dies else tool, source="agent") for tool in await source.tools()}

            async def call(name: str, arguments: JsonObject, ctx: CallContext) -> Complete:
                outcome = await tools[name].call(arguments, ctx)
                assert isinstance(outcome, Complete)
                return outcome

            async with running(folder, call) as runner:
                yield runner
    finally:
        await models.aclose()
        await records.aclose()


async def reached(runner: TaskRunner, task: Task, *statuses: str) -> Task:
    with anyio.fail_after(20):
        while task.status not in statuses:
            task = await runner.wait_for_change(task)
    return task


def rows(folder: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(folder / DATABASE_FILE, timeout=5)) as database:
        found = database.execute(statement).fetchall()
        database.commit()
        return found


def texts(task: Task) -> list[str]:
    assert task.result is not None, task.error
    return [block["text"] for block in task.result["content"]]


# -- sessions --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Generator[ScriptedServer]:
    with openai_server() as server:
        yield server


TURNS: list[JsonObject] = [
    {"when": {"contains": "third"}, "text": "ok third"},
    {"when": {"contains": "second", "last_role": "user"}, "tool_calls": [{"name": "look", "arguments": {}}], "repeat": True},
    {"text": "ok {last_user}", "repeat": True},
]


@pytest.mark.requirement("SE2", 97)
async def test_session_turn_in_a_killed_task_is_stored_once(tmp_path: Path, model: ScriptedServer) -> None:
    (tmp_path / "helper.agent.md").write_text(HELPER)
    await model.play(*TURNS)
    ids = tmp_path / "session"

    async def begin_and_die() -> None:
        async with agents(tmp_path, model.base_url, look=lambda: die() or "") as runner:
            first = await reached(runner, await runner.start("helper", {"task": "first", "session_id": "new"}, ASKABLE), "completed")
            assert first.result is not None
            session = first.result["_meta"][SESSION_META_KEY]
            ids.write_text(session)
            await reached(runner, await runner.start("helper", {"task": "second", "session_id": session}, ASKABLE), "completed")

    assert await anyio.to_thread.run_sync(in_a_process, begin_and_die) == signal.SIGKILL
    [(held,)] = rows(tmp_path, "SELECT held_until FROM sessions")
    assert held > 0
    rows(tmp_path, "UPDATE sessions SET held_until = 1")  # the seconds go by in which the dead call may hold it
    async with agents(tmp_path, model.base_url, look=seen) as runner:
        task = await reached(runner, (await runner.all_of("local"))[1], "completed", "failed", "input_required")
        assert texts(task) == ["ok second", f"session_id: {ids.read_text()}"]
        assert len(await model.requests()) == 3  # no answered model request is sent again
        third = await runner.start("helper", {"task": "third", "session_id": ids.read_text()}, ASKABLE)
        assert texts(await reached(runner, third, "completed"))[0] == "ok third"
    [(turns, held)] = rows(tmp_path, "SELECT turns, held_until FROM sessions")
    assert (turns, held) == (3, 0)


@pytest.mark.requirement("SE2", 97)
@pytest.mark.parametrize("is_new", [pytest.param(True, marks=pytest.mark.faults), False])
async def test_turn_stored_before_the_kill_is_not_stored_again(is_new: bool, tmp_path: Path, model: ScriptedServer) -> None:
    (tmp_path / "helper.agent.md").write_text(HELPER)
    await model.play(TURNS[-1])

    async def turn(said: str, session: str, *, dies: bool = False) -> None:
        async with agents(tmp_path, model.base_url, look=seen, dies=dies) as runner:
            await reached(runner, await runner.start("helper", {"task": said, "session_id": session}, ASKABLE), "completed")

    async def last_turn_and_die() -> None:
        await turn("last", "new" if is_new else rows(tmp_path, "SELECT id FROM sessions")[0][0], dies=True)

    if not is_new:
        await turn("first", "new")
    assert await anyio.to_thread.run_sync(in_a_process, last_turn_and_die) == signal.SIGKILL
    [(session, turns)] = rows(tmp_path, "SELECT id, turns FROM sessions")
    assert turns == (1 if is_new else 2)
    rows(tmp_path, "UPDATE sessions SET held_until = 0")  # the seconds go by in which the dead call may hold it
    async with agents(tmp_path, model.base_url, look=seen) as runner:
        task = await reached(runner, (await runner.all_of("local"))[-1], "completed", "failed")
    assert texts(task) == ["ok last", f"session_id: {session}"]
    assert rows(tmp_path, "SELECT turns, held_until FROM sessions") == [(turns, 0)]


# -- agents elsewhere ------------------------------------------------------------------------------------------------


def remote(folder: Path, line: str) -> None:
    (folder / "far.agent.md").write_text(f"---\ndescription: Runs elsewhere.\nremote: {{{line}}}\n---\n")


async def die_once(is_time: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(20):
        while not await is_time():
            await anyio.sleep(0.02)
    die()


@pytest.mark.requirement(94, 97)
async def test_remote_agent_work_is_followed_after_a_kill(tmp_path: Path) -> None:
    with upstream_http(module="tests.fakes.a2a_agent") as url:
        remote(tmp_path, f"a2a: '{url}'")

        async def begin_and_die() -> None:
            async with agents(tmp_path, url, look=seen) as runner:

                async def is_known() -> bool:
                    return bool(rows(tmp_path, "SELECT 1 FROM task_steps WHERE key LIKE 'kept:%'"))

                await runner.start("far", {"task": "hold the line"}, ASKABLE)
                await die_once(is_known)

        assert await anyio.to_thread.run_sync(in_a_process, begin_and_die) == signal.SIGKILL
        async with agents(tmp_path, url, look=seen) as runner, httpx2.AsyncClient() as http:
            other = await runner.start("far", {"task": "hold for ever"}, ASKABLE)

            async def log() -> dict[str, list[Any]]:
                return (await http.get(f"{url}/log")).json()

            with anyio.fail_after(20):
                while len((await log())["messages"]) < 2:
                    await anyio.sleep(0.02)
            assert (await runner.cancel(other)).status == "cancelled"
            assert len((await log())["cancelled"]) == 1
            await http.post(f"{url}/release")
            task = await reached(runner, (await runner.all_of("local"))[0], "completed", "failed", "input_required")
            assert texts(task) == ["the line"]
            assert [message["text"] for message in (await log())["messages"]] == ["hold the line", "hold for ever"]


@pytest.mark.requirement(96, 97)
async def test_remote_agent_work_survives_a_gateway_stop(tmp_path: Path) -> None:
    with upstream_http(module="tests.fakes.a2a_agent") as url:
        remote(tmp_path, f"a2a: '{url}'")
        async with agents(tmp_path, url, look=seen) as runner:
            await runner.start("far", {"task": "hold the line"}, ASKABLE)
            with anyio.fail_after(20):
                while not rows(tmp_path, "SELECT 1 FROM task_steps WHERE key LIKE 'kept:%'"):
                    await anyio.sleep(0.02)
        async with agents(tmp_path, url, look=seen) as runner, httpx2.AsyncClient() as http:
            await http.post(f"{url}/release")
            task = await reached(runner, (await runner.all_of("local"))[0], "completed", "failed", "input_required")
            assert texts(task) == ["the line"]
            log = (await http.get(f"{url}/log")).json()
            assert ([message["text"] for message in log["messages"]], log["cancelled"]) == (["hold the line"], [])


@pytest.mark.requirement(97)
async def test_remote_agent_question_inside_a_task_is_answered_there(tmp_path: Path) -> None:
    with upstream_http(module="tests.fakes.a2a_agent") as url:
        remote(tmp_path, f"a2a: '{url}'")
        async with agents(tmp_path, url, look=seen) as runner:
            task = await reached(runner, await runner.start("far", {"task": "ask"}, ASKABLE), "input_required")
            await runner.answer(task, {key: {"action": "accept", "content": {"answer": "green"}} for key in task.open_requests})
            assert texts(await reached(runner, task, "completed", "failed")) == ["You like green."]


@contextmanager
def agui_agent(journal: Journal) -> Generator[str]:
    """An AG-UI agent that does not answer the first time."""
    released = threading.Event()

    class Agent(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            journal.write("run")
            if len(journal.lines()) == 1:
                released.wait(30)
                return
            said = [{"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "From afar."}, {"type": "RUN_FINISHED"}]
            body = "".join(f"data: {json.dumps(event)}\n\n" for event in said).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Agent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/agent"
        finally:
            released.set()
            server.shutdown()


@pytest.mark.faults
@pytest.mark.requirement(97)
async def test_in_flight_ag_ui_run_is_not_repeated_without_a_decision(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with agui_agent(journal) as url:
        remote(tmp_path, f"ag-ui: '{url}'")

        async def begin_and_die() -> None:
            async with agents(tmp_path, url, look=seen) as runner:

                async def is_there() -> bool:
                    return bool(journal.lines())

                await runner.start("far", {"task": "go"}, ASKABLE)
                await die_once(is_there)

        assert await anyio.to_thread.run_sync(in_a_process, begin_and_die) == signal.SIGKILL
        async with agents(tmp_path, url, look=seen) as runner:
            task = await reached(runner, (await runner.all_of("local"))[0], "input_required", "completed", "failed")
            ((key, ask),) = task.open_requests.items()
            assert "stopped while 'remote agent' ran" in ask["params"]["message"]
            assert journal.lines() == ["run"]
            await runner.answer(task, {key: {"action": "accept", "content": {"outcome": "retry"}}})
            assert texts(await reached(runner, await runner.find(task.id, "local"), "completed", "failed")) == ["From afar."]
    assert journal.lines() == ["run", "run"]


# -- failing models --------------------------------------------------------------------------------------------------


@pytest.mark.requirement(94, "AG3")
@pytest.mark.parametrize("turn", ["first", "after a tool"])
async def test_failing_model_in_a_task_is_one_error_in_2025_and_2026(
    turn: str, tmp_path: Path, model: ScriptedServer
) -> None:
    (tmp_path / "helper.agent.md").write_text(HELPER)
    refusal: JsonObject = {"status": 401, "error": {"message": "bad key SECRET", "type": "invalid_request_error"}}
    asks: JsonObject = {"tool_calls": [{"name": "look", "arguments": {}}]}
    await model.play(*([refusal] if turn == "first" else [asks, refusal]))
    async with agents(tmp_path, model.base_url, look=seen) as runner:
        task = await reached(runner, await runner.start("helper", {"task": "x"}, ASKABLE), "completed", "failed", "input_required")
        assert (task.status, task.result and task.result["isError"]) == ("completed", True), task.error
        assert "401" in texts(task)[0] or "key" in texts(task)[0]
        assert (modern_state(task)["status"], legacy_task(task)["status"]) == ("completed", "failed")
        await model.play({"text": "well now"})
        assert texts(await reached(runner, await runner.start("helper", {"task": "y"}, ASKABLE), "completed"))[0] == "well now"
