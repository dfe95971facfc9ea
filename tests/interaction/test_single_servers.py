"""A stdio server with `single: true` behind several gateways with one database: one process, reached from every gateway."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from gateway.server.replica_signature import Route, sign
from gateway.storage.state_folder import StateFolder
from tests.fakes.postgres import postgres
from tests.fakes.running import ROOT
from tests.fakes.shared_gateways import SharedGateways
from tests.interaction.wire import HttpWire, Wire, over_http

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

TAKEOVER_SECONDS = 12.0


class Fleet(SharedGateways):
    """Gateways with one single server, which writes its journal to a file."""

    def start(self) -> None:
        program = [str(ROOT / "tests" / "interaction" / "single_server.py"), str(self.folder / "journal")]
        self.start_with(
            {
                "mcpServers": {"one": {"command": sys.executable, "args": program, "single": True}},
                "policies": {"one": {"era": "legacy"}},
                "server": {"http": {"drainSeconds": 5, "leaveSeconds": 2}},
            }
        )

    def journal(self) -> list[dict[str, Any]]:
        path = self.folder / "journal"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def assert_alone(self) -> None:
        """No process writes after the start of a later process."""
        pids: list[int] = []
        for line in self.journal():
            if not pids or line["pid"] != pids[-1]:
                assert line["pid"] not in pids, self.journal()
                assert line["event"] == "start", self.journal()
                pids.append(line["pid"])

    def send_signal(self, replica: int, number: int) -> None:
        os.kill(self.processes[replica].pid, number)


@contextmanager
def fleet_of(kind: str, folder: Path) -> Generator[Fleet]:
    if kind == "sqlite":
        made = Fleet(folder, f"sqlite:///{folder}/shared.db")
        yield from _running(made)
        return
    with postgres() as server:
        yield from _running(Fleet(folder, server.database(f"single_{secrets.token_hex(4)}")))


def _running(made: Fleet) -> Generator[Fleet]:
    try:
        made.start()
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Fleet]:
    manager = fleet_of(request.param, tmp_path)
    made = await anyio.to_thread.run_sync(manager.__enter__)
    try:
        yield made
    finally:
        await anyio.to_thread.run_sync(manager.__exit__, None, None, None)


async def call(wire: Wire, name: str, **arguments: Any) -> str:
    answer = await wire.send("tools/call", name=f"one__{name}", arguments=arguments)
    return json.dumps(answer)


def pid_in(answer: str, fleet: Fleet) -> int:
    return next((pid for pid in {line["pid"] for line in fleet.journal()} if f'"{pid}"' in answer), 0)


async def until_served(wire: Wire, fleet: Fleet, but: int = 0) -> int:
    """Call until a process other than `but` has answered, and return its id."""
    with anyio.fail_after(TAKEOVER_SECONDS):
        while (pid := pid_in(await call(wire, "who"), fleet)) in (0, but):
            await anyio.sleep(0.1)
    return pid


async def test_both_gateways_reach_the_one_process(fleet: Fleet) -> None:
    async with over_http(fleet.urls[0], "legacy", tasks=False) as a, over_http(fleet.urls[1], "modern", tasks=False) as b:
        assert await until_served(a, fleet) == await until_served(b, fleet)
    assert [line["event"] for line in fleet.journal()].count("start") == 1


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_killed_or_suspended_owner_is_replaced(fleet: Fleet, is_stopped: bool) -> None:
    async with over_http(fleet.urls[0], "legacy", tasks=False) as a, over_http(fleet.urls[1], "legacy", tasks=False) as b:
        former = await until_served(b, fleet)
        answers: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                answers.append(await call(b, "slow", steps=100))

            tasks.start_soon(run)
            with anyio.fail_after(10):
                while "step" not in [line["event"] for line in fleet.journal()]:
                    await anyio.sleep(0.05)
            fleet.send_signal(0, signal.SIGSTOP if is_stopped else signal.SIGKILL)
            with anyio.fail_after(TAKEOVER_SECONDS):
                while not answers:
                    await anyio.sleep(0.05)
        assert "may have run" in answers[0], answers
        later = await until_served(b, fleet, former)
        fleet.assert_alone()
        if is_stopped:
            fleet.send_signal(0, signal.SIGCONT)
            assert await until_served(a, fleet, former) == later
            fleet.assert_alone()


async def test_drained_owner_hands_over(fleet: Fleet) -> None:
    async with over_http(fleet.urls[1], "legacy", tasks=False) as b:
        former = await until_served(b, fleet)
        fleet.send_signal(0, signal.SIGTERM)
        with anyio.fail_after(4):
            assert await until_served(b, fleet, former)
        fleet.assert_alone()


@pytest.mark.parametrize("asks_at", [0, 1])
async def test_question_and_progress_reach_the_caller_at_every_gateway(fleet: Fleet, asks_at: int) -> None:
    """The answer arrives at the other gateway than the call, so that it is forwarded once more."""
    async with over_http(fleet.urls[asks_at], "modern", tasks=False) as a, over_http(fleet.urls[1 - asks_at], "modern", tasks=False) as b:
        await until_served(a, fleet)
        asked = (await a.send("tools/call", name="one__ask", arguments={}))["result"]
        (key,) = asked["inputRequests"]
        answers = {"inputResponses": {key: {"action": "accept", "content": {"name": "Ada"}}}, "requestState": asked["requestState"]}
        done = await b.send("tools/call", name="one__ask", arguments={}, **answers)
        assert "Ada" in json.dumps(done["result"]["content"]), done
    async with over_http(fleet.urls[asks_at], "legacy", tasks=False) as old:
        params = {"name": "one__slow", "arguments": {"steps": 3}, "_meta": {"progressToken": "p"}}
        headers = {"Accept": "application/json, text/event-stream", **old.headers}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        said = (await old.http.post(old.url, json=body, headers=headers)).text
        assert said.count("notifications/progress") == 3, said
        assert [line["event"] for line in fleet.journal()].count("start") == 1


class Signer:
    """Signs messages as a replica of the fleet, with its true key."""

    def __init__(self, fleet: Fleet) -> None:
        state_key = StateFolder(fleet.folder / "state-0" / "moongate").key("request-state")
        self._key = hmac.digest(state_key, b"replica-channel", "sha256")
        self._fleet = fleet

    def owner(self) -> tuple[str, str]:
        """Return the id and the URL of the gateway that runs the server."""
        with sqlite3.connect(self._fleet.folder / "shared.db") as database:
            found = "SELECT r.id, r.address || r.path FROM server_leases l JOIN replicas r ON r.id = l.owner"
            (owner, url) = database.execute(found).fetchone()
        return owner, url

    async def post(self, http: httpx2.AsyncClient, url: str, *, scheme: str, receiver: str, key: bytes = b"") -> tuple[bytes, int]:
        """Send a call of `who`, and return its signature and the status of the response."""
        headers = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream")]
        route = Route(receiver, "x", "local", scheme)
        signature = sign(key or self._key, route, method="POST", headers=headers, body=MESSAGE, now=time.time())
        return signature, await self.repeat(http, url, signature)

    async def repeat(self, http: httpx2.AsyncClient, url: str, signature: bytes, body: bytes = b"") -> int:
        """Send a call of `who` with this signature, and return the status of the response."""
        headers = {"content-type": "application/json", "accept": "text/event-stream", "moongate-replica": signature.decode()}
        return (await http.post(url, content=body or MESSAGE, headers=headers)).status_code


MESSAGE = json.dumps(
    {"server": "one", "kind": "request", "method": "tools/call", "params": {"name": "who", "arguments": {}}, "meta": {}}
).encode()


@pytest.mark.parametrize("fleet", ["sqlite"], indirect=True)
async def test_forged_and_replayed_messages_for_a_server_are_refused(fleet: Fleet) -> None:
    def calls() -> int:
        return [line["event"] for line in fleet.journal()].count("who")

    async with over_http(fleet.urls[1], "legacy", tasks=False) as wire:
        await until_served(wire, fleet)
    signer, before = Signer(fleet), calls()
    owner, url = signer.owner()
    async with httpx2.AsyncClient(timeout=20) as http:
        for forged in ("", "s1 a b 0 c d e f", "v1 a b 0 c d e f"):
            assert await signer.repeat(http, url, forged.encode()) == 401
        assert (await signer.post(http, url, scheme="s1", receiver=owner, key=b"0" * 32))[1] == 401
        assert (await signer.post(http, url, scheme="s1", receiver="other"))[1] == 401
        await signer.post(http, url, scheme="v1", receiver=owner)
        assert calls() == before, "a request of a client is no message for a server"
        signature, status = await signer.post(http, url, scheme="s1", receiver=owner)
        assert (status, calls()) == (200, before + 1), "the message of a true replica is served"
        assert await signer.repeat(http, url, signature) == 401
        assert await signer.repeat(http, url, signature, MESSAGE.replace(b"who", b"ask")) == 401
        assert calls() == before + 1


@pytest.mark.parametrize("fleet", ["sqlite"], indirect=True)
async def test_key_without_the_scope_does_not_reach_the_server(fleet: Fleet) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(fleet.folder / "state-0")}
    path = str(fleet.folder / "gateway.json")
    command = [sys.executable, "-m", "gateway", "keys", "add", "low", "--scope", "docs", "--json", "--config", path]
    key = json.loads((await anyio.run_process(command, cwd=ROOT, env=env)).stdout)["key"]
    await anyio.sleep(1.5)
    for url in fleet.urls:
        async with over_http(url, "legacy", tasks=False, token=key) as wire:
            answer = await wire.send("tools/call", name="one__who", arguments={})
            assert "Refused by scopes" in json.dumps(answer), answer
    assert "who" not in [line["event"] for line in fleet.journal()]


@pytest.mark.parametrize("fleet", ["sqlite"], indirect=True)
async def test_balancer_loses_no_call_when_one_gateway_stops(fleet: Fleet) -> None:
    """Each client asks `/ready` four times per second, as a balancer does, and sends its calls only to ready gateways."""
    async with over_http(fleet.urls[1], "legacy", tasks=False) as wire:
        await until_served(wire, fleet)
    ready, failures, done = [True, True], list[str](), [0, 0]
    stopping = anyio.Event()

    async def look(http: httpx2.AsyncClient) -> None:
        while True:
            for number, url in enumerate(fleet.urls):
                try:
                    answer = await http.get(url.removesuffix("/mcp") + "/ready")
                    ready[number] = answer.status_code == 200
                    if answer.json()["status"] == "stopping":
                        stopping.set()
                except httpx2.TransportError:
                    ready[number] = False
            await anyio.sleep(0.25)

    async def use(http: httpx2.AsyncClient, first: int) -> None:
        number = first
        while True:
            number = 1 - number if ready[1 - number] else number
            wire = HttpWire(http, fleet.urls[number], "modern", False, {}, {})
            try:
                answer = await wire.send("tools/call", name="one__who", arguments={})
                if not pid_in(json.dumps(answer), fleet):
                    failures.append(json.dumps(answer))
            except httpx2.TransportError as error:
                failures.append(repr(error))
            done[number] += 1

    async with httpx2.AsyncClient(timeout=20) as http, anyio.create_task_group() as tasks:
        tasks.start_soon(look, http)
        for number in range(4):
            tasks.start_soon(use, http, number % 2)
        await anyio.sleep(1.5)
        fleet.send_signal(0, signal.SIGTERM)
        with anyio.fail_after(3):
            await stopping.wait()
        await anyio.to_thread.run_sync(fleet.processes[0].wait, 20)
        before = done[1]
        await anyio.sleep(1)
        assert done[1] > before > 0 and done[0] > 0
        tasks.cancel_scope.cancel()
    assert failures == []
    fleet.assert_alone()
