"""A stdio server with `single: true` behind several gateways with one database: one process, reached from every gateway."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from tests.fakes.nursery import Child
from tests.fakes.postgres import postgres
from tests.fakes.running import ROOT
from tests.interaction.wire import Wire, over_http
from tests.tasks.test_gateways import start_gateway, stop

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

TAKEOVER_SECONDS = 12.0


class Fleet:
    """Gateways with one database and one single server, which writes its journal to a file."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.database = database
        self.processes: list[Child] = []
        self.urls: list[str] = []

    def start(self) -> None:
        number = len(self.urls)
        state = self.folder / f"state-{number}" / "moongate"
        state.mkdir(mode=0o700, parents=True)
        if number:
            shutil.copy(self.folder / "state-0" / "moongate" / "installation-key", state)
        program = [str(ROOT / "tests" / "interaction" / "single_server.py"), str(self.folder / "journal")]
        config: dict[str, Any] = {
            "mcpServers": {"one": {"command": sys.executable, "args": program, "single": True}},
            "policies": {"one": {"era": "legacy"}},
            "storage": {"url": self.database},
            "server": {"http": {"drainSeconds": 5}},
        }
        process, url = start_gateway(self.folder, "gateway", config, XDG_STATE_HOME=str(state.parent))
        self.processes.append(process)
        self.urls.append(url)

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
        for process in made.processes:
            stop(process)


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


async def test_unsigned_message_for_a_server_is_refused(fleet: Fleet) -> None:
    body: dict[str, Any] = {"server": "one", "kind": "request", "method": "tools/call", "params": {"name": "who"}}
    async with httpx2.AsyncClient() as http:
        for header in ("", "s1 a b 0 c d e f", "v1 a b 0 c d e f"):
            refused = await http.post(fleet.urls[0], json=body, headers={"moongate-replica": header})
            assert refused.status_code == 401, refused.text
    assert "who" not in [line["event"] for line in fleet.journal()]
