"""A gateway is killed while clients need it: each request for it at another gateway ends soon, with an error that says what to send."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import httpx2
import pytest
from mcp import Client, MCPError

from gateway.server.event_ids import LOST
from gateway.server.replica_routes import UNASKED
from tests.interaction.wire import over_http
from tests.server.test_continued_sessions import ASKED, BOTH, ELICITS, SKILL, URI, Replicas, started

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

SOON_SECONDS = 3.0
"""Within which a request for a killed gateway is answered."""

SUSPENDED_SECONDS = 8.0
"""Within which a request for a suspended gateway is answered: its row in the database expires after four seconds."""

NUMBERS = [7, "7", "näme \"7\""]
VERSION = {"mcp-protocol-version": "2025-11-25"}
LOAD: dict[str, Any] = {"name": "load_skill", "arguments": {"skill_name": "notes"}}


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncGenerator[Replicas]:
    with ExitStack() as stack:
        made = await anyio.to_thread.run_sync(stack.enter_context, started("sqlite", tmp_path))
        async with httpx2.AsyncClient(timeout=20) as made.http:
            yield made


def end(pair: Replicas, *, is_suspended: bool = False) -> None:
    """End the first gateway and its servers without warning, or suspend it."""
    process = pair.processes[0]
    os.killpg(process.pid, signal.SIGSTOP if is_suspended else signal.SIGKILL)
    if not is_suspended:
        process.wait()


@asynccontextmanager
async def calling(pair: Replicas, session: str, number: int | str, name: str, **meta: Any) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    """Call a tool at the first gateway; yield the last event id, and the last message, before the stream breaks."""
    params = {"name": f"up__{name}", "arguments": {}, **({"_meta": meta} if meta else {})}
    call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    headers = {"mcp-session-id": session, "accept": BOTH, **VERSION}
    async with pair.http.stream("POST", pair.urls[0], json=call, headers=headers) as stream:
        event, message = "", dict[str, Any]()
        async for line in stream.aiter_lines():
            event = line.removeprefix("id: ") if line.startswith("id: ") else event
            message = json.loads(line[6:]) if line.startswith("data: {") else message
            if event and (message or name != "ask_name") and not line:
                break
        yield event, message


async def resumed(pair: Replicas, session: str, event: str, seconds: float = SOON_SECONDS) -> list[dict[str, Any]]:
    """Resume a stream at the second gateway; return its messages, up to its end."""
    headers = {"mcp-session-id": session, "accept": "text/event-stream", "last-event-id": event, **VERSION}
    with anyio.fail_after(seconds):
        answer = await pair.http.get(pair.urls[1], headers=headers)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


async def assert_serves(pair: Replicas, session: str) -> None:
    """The session goes on at the second gateway."""
    called = await pair.post(1, {"id": 100, "method": "tools/call", "params": LOAD}, session, **VERSION)
    assert "Read the notes." in called.text, called.text


@pytest.mark.parametrize("is_suspended", [False, True])
async def test_resumed_call_of_a_dead_gateway_ends_with_an_error(pair: Replicas, is_suspended: bool) -> None:
    session = await pair.open(0)
    events: list[tuple[str, int | str, str]] = []
    async with anyio.create_task_group() as tasks:
        for number in NUMBERS:
            other = session if number == NUMBERS[0] else await pair.open(0)
            tasks.start_soon(_remember, pair, other, number, events)
        with anyio.fail_after(20):
            while len(events) < len(NUMBERS):
                await anyio.sleep(0.02)
        end(pair, is_suspended=is_suspended)
        tasks.cancel_scope.cancel()
    for other, number, event in events:
        (message,) = await resumed(pair, other, event, SUSPENDED_SECONDS if is_suspended else SOON_SECONDS)
        assert (message["id"], type(message["id"])) == (number, type(number)), message
        assert (message["error"]["code"], message["error"]["message"]) == (-32603, LOST)
    await assert_serves(pair, session)


async def _remember(pair: Replicas, session: str, number: int | str, events: list[tuple[str, int | str, str]]) -> None:
    async with calling(pair, session, number, "hang", progressToken="p") as (event, _):
        events.append((session, number, event))
        await anyio.sleep_forever()


async def test_slow_call_without_progress_can_be_resumed_too(pair: Replicas) -> None:
    """The fast path hands the call over after a second; its events have the id of the request all the same."""
    session = await pair.open(0)
    async with calling(pair, session, "slow", "hang") as (event, _):
        end(pair)
    (message,) = await resumed(pair, session, event)
    assert (message["id"], message["error"]["message"]) == ("slow", LOST)


async def test_listening_client_of_a_dead_gateway_goes_on_listening(pair: Replicas) -> None:
    session = await pair.open(0)
    headers = {"mcp-session-id": session, "accept": "text/event-stream", **VERSION}
    await pair.post(0, {"id": 1, "method": "resources/subscribe", "params": {"uri": URI}}, session)
    skill = pair.folder / "skills" / "notes" / "SKILL.md"
    last = ""
    with anyio.fail_after(30):
        async with pair.http.stream("GET", pair.urls[0], headers=headers) as stream:
            await anyio.sleep(1)
            skill.write_text(f"{SKILL}{time.time_ns()}\n")
            async for line in stream.aiter_lines():
                last = line.removeprefix("id: ") if line.startswith("id: ") else last
                if "resources/updated" in line:
                    break
        end(pair)
        async with pair.http.stream("GET", pair.urls[1], headers={**headers, "last-event-id": last}) as stream:
            assert stream.status_code == 200
            await anyio.sleep(1.5)
            skill.write_text(f"{SKILL}{time.time_ns()}\n")
            async for line in stream.aiter_lines():
                if "resources/updated" in line:
                    break
    await assert_serves(pair, session)


@pytest.mark.parametrize("is_suspended", [False, True])
async def test_answer_to_a_dead_gateway_is_refused(pair: Replicas, is_suspended: bool) -> None:
    session = await pair.open(0, ELICITS)
    async with calling(pair, session, 7, "ask_name") as (event, question):
        assert question["method"] == "elicitation/create"
        await anyio.sleep(0.5)  # A process that is suspended while it writes to SQLite, such as its audit log, keeps the lock.
        end(pair, is_suspended=is_suspended)
    limit = SUSPENDED_SECONDS if is_suspended else SOON_SECONDS
    answers: list[httpx2.Response] = []
    with anyio.fail_after(limit):
        while not answers or answers[-1].status_code != 410:
            answers.append(await pair.post(1, {"id": question["id"], "result": ASKED}, session, **VERSION))
            assert answers[-1].status_code == 410 or (is_suspended and answers[-1].status_code == 503), answers[-1].text
    assert answers[-1].json()["error"]["message"] == UNASKED
    (message,) = await resumed(pair, session, event)
    assert (message["id"], message["error"]["message"]) == (7, LOST)
    await assert_serves(pair, session)


@pytest.mark.parametrize("is_suspended", [False, True])
async def test_cancellation_for_a_dead_gateway_is_accepted(pair: Replicas, is_suspended: bool) -> None:
    session = await pair.open(0)
    async with calling(pair, session, 7, "hang", progressToken="p"):
        end(pair, is_suspended=is_suspended)
    with anyio.fail_after(SOON_SECONDS):
        cancelled = await pair.post(1, {"method": "notifications/cancelled", "params": {"requestId": 7}}, session, **VERSION)
    assert cancelled.status_code == 202
    await assert_serves(pair, session)


@pytest.mark.parametrize("is_suspended", [False, True])
async def test_retry_of_a_call_that_a_dead_gateway_parked(pair: Replicas, is_suspended: bool) -> None:
    async with over_http(pair.urls[0], "modern", tasks=False) as first, over_http(pair.urls[1], "modern", tasks=False) as second:
        asked = (await first.send("tools/call", name="up__ask_name", arguments={}))["result"]
        end(pair, is_suspended=is_suspended)
        (key,) = asked["inputRequests"]
        answers = {"inputResponses": {key: ASKED}, "requestState": asked["requestState"]}
        with anyio.fail_after(SUSPENDED_SECONDS if is_suspended else SOON_SECONDS):
            done = json.dumps(await second.send("tools/call", name="up__ask_name", arguments={}, **answers))
            if is_suspended:
                assert LOST in done
                done = json.dumps(await second.send("tools/call", name="up__ask_name", arguments={}, **answers))
        assert "Send it again without `requestState`" in done
        again = (await second.send("tools/call", name="up__ask_name", arguments={}))["result"]
        (key,) = again["inputRequests"]
        answers = {"inputResponses": {key: ASKED}, "requestState": again["requestState"]}
        assert "Ada" in json.dumps(await second.send("tools/call", name="up__ask_name", arguments={}, **answers))


class Balancer:
    """Connects each connection of a client to the gateway in `target`. A gateway that ends before its response is answered with 502."""

    def __init__(self, urls: list[str]) -> None:
        self.ports = [int(re.findall(r":(\d+)/", url)[0]) for url in urls]
        self.target = 0
        self.url = ""

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            self.url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/mcp"
            task_status.started()
            await listener.serve(self._connect)

    async def _connect(self, client: anyio.abc.SocketStream) -> None:
        async with client:
            try:
                gateway = await anyio.connect_tcp("127.0.0.1", self.ports[self.target])
            except OSError:
                return
            waits = False

            async def copy(source: anyio.abc.SocketStream, target: anyio.abc.SocketStream) -> None:
                nonlocal waits
                try:
                    while True:
                        part = await source.receive()
                        waits = source is client
                        await target.send(part)
                except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    tasks.cancel_scope.cancel()

            async with gateway, anyio.create_task_group() as tasks:
                tasks.start_soon(copy, client, gateway)
                tasks.start_soon(copy, gateway, client)
            if waits:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await client.send(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_call_of_the_published_client_raises_and_the_client_goes_on(pair: Replicas, mode: Any) -> None:
    balancer = Balancer(pair.urls)
    async with anyio.create_task_group() as tasks:
        await tasks.start(balancer.run)
        async with Client(balancer.url, mode=mode) as client:
            assert "Read the notes." in str(await client.call_tool("load_skill", {"skill_name": "notes"}))
            failures: list[MCPError] = []
            killed = 0.0
            async with anyio.create_task_group() as calls:
                calls.start_soon(_fail, client, failures)
                await anyio.sleep(3)
                end(pair)
                balancer.target = 1
                killed = time.monotonic()
                with anyio.fail_after(10):
                    while not failures:
                        await anyio.sleep(0.02)
            assert time.monotonic() - killed < SOON_SECONDS
            if mode == "legacy":
                assert failures[0].message == LOST
            with anyio.fail_after(10):
                assert "Read the notes." in str(await client.call_tool("load_skill", {"skill_name": "notes"}))
        tasks.cancel_scope.cancel()


async def _fail(client: Client, failures: list[MCPError]) -> None:
    with pytest.raises(MCPError) as failed:
        await client.call_tool("up__hang", {}, read_timeout_seconds=60)
    failures.append(failed.value)
