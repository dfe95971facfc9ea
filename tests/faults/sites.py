"""The four places on which the kill matrix runs: the engines `local` and `temporal`, each with SQLite and with PostgreSQL.

`Site` starts and kills real gateways there. They serve workflows of Python functions that write what they do to a journal.
"""

from __future__ import annotations

import os
import secrets
import signal
import struct
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from tests.fakes.nursery import Child, born
from tests.fakes.postgres import Postgres
from tests.fakes.running import ROOT, free_port, wait_until_ready, write_config
from tests.interaction.wire import HttpWire, over_http

SECONDS = 60
"""Longest wait for a state of a task, on a machine that also runs other tests."""

STEPS = 10
ENDED = ("completed", "cancelled", "failed")

FUNCTIONS = """\
import os, pathlib, signal, time
HERE = pathlib.Path(__file__).parent

def note(line):
    file = os.open(HERE / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (line + "\\n").encode())
    os.close(file)

def die_if(line):
    try:
        if (HERE / "die").read_text() == line:
            (HERE / "die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    except FileNotFoundError:
        pass

def step(x: str) -> str:
    name, _, number = x.rpartition("/")
    die_if(f"{name} {number} before")
    note(f"{name} {number}")
    time.sleep(0.05)
    die_if(f"{name} {number} after")
    return f"{name}/{int(number) + 1}"

def hold(x: str) -> str:
    note(f"{x} 0")
    while not (HERE / "go").exists():
        time.sleep(0.02)
    return x + "!"

def begin(x: str) -> str:
    note(f"{x} 0")
    return x
"""


def _flow(name: str, executors: str, edges: str) -> str:
    head = f"name: {name}\ndescription: A workflow of the kill matrix.\ninput: {{x: {{type: string}}}}\ntask: required\nstart: s0\n"
    return f"{head}executors:\n{executors}edges: [{edges}]\n"


def _workflows() -> dict[str, str]:
    first = ', arguments: {x: "{{x}}"}'
    ten = "".join(f'  s{n}: {{python: "matrix_functions:step"{first if n == 0 else ""}}}\n' for n in range(STEPS))
    edges = ", ".join(f"{{from: s{n}, to: s{n + 1}}}" for n in range(STEPS - 1))
    asks = f'  s0: {{python: "matrix_functions:begin"{first}}}\n  s1: {{ask: "Go on with {{{{s0}}}}?"}}\n'
    return {
        "ten": _flow("ten", ten, edges),
        "holds": _flow("holds", f'  s0: {{python: "matrix_functions:hold"{first}}}\n', ""),
        "asks": _flow("asks", asks, "{from: s0, to: s1}"),
    }


@dataclass
class Gateway:
    """A running gateway of a site."""

    process: Child
    url: str
    log: Path

    def kill(self) -> None:
        """End the gateway with SIGKILL, and everything that it started."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass
class Site:
    """A folder in which gateways share the state of one engine and one database."""

    folder: Path
    engine: str
    server: Postgres | None
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further sections of the gateways' configuration."""
    gateways: list[Gateway] = field(default_factory=list[Gateway])
    address: str = ""
    """Address of the Temporal server, for programs that use several sites."""
    url: str = ""
    """The database of the gateways; empty for SQLite."""

    def prepare(self) -> None:
        """Write the workflows and their functions."""
        (self.folder / "matrix_functions.py").write_text(FUNCTIONS)
        for name, text in _workflows().items():
            (self.folder / f"{name}.workflow.yaml").write_text(text)
        self.url = "" if self.server is None else self.server.database(f"matrix_{secrets.token_hex(4)}")

    def configure(self, name: str) -> Path:
        """Write the configuration of a gateway. On PostgreSQL each gateway has a state folder of its own, as on a machine of its own."""
        storage: dict[str, Any] = {"dir": str(self.folder / "state")}
        if self.url:
            storage = {"dir": str(self.folder / f"state-{name}"), "url": self.url, "installationKey": "${env:MATRIX_KEY}"}
        tasks = {"maxPerCaller": 500, "maxRunningPerCaller": 100, **self.config.get("tasks", {})}
        return write_config(self.folder, {"expose": {"agents": ["."]}, "storage": storage, **self.config, "tasks": tasks}, name)

    async def start(self, *, env: dict[str, str] | None = None, forks: bool = True) -> Gateway:
        """Start a gateway, and return it when it is ready. With `forks`, its process is forked, so that `LD_PRELOAD` has no effect."""
        return await anyio.to_thread.run_sync(lambda: self._start(env or {}, forks=forks))

    def _start(self, env: dict[str, str], *, forks: bool) -> Gateway:
        name = f"g{len(self.gateways)}" if self.url else "gateway"
        port, path = free_port(), self.configure(name)
        log = self.folder / f"{port}.log"
        argv = ("gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path))
        environ = {**os.environ, **env}
        process: Child
        with log.open("wb") as out:
            if forks:
                process = born(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=out, env=environ)
            else:
                command = [sys.executable, "-m", *argv]
                process = subprocess.Popen(
                    command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=out, env=environ, start_new_session=True
                )
        gateway = Gateway(process, f"http://127.0.0.1:{port}/mcp", log)
        self.gateways.append(gateway)
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        return gateway

    def close(self) -> None:
        """Kill all gateways."""
        for gateway in self.gateways:
            with suppress(ProcessLookupError):
                os.killpg(gateway.process.pid, signal.SIGCONT)
            gateway.kill()

    def command(self, *arguments: str) -> str:
        """Run `moongate tasks` with these arguments, and return its output."""
        name = "g0" if self.url else "gateway"
        argv = [sys.executable, "-m", "gateway", "tasks", *arguments, "--config", str(self.folder / f"{name}.json")]
        ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    # -- what the functions did ------------------------------------------------------------------------------------

    def runs(self) -> dict[str, list[int]]:
        """Return the steps that ran, by task and in order."""
        found: dict[str, list[int]] = defaultdict(list)
        journal = self.folder / "journal"
        for line in journal.read_text().splitlines() if journal.exists() else []:
            name, _, number = line.partition(" ")
            found[name].append(int(number))
        return found

    async def until_run(self, name: str, number: int = 0, times: int = 1) -> None:
        """Wait until a step of a task has begun that many times."""
        with anyio.fail_after(SECONDS):
            while self.runs()[name].count(number) < times:
                await anyio.sleep(0.02)

    def check_runs(self, name: str, repeats: int) -> int:
        """Check that the ten steps of a task ran in order, none again after a later one began, and at most `repeats` repeated.

        Returns the number of repeated steps.
        """
        ran = self.runs()[name]
        assert ran == sorted(ran), f"{name}: a finished step ran again: {ran}"
        assert set(ran) == set(range(STEPS)), f"{name}: {ran}"
        assert len(ran) - STEPS <= repeats, f"{name}: {ran}"
        return len(ran) - STEPS


class Clock:
    """The wall clock of one or several gateways."""

    def __init__(self, folder: Path, library: Path, name: str) -> None:
        self._file = folder / f"clock-{name}"
        self.env = {"LD_PRELOAD": str(library), "CLOCK_AHEAD": str(self._file)}
        self._file.write_bytes(struct.pack("d", 0))

    def set(self, ahead: float) -> None:
        """Set the clock ahead by these seconds of the machine's clock."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("d", ahead))


# -- requests ------------------------------------------------------------------------------------------------------


async def begun(wire: HttpWire, tool: str, x: str, key: str = "") -> str:
    """Start a task, with an idempotency key if `key` is not empty, and return its id."""
    meta: dict[str, Any] = {"_meta": {"dev.moongate/idempotencyKey": key}} if key else {}
    started = await wire.send("tools/call", name=f"workflow__{tool}", arguments={"x": x}, **meta)
    assert "result" in started, started
    return str(started["result"]["taskId"])


async def state_of(wire: HttpWire, task_id: str) -> dict[str, Any]:
    """Return what a gateway says about a task now."""
    found = await wire.send("tasks/get", taskId=task_id)
    assert "result" in found, found
    return found["result"]


async def until(wire: HttpWire, task_id: str, *statuses: str) -> dict[str, Any]:
    """Wait until a task has one of these statuses, and return its state."""
    with anyio.fail_after(SECONDS):
        while (state := await state_of(wire, task_id))["status"] not in statuses:
            await anyio.sleep(0.05)
    return state


async def answer(wire: HttpWire, state: dict[str, Any]) -> None:
    """Answer all open questions of a task: a step in doubt is retried."""
    answers: dict[str, Any] = {}
    for key, request in state["inputRequests"].items():
        fields = request["params"]["requestedSchema"]["properties"]
        answers[key] = {"action": "accept", "content": {name: "retry" if name == "outcome" else "yes" for name in fields}}
    told = await wire.send("tasks/update", taskId=state["taskId"], inputResponses=answers)
    assert "result" in told, told


async def finish(wire: HttpWire, task_id: str) -> dict[str, Any]:
    """Answer what a task asks until it has ended, and return its state."""
    while (state := await until(wire, task_id, "input_required", *ENDED))["status"] not in ENDED:
        await answer(wire, state)
    return state


def text_of(state: dict[str, Any]) -> str:
    """Return the result of a completed task."""
    assert state["status"] == "completed", state
    return str(state["result"]["content"][0]["text"])


async def send_until_killed(gateway: Gateway, method: str, **params: Any) -> dict[str, Any] | None:
    """Send one request; return its response, or `None` if the gateway died before it."""
    try:
        async with over_http(gateway.url, "modern") as wire:
            return await wire.send(method, **params)
    except httpx2.HTTPError:
        return None


def param(engine: str, store: str) -> Any:
    """Return a place as a parameter of the fixture `site`, with the markers that say when its tests run."""
    marks = [pytest.mark.temporal if engine == "temporal" else pytest.mark.faults]
    return pytest.param((engine, store), id=f"{engine}-{store}", marks=marks)


EVERYWHERE = [param(engine, store) for engine in ("local", "temporal") for store in ("sqlite", "postgres")]
ON_POSTGRES = [param(engine, "postgres") for engine in ("local", "temporal")]


