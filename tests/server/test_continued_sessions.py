"""A 2025 session that one replica of a gateway opened is continued by every other replica: two processes with one database."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from gateway.server.sealed_sessions import MAX_ID
from tests.fakes.postgres import postgres
from tests.fakes.running import ROOT, upstream_stdio
from tests.fakes.shared_gateways import SharedGateways
from tests.interaction.wire import Wire, over_http
from tests.tasks.test_gateways import stop

pytestmark = pytest.mark.timeout(90)

BOTH = "application/json, text/event-stream"
SKILL = "---\nname: notes\ndescription: Notes of the team.\n---\nRead the notes.\n"
URI = "skill://notes/SKILL.md"
ELICITS: dict[str, Any] = {"elicitation": {"form": {}}}
ASKED = {"action": "accept", "content": {"name": "Ada"}}


class Replicas(SharedGateways):
    """Gateways with two servers and a skill."""

    http: httpx2.AsyncClient

    def start(self, **http: Any) -> None:
        self.start_with(
            {
                "mcpServers": {"up": upstream_stdio("--legacy"), "late": upstream_stdio()},
                "policies": {"up": {"sampling": {"mode": "relay"}}, "late": {"disclosure": "on-demand"}},
                "expose": {"skills": [str(self.folder / "skills")]},
                "server": {"http": {"drainSeconds": 1, **http}},
            }
        )

    async def post(self, replica: int, message: dict[str, Any], session: str = "", **headers: str) -> httpx2.Response:
        given = {"accept": BOTH, **({"mcp-session-id": session} if session else {}), **headers}
        return await self.http.post(self.urls[replica], json={"jsonrpc": "2.0", **message}, headers=given)

    async def open(self, replica: int, capabilities: dict[str, Any] | None = None) -> str:
        hello = {"protocolVersion": "2025-11-25", "capabilities": capabilities or {}, "clientInfo": {"name": "c", "version": "1"}}
        answer = await self.post(replica, {"id": 0, "method": "initialize", "params": hello})
        session = answer.headers["mcp-session-id"]
        assert (await self.post(replica, {"method": "notifications/initialized"}, session)).status_code == 202
        return session


@contextmanager
def _database(kind: str, folder: Path) -> Generator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder}/shared.db"
        return
    with postgres() as server:
        yield server.database("replicas")


@contextmanager
def started(kind: str, folder: Path) -> Generator[Replicas]:
    (folder / "skills" / "notes").mkdir(parents=True)
    (folder / "skills" / "notes" / "SKILL.md").write_text(SKILL)
    with _database(kind, folder) as database:
        made = Replicas(folder, database)
        try:
            made.start()
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=[pytest.mark.fleet, pytest.mark.postgres])])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Replicas]:
    with started(request.param, tmp_path_factory.mktemp("pair")) as made:
        yield made


@pytest.fixture
async def replicas(pair: Replicas) -> AsyncGenerator[Replicas]:
    async with httpx2.AsyncClient(timeout=20) as pair.http:
        yield pair


@pytest.fixture
async def mortals(tmp_path: Path) -> AsyncGenerator[Replicas]:
    """Two replicas that the test may kill."""
    with ExitStack() as stack:
        made = await anyio.to_thread.run_sync(stack.enter_context, started("sqlite", tmp_path))
        async with httpx2.AsyncClient(timeout=20) as made.http:
            yield made


async def test_session_is_served_by_every_replica_in_turn(replicas: Replicas) -> None:
    session = await replicas.open(0)
    for number in range(1, 9):
        listed = await replicas.post(number % 2, {"id": number, "method": "tools/list"}, session)
        assert listed.status_code == 200, listed.text
        assert "search_skills" in listed.text
        call: dict[str, Any] = {"name": "load_skill", "arguments": {"skill_name": "notes"}}
        called = await replicas.post(number % 2, {"id": 100 + number, "method": "tools/call", "params": call}, session)
        assert "Read the notes." in called.text


async def test_clients_reopen_broken_streams_at_random_times(replicas: Replicas) -> None:
    delays: set[int] = set()
    for number in range(8):
        given = {"accept": "text/event-stream", "mcp-session-id": await replicas.open(0)}
        async with replicas.http.stream("GET", replicas.urls[number % 2], headers=given) as stream:
            field, _, value = (await anext(stream.aiter_lines())).partition(": ")
            assert field == "retry"
            delays.add(int(value))
    assert all(1_000 <= delay <= 5_000 for delay in delays)
    assert len(delays) > 4


LONG: dict[str, Any] = {"experimental": {"x": {"y": "z" * MAX_ID}}}
"""Client capabilities that do not fit into a session id."""


async def test_requests_of_a_session_with_a_long_handshake_reach_its_replica(replicas: Replicas) -> None:
    session = await replicas.open(0, LONG)
    assert len(session) < 100
    call: dict[str, Any] = {"name": "load_skill", "arguments": {"skill_name": "notes"}}
    for number in range(4):
        assert "search_skills" in (await replicas.post(number % 2, {"id": number, "method": "tools/list"}, session)).text
        called = await replicas.post(number % 2, {"id": 100 + number, "method": "tools/call", "params": call}, session)
        assert "Read the notes." in called.text
    given = {"accept": "text/event-stream", "mcp-session-id": session}
    async with replicas.http.stream("GET", replicas.urls[1], headers=given) as stream:
        assert stream.status_code == 200
        second = await replicas.http.get(replicas.urls[0], headers=given)
    assert second.status_code == 409  # the forwarded stream is the session's stream
    assert (await replicas.http.delete(replicas.urls[1], headers=given)).status_code == 200
    for number in range(2):
        assert (await replicas.post(number, {"id": 9, "method": "tools/list"}, session)).status_code == 404


async def test_session_with_a_long_handshake_ends_with_its_replica(mortals: Replicas) -> None:
    session = await mortals.open(0, LONG)
    assert (await mortals.post(1, {"id": 1, "method": "tools/list"}, session)).status_code == 200
    stop(mortals.processes[0])
    with anyio.fail_after(20):
        while (answer := await mortals.post(1, {"id": 1, "method": "tools/list"}, session)).status_code != 404:
            assert answer.status_code == 503
            await anyio.sleep(0.2)


async def test_request_that_needs_the_sdk_is_served_by_the_other_replica(replicas: Replicas) -> None:
    session = await replicas.open(0)
    read = await replicas.post(1, {"id": 1, "method": "resources/read", "params": {"uri": URI}}, session)
    assert read.status_code == 200
    assert "Read the notes." in read.text


@pytest.mark.fleet
async def test_session_and_waiting_call_of_a_killed_replica(mortals: Replicas) -> None:
    session = await mortals.open(0)
    async with over_http(mortals.urls[0], "modern", tasks=False) as first, over_http(mortals.urls[1], "modern", tasks=False) as second:
        asked = (await first.send("tools/call", name="up__ask_name", arguments={}))["result"]
        stop(mortals.processes[0])
        (key,) = asked["inputRequests"]
        answers = {"inputResponses": {key: ASKED}, "requestState": asked["requestState"]}
        done = await second.send("tools/call", name="up__ask_name", arguments={}, **answers)
        assert "Send it again without `requestState`" in json.dumps(done)
    listed = await mortals.post(1, {"id": 1, "method": "tools/list"}, session)
    assert listed.status_code == 200
    assert listed.headers["mcp-session-id"] == session


async def test_session_that_the_client_ended_is_gone_at_every_replica(replicas: Replicas) -> None:
    session = await replicas.open(0)
    assert (await replicas.post(1, {"id": 1, "method": "ping"}, session)).status_code == 200
    ended = await replicas.http.delete(replicas.urls[0], headers={"mcp-session-id": session})
    assert ended.status_code in (200, 204)
    assert (await replicas.post(0, {"id": 2, "method": "ping"}, session)).status_code == 404
    with anyio.fail_after(1.5):  # the change takes effect at the other replica within a second
        while (await replicas.post(1, {"id": 3, "method": "ping"}, session)).status_code != 404:
            await anyio.sleep(0.05)


async def test_ended_session_is_not_opened_by_a_replica_that_never_served_it(replicas: Replicas) -> None:
    session = await replicas.open(0)
    assert (await replicas.http.delete(replicas.urls[0], headers={"mcp-session-id": session})).status_code in (200, 204)
    assert (await replicas.post(1, {"id": 2, "method": "ping"}, session)).status_code == 404


async def test_session_ended_at_a_replica_that_does_not_know_it_is_gone_at_its_own(replicas: Replicas) -> None:
    session = await replicas.open(0)
    ended = await replicas.http.delete(replicas.urls[1], headers={"mcp-session-id": session})
    assert ended.status_code in (200, 204)
    with anyio.fail_after(1.5):
        while (await replicas.post(0, {"id": 3, "method": "ping"}, session)).status_code != 404:
            await anyio.sleep(0.05)


async def test_subscription_at_one_replica_notifies_on_the_stream_at_the_other(replicas: Replicas) -> None:
    session = await replicas.open(0)
    headers = {"mcp-session-id": session, "accept": "text/event-stream"}
    async with _stream(replicas, headers) as lines:
        watch = await replicas.post(1, {"id": 1, "method": "resources/subscribe", "params": {"uri": URI}}, session)
        assert watch.status_code == 200
        assert "error" not in watch.text
        await anyio.sleep(1)
        (replicas.folder / "skills" / "notes" / "SKILL.md").write_text(f"{SKILL}{time.time_ns()}\n")
        with anyio.fail_after(20):
            async for line in lines:
                if "resources/updated" in line:
                    assert json.loads(line.removeprefix("data: "))["params"] == {"uri": URI}
                    break


@asynccontextmanager
async def _stream(replicas: Replicas, headers: dict[str, str]) -> AsyncGenerator[AsyncIterator[str]]:
    async with replicas.http.stream("GET", replicas.urls[0], headers=headers) as stream:
        assert stream.status_code == 200
        yield stream.aiter_lines()


async def test_forged_and_foreign_session_ids_open_nothing(replicas: Replicas) -> None:
    session = await replicas.open(0)
    swapped = session[:40] + ("A" if session[40] != "A" else "B") + session[41:]
    for forged in (swapped, session[:30], "s." + "A" * 400, "s.", "s.ä", session + "x"):
        answer = await replicas.http.post(
            replicas.urls[1],
            json={"jsonrpc": "2.0", "id": 1, "method": "ping"},
            headers=[(b"accept", BOTH.encode()), (b"mcp-session-id", forged.encode("latin-1"))],
        )
        assert answer.status_code in (400, 404), forged


async def test_answer_to_a_question_reaches_the_replica_that_asked(replicas: Replicas) -> None:
    session = await replicas.open(0, ELICITS)
    call: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "up__ask_name", "arguments": {}}}
    headers = {"mcp-session-id": session, "accept": BOTH}
    with anyio.fail_after(30):
        async with replicas.http.stream("POST", replicas.urls[0], json=call, headers=headers) as stream:
            messages = _messages(stream)
            question = await anext(messages)
            assert question["method"] == "elicitation/create"
            answered = await replicas.post(1, {"id": question["id"], "result": ASKED}, session)
            assert answered.status_code == 202, answered.text
            async for message in messages:
                if message.get("id") == 7:
                    assert "Ada" in json.dumps(message["result"])
                    break


async def test_retry_with_the_answers_reaches_the_replica_that_waits(replicas: Replicas) -> None:
    async with over_http(replicas.urls[0], "modern", tasks=False) as first, over_http(replicas.urls[1], "modern", tasks=False) as second:
        asked = (await first.send("tools/call", name="up__ask_name", arguments={}))["result"]
        assert asked["resultType"] == "input_required"
        (key,) = asked["inputRequests"]
        answers = {"inputResponses": {key: ASKED}, "requestState": asked["requestState"]}
        done = await second.send("tools/call", name="up__ask_name", arguments={}, **answers)
        assert "Ada" in json.dumps(done["result"])


async def test_cancellation_reaches_the_replica_that_runs_the_call(replicas: Replicas) -> None:
    session = await replicas.open(0, ELICITS)
    call: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "up__ask_name", "arguments": {}}}
    headers = {"mcp-session-id": session, "accept": BOTH}
    with anyio.fail_after(30):
        async with replicas.http.stream("POST", replicas.urls[0], json=call, headers=headers) as stream:
            messages = _messages(stream)
            await anext(messages)
            cancel = {"method": "notifications/cancelled", "params": {"requestId": 7}}
            assert (await replicas.post(1, cancel, session)).status_code == 202
            async for message in messages:
                assert message.get("id") != 7 or "error" in message


@pytest.mark.fleet
async def test_stream_is_continued_at_another_replica(replicas: Replicas) -> None:
    session = await replicas.open(0)
    headers = {"mcp-session-id": session, "accept": "text/event-stream"}
    await replicas.post(0, {"id": 1, "method": "resources/subscribe", "params": {"uri": URI}}, session)
    last = ""
    with anyio.fail_after(40):
        async with _stream(replicas, headers) as lines:
            await anyio.sleep(1)
            (replicas.folder / "skills" / "notes" / "SKILL.md").write_text(f"{SKILL}{time.time_ns()}\n")
            async for line in lines:
                last = line.removeprefix("id: ") if line.startswith("id: ") else last
                if "resources/updated" in line:
                    break
        (replicas.folder / "skills" / "notes" / "SKILL.md").write_text(f"{SKILL}{time.time_ns()}\n")
        await anyio.sleep(3)  # the client is away while the second notification is made
        again = {**headers, "last-event-id": last}
        async with replicas.http.stream("GET", replicas.urls[1], headers=again) as stream:
            assert stream.status_code == 200
            async for line in stream.aiter_lines():
                if "resources/updated" in line:
                    break


@pytest.mark.fault(5)
async def test_call_of_a_stopping_replica_is_continued_at_another(mortals: Replicas) -> None:
    arguments = ["-m", "tests.fakes.counting_upstream", str(mortals.folder), "slow", "1"]
    servers = {"slow": {"command": sys.executable, "args": arguments, "cwd": str(ROOT)}}
    await anyio.to_thread.run_sync(mortals.start_with, {"mcpServers": servers, "server": {"http": {"drainSeconds": 20}}})
    session = await mortals.open(2)
    headers = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25", "accept": BOTH}
    call: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "slow__wait", "arguments": {}}}
    with anyio.fail_after(40):
        async with mortals.http.stream("POST", mortals.urls[2], json=call, headers=headers) as stream:
            first = await anext(stream.aiter_lines())
        await anyio.sleep(0.3)  # the gateway notices that the stream is lost
        mortals.processes[2].send_signal(signal.SIGTERM)
        await anyio.sleep(1)
        again = {**headers, "accept": "text/event-stream", "last-event-id": first.removeprefix("id: ")}
        async with mortals.http.stream("GET", mortals.urls[1], headers=again) as stream:
            await anyio.sleep(2)
            (mortals.folder / "go").touch()
            messages = [message async for message in _messages(stream)]
        assert [(message["id"], "result" in message) for message in messages] == [(7, True)]
        while mortals.processes[2].poll() is None:
            await anyio.sleep(0.1)
    assert mortals.processes[2].returncode == 0


async def _until_late(names: Callable[[], Awaitable[str]], expected: set[str]) -> None:
    """Wait until the listed on-demand tools are `expected`, which takes at most a second at the other replica."""
    with anyio.fail_after(1.5):
        while (found := set(re.findall(r"late__\w+", await names()))) != expected:
            assert found <= expected | {"late__echo", "late__add"}
            await anyio.sleep(0.05)


async def test_tools_loaded_at_one_replica_are_listed_by_the_other(replicas: Replicas) -> None:
    async with over_http(replicas.urls[0], "modern", tasks=False) as first, over_http(replicas.urls[1], "modern", tasks=False) as second:

        async def change(wire: Wire, tool: str, *names: str) -> None:
            done = await wire.send("tools/call", name=tool, arguments={"names": list(names)})
            assert not done["result"].get("isError"), done

        async def names(wire: Wire) -> str:
            return json.dumps([tool["name"] for tool in (await wire.send("tools/list"))["result"]["tools"]])

        with anyio.fail_after(20):
            while "late__add" not in json.dumps(await second.send("tools/call", name="list_tools", arguments={})):
                await anyio.sleep(0.1)
        await change(first, "load_tools", "late__echo")
        await _until_late(lambda: names(second), {"late__echo"})
        await change(second, "load_tools", "late__add")
        await _until_late(lambda: names(first), {"late__echo", "late__add"})
        await change(first, "unload_tools", "late__echo")
        await _until_late(lambda: names(second), {"late__add"})
        await change(second, "unload_tools", "late__add")
        for wire in (first, second):
            await _until_late(partial(names, wire), set())


async def test_tools_that_a_session_loads_follow_it_to_the_other_replica(replicas: Replicas) -> None:
    session, other = await replicas.open(0), await replicas.open(0)
    call: dict[str, Any] = {"name": "load_tools", "arguments": {"names": ["late__echo"]}}
    with anyio.fail_after(20):
        while "Loaded: late__echo" not in (await replicas.post(0, {"id": 1, "method": "tools/call", "params": call}, session)).text:
            await anyio.sleep(0.1)

    async def names(replica: int, of: str) -> str:
        return (await replicas.post(replica, {"id": 2, "method": "tools/list"}, of)).text

    await _until_late(lambda: names(1, session), {"late__echo"})
    for replica in (0, 1):
        assert "late__" not in await names(replica, other)


async def _messages(stream: httpx2.Response) -> AsyncGenerator[dict[str, Any]]:
    async for line in stream.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


@pytest.mark.fleet
async def test_session_of_a_replica_without_fast_path_is_continued(mortals: Replicas) -> None:
    await anyio.to_thread.run_sync(lambda: mortals.start(directPath="off"))
    session = await mortals.open(2)
    assert session.startswith("s.")
    for replica in (2, 0, 2, 1):
        assert "search_skills" in (await mortals.post(replica, {"id": 1, "method": "tools/list"}, session)).text
    other = await mortals.open(1)
    assert "search_skills" in (await mortals.post(2, {"id": 1, "method": "tools/list"}, other)).text
