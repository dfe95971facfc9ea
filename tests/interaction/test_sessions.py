"""Sessions with agents over MCP: three turns on every path, one call at a time, visible to their caller only, across crashes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.fakes.nursery import sooner
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.running import ROOT, child, free_port, gateway_http, wait_until_ready, write_config
from tests.interaction.place import Place, place_of
from tests.interaction.ways import MODERN, Way, connected

pytestmark = pytest.mark.timeout(60)

SESSION = "dev.moongate/sessionId"
WAYS = [Way(front, era, "agent") for front in ("http", "stdio") for era in ("legacy", "modern")]
ECHO = {"text": "You said: {last_user}", "repeat": True}
FILES = {
    "helper": "description: Helps.\nmodel: openai-chat:scripted",
    "strict": "description: Answers with an object.\nmodel: openai-chat:scripted\n"
    "output: {type: object, properties: {n: {type: integer}}, required: [n]}",
    "alone": "description: Has no sessions.\nmodel: openai-chat:scripted\nhistory: none",
    "short": "description: Forgets soon.\nmodel: openai-chat:scripted\nsession-ttl: 0.2",
}


def config(folder: Path, **settings: Any) -> dict[str, Any]:
    (folder / "agents").mkdir(exist_ok=True)
    for name, header in FILES.items():
        (folder / "agents" / f"{name}.agent.md").write_text(f"---\n{header}\n---\nDo what you are asked.\n")
    return {"expose": {"agents": ["agents"]}, **settings}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[Place]:
    folder = tmp_path_factory.mktemp("sessions")
    with place_of(folder, config(folder, sessions={"waitSeconds": 0.3})) as made:
        yield made


async def say(client: Client, task: str, session_id: str | None = None, agent: str = "helper") -> Any:
    arguments = {"task": task} if session_id is None else {"task": task, "session_id": session_id}
    return await client.call_tool(f"agent__{agent}", arguments)


def id_of(result: Any) -> str:
    assert not result.is_error, result.content
    meta: dict[str, str] = result.meta
    assert result.content[-1].text == f"session_id: {meta[SESSION]}"
    return meta[SESSION]


async def heard_by(model: ScriptedServer) -> list[str]:
    """Return the messages of the last request to the model, without the instructions."""
    messages = (await model.requests())[-1]["body"]["messages"]
    return [f"{message['role']}: {message['content']}" for message in messages if message["role"] != "system"]


async def test_gateway_of_another_configuration_rejects_the_session(place: Place, tmp_path: Path) -> None:
    """Both gateways have the same state folder, the same caller, and an agent of the same name."""
    await place.model.play(ECHO)
    settings = config(place.path.parent, storage={"dir": str(place.path.parent / "gateway-state")})
    settings["expose"] = {"agents": [str(place.path.parent / "agents")]}
    with gateway_http(tmp_path, settings, "other", env=place.env) as url:
        async with connected(WAYS[1], place.url) as (client, _), connected(WAYS[1], url) as (other, _):
            session = id_of(await say(client, "I am Ada.", "new"))
            own = id_of(await say(other, "I am Bob.", "new"))
            refused = [await say(other, "Who am I?", session), await other.call_tool("session_delete", {"session_id": session})]
            assert all(result.is_error and "Unknown session" in getattr(result.content[0], "text", "") for result in refused)
            listed: Any = [(await one.call_tool("session_list", {})).structured_content for one in (client, other)]
            seen = [{found["id"] for found in one["sessions"]} for one in listed]
            assert session in seen[0] and own not in seen[0] and seen[1] == {own}
            assert id_of(await say(client, "Still there?", session)) == session


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_conversation_goes_on_over_three_turns(place: Place, way: Way) -> None:
    await place.model.play(ECHO)
    async with connected(way, place.target(way.front)) as (client, _):
        session = id_of(await say(client, "I am Ada.", "new"))
        for task in ("I like figs.", "Who am I?"):
            result = await say(client, task, session)
            assert (id_of(result), result.content[0].text) == (session, f"You said: {task}")
        assert await heard_by(place.model) == [
            "user: I am Ada.", "assistant: You said: I am Ada.", "user: I like figs.", "assistant: You said: I like figs.",
            "user: Who am I?",
        ]  # fmt: skip
        listed: Any = await client.call_tool("session_list", {"agent": "helper"})
        [mine] = [found for found in listed.structured_content["sessions"] if found["id"] == session]
        assert (mine["agent"], mine["turns"], mine["busy"]) == ("helper", 3, False)
        resource: Any = await client.read_resource(f"session://{session}")
        stored = json.loads(resource.contents[0].text)
        assert stored["id"] == session and len(stored["messages"]) == 6
        deleted: Any = await client.call_tool("session_delete", {"session_id": session})
        assert not deleted.is_error
        assert (await say(client, "Still there?", session)).is_error


async def test_without_a_session_every_task_stands_alone(place: Place) -> None:
    await place.model.play(ECHO)
    async with connected(WAYS[1], place.url) as (client, _):
        for task in ("first", "second"):
            result = await say(client, task)
            assert SESSION not in (result.meta or {}) and len(result.content) == 1
        assert await heard_by(place.model) == ["user: second"]
        schemas = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
    assert schemas["agent__helper"]["required"] == ["task"] and "session_id" in schemas["agent__helper"]["properties"]
    assert "session_id" not in schemas["agent__alone"]["properties"]


async def test_answer_to_a_form_is_kept_in_the_session(place: Place) -> None:
    await place.model.play({"text": '{"n": 1}'}, {"text": "no object"}, {"text": '{"n": 3}'})
    async with connected(WAYS[1], place.url) as (client, _):
        first = await say(client, "one", "new", agent="strict")
        assert first.structured_content == {"n": 1}
        failed = await say(client, "two", id_of(first), agent="strict")
        assert failed.is_error and "not part of the session" in failed.content[-1].text
        third = await say(client, "three", id_of(first), agent="strict")
        assert third.structured_content == {"n": 3}
    assert await heard_by(place.model) == ["user: one", 'assistant: {"n": 1}', "user: three"]


async def test_failed_turn_leaves_the_session_unchanged(place: Place) -> None:
    await place.model.play({"text": "hello"}, {"status": 400, "message": "no"}, {"text": "back"})
    async with connected(WAYS[1], place.url) as (client, _):
        session = id_of(await say(client, "one", "new"))
        assert (await say(client, "two", session)).is_error
        assert id_of(await say(client, "three", session)) == session
    assert await heard_by(place.model) == ["user: one", "assistant: hello", "user: three"]


async def test_session_ids_unknown_and_of_another_agent_differ_for_owner(place: Place) -> None:
    await place.model.play(ECHO)
    async with connected(WAYS[1], place.url) as (client, _):
        for unknown in ("nothing", "0" * 32, "../etc", "nul\0", "half \\ud83d"):
            result = await say(client, "x", unknown)
            assert result.is_error and "Unknown session" in result.content[0].text
        session = id_of(await say(client, "x", "new"))
        other = await say(client, "x", session, agent="strict")
        assert other.is_error and "'helper'" in other.content[0].text
        assert id_of(await say(client, "y", session)) == session


async def test_second_call_on_a_session_waits_and_is_then_rejected_as_busy(place: Place) -> None:
    await place.model.play({"text": "hello"}, {"text": "slow", "hold": "slow", "when": {"contains": "take long"}}, ECHO)
    async with connected(WAYS[1], place.url) as (client, _), connected(WAYS[0], place.url) as (other, _):
        session = id_of(await say(client, "one", "new"))
        answers: list[Any] = []

        async def slow() -> None:
            answers.append(await say(client, "take long", session))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow)
            with anyio.fail_after(20):
                while len(await place.model.requests()) < 2:
                    await anyio.sleep(0.01)
            refused = await say(other, "me too", session)
            assert refused.is_error and "busy" in refused.content[0].text
            await place.model.release("slow")
        assert id_of(answers[0]) == session
        assert id_of(await say(other, "now me", session)) == session
    assert await heard_by(place.model) == [
        "user: one", "assistant: hello", "user: take long", "assistant: slow", "user: now me",
    ]  # fmt: skip


async def test_cancelled_call_releases_its_session(place: Place) -> None:
    await place.model.play({"text": "hello"}, {"text": "never", "fault": "hang"}, ECHO)
    async with connected(WAYS[1], place.url) as (client, _):
        session = id_of(await say(client, "one", "new"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say, client, "two", session)
            with anyio.fail_after(20):
                while len(await place.model.requests()) < 2:
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(20):
            while (result := await say(client, "three", session)).is_error:
                assert "busy" in result.content[0].text
    assert await heard_by(place.model) == ["user: one", "assistant: hello", "user: three"]


async def test_session_is_forgotten_after_its_idle_timeout(place: Place) -> None:
    await place.model.play(ECHO)
    async with connected(WAYS[1], place.url) as (client, _):
        session = id_of(await say(client, "one", "new", agent="short"))
        await anyio.sleep(0.25)
        assert (await say(client, "two", session, agent="short")).is_error
        listed: Any = await client.call_tool("session_list", {})
        assert session not in listed.content[0].text


@asynccontextmanager
async def as_caller(url: str, key: str) -> AsyncGenerator[Client]:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=30) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=MODERN, cache=None) as client:
            yield client


def cli(path: Path, *argv: str) -> Any:
    command, args = sooner("gateway", *argv, "--config", str(path), "--json")
    done = subprocess.run([command, *args], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    return json.loads(done.stdout or done.stderr.splitlines()[-1])


async def test_session_of_another_caller_reads_as_unknown(tmp_path: Path, place: Place) -> None:
    await place.model.play(ECHO)
    settings = config(tmp_path, sessions={"maxPerCaller": 1})
    path = write_config(tmp_path, settings)
    keys = [cli(path, "keys", "add", name)["key"] for name in ("ada", "bob")]
    with gateway_http(tmp_path, settings, env=place.env) as url:
        async with as_caller(url, keys[0]) as ada, as_caller(url, keys[1]) as bob:
            session = id_of(await say(ada, "secret", "new"))
            answers: list[str] = []
            for tried in (session, "f" * 32):
                called, deleted = await say(bob, "x", tried), await bob.call_tool("session_delete", {"session_id": tried})
                assert called.is_error and deleted.is_error
                with pytest.raises(MCPError) as refused:
                    await bob.read_resource(f"session://{tried}")
                answers.append(f"{called.content} {deleted.content} {refused.value.error}".replace(tried, "ID"))
            assert answers[0] == answers[1]
            listed: Any = await bob.call_tool("session_list", {})
            assert json.loads(listed.content[0].text) == {"sessions": [], "total": 0}
            assert id_of(await say(ada, "more", session)) == session
            full = await say(ada, "another", "new")
            assert full.is_error and "session_delete" in full.content[0].text
        shown = cli(path, "sessions", "list")["sessions"]
        assert [(found["id"], found["turns"]) for found in shown] == [(session, 2)] and shown[0]["caller"].startswith("key:")
        assert [message["role"] for message in cli(path, "sessions", "show", session[:8])["messages"]] == ["user", "assistant"] * 2
        assert cli(path, "sessions", "delete", session)["deleted"] == [session]
        assert cli(path, "sessions", "show", session)["error"]["code"] == "not-found"


@pytest.mark.faults
async def test_session_continues_at_next_gateway_after_kill_in_a_turn(tmp_path: Path) -> None:
    with openai_server() as model:
        await model.play({"text": "hello"}, {"text": "never", "hold": "ever"}, ECHO)
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": ""}
        settings = config(tmp_path, storage={"dir": str(tmp_path / "state")})
        port, log = free_port(), tmp_path / "first.log"
        path = write_config(tmp_path, settings, "one")
        with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path), env=env, log=log) as process:
            await anyio.to_thread.run_sync(wait_until_ready, process, f"http://127.0.0.1:{port}/ready", log)
            with gateway_http(tmp_path, settings, "one", env=env) as two:
                session = ""
                with anyio.move_on_after(20):
                    async with connected(WAYS[1], f"http://127.0.0.1:{port}/mcp") as (client, _):
                        session = id_of(await say(client, "one", "new"))
                        async with anyio.create_task_group() as tasks:
                            tasks.start_soon(say, client, "two", session)
                            while len(await model.requests()) < 2:
                                await anyio.sleep(0.01)
                            os.kill(process.pid, signal.SIGKILL)
                            tasks.cancel_scope.cancel()
                async with connected(WAYS[1], two) as (client, _):
                    assert id_of(await say(client, "three", session)) == session
        assert await heard_by(model) == ["user: one", "assistant: hello", "user: three"]
