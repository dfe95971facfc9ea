"""The walk through the faults: each row is a server with one fault at one step of the protocol, all behind one gateway at once.

The checks are the same for every row: the request that meets the fault ends in time, with the right result or an error; each call ran
once, and every call with a result did run; after the fault the server serves again; and meanwhile every other server and every
other client were served as if nothing had happened.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
from mcp.shared.exceptions import MCPError

from tests.fakes.running import ROOT, child, free_port, upstream_stdio, wait_until_ready, write_config
from tests.fakes.scripted_upstream import STEPS
from tests.interaction.ways import Way, connected

CALL_SECONDS = 2.0
CONNECT_SECONDS = 2.0
LATE_SECONDS = 12.0
"""Maximum duration of a request that meets a fault. Connecting, calling and cancelling have a deadline each."""

NEAR_SECONDS = 5.0
"""Maximum duration of a call to the good server while the other servers fail, on a machine that also runs other tests."""

STOP_SECONDS = 15.0
"""The gateway ends within this time, whatever its servers do."""

MODERN = Way("http", "modern", "good")
LEGACY = Way("http", "legacy", "good")
Transport = Literal["stdio", "http"]
Era = Literal["legacy", "modern"]
OF_STDIO = ("die", "hang", "garbage", "binary", "shape", "stranger", "half", "twice", "refuse", "once")
OF_HTTP = (*OF_STDIO, "type", "lost", "error", "busy", "drip", "oversized")
LEGACY_ONLY = frozenset({"initialize", "initialized", "subscribe", "task-result", "delete"})
MODERN_ONLY = frozenset({"discover"})
EARLY = frozenset({"discover", "initialize", "initialized", "list", "listen"})
"""Steps whose fault may keep a server from ever being listed."""

NOT_OVER_STDIO = frozenset({"delete"})


@dataclass(frozen=True)
class Row:
    """A server and its fault."""

    transport: Transport
    era: Era
    step: str
    kind: str

    @property
    def name(self) -> str:
        """The server's name in the configuration."""
        return f"{self.transport}-{self.era}-{self.step}-{self.kind}"

    def exists(self) -> bool:
        """Return whether the step exists in the row's protocol era and transport."""
        if (self.step, self.kind, self.era) == ("after", "lost", "legacy"):
            return False  # a 404 for the session means that the call did not run, but the fault `after` comes after the call ran
        if self.step in (MODERN_ONLY if self.era == "legacy" else LEGACY_ONLY):
            return False
        return self.transport == "http" or not (self.step in NOT_OVER_STDIO or (self.step == "listen" and self.era == "legacy"))


def product(transport: Transport, era: Era) -> list[Row]:
    """Every fault at every step."""
    rows = [Row(transport, era, step, kind) for step in STEPS for kind in (OF_HTTP if transport == "http" else OF_STDIO)]
    return [row for row in rows if row.exists()]


@contextmanager
def servers(folder: Path, rows: Sequence[Row]) -> Generator[dict[str, Any]]:
    """Yield the rows as `mcpServers` entries with their faults switched on. HTTP servers run; the gateway starts stdio servers."""
    for row in rows:
        (folder / row.name).mkdir()
        (folder / row.name / "fault").touch()
    entries: dict[str, Any] = {}
    for row in rows:
        if row.transport == "stdio":
            options = ["--modern"] if row.era == "modern" else []
            argv = ["-m", "tests.fakes.scripted_upstream", "--stdio", *options, str(folder / row.name), row.step, row.kind]
            entries[row.name] = {"command": sys.executable, "args": argv, "cwd": str(ROOT)}
    far = [row for row in rows if row.transport == "http"]
    told = json.dumps([[str(folder / row.name), row.step, row.kind, row.era] for row in far])
    with ExitStack() as stack:
        if far:
            argv = ["-m", "tests.fakes.scripted_upstream", "--rows", told]
            process = stack.enter_context(child(*argv, stdout=subprocess.PIPE, log=folder / "servers.log"))
            assert process.stdout is not None
            ports = process.stdout.readline().split()[1:]
            urls = [f"http://127.0.0.1:{int(port)}/mcp" for port in ports]
            entries |= {row.name: {"type": "http", "url": url} for row, url in zip(far, urls, strict=True)}
        yield entries


def config_of(entries: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with short deadlines for the faulty servers."""
    policy = {"timeoutSeconds": CALL_SECONDS, "connectTimeoutSeconds": CONNECT_SECONDS, "tasks": {"maxWaitSeconds": CALL_SECONDS}}
    return {
        "mcpServers": {"good": upstream_stdio(), **entries},
        "policies": dict.fromkeys(entries, policy),
        "server": {"startupTimeoutSeconds": 5, "maxChildProcesses": 500},
    }


@contextmanager
def gateway(folder: Path, config: dict[str, Any]) -> Generator[str]:
    """A gateway that must end in time, and never says that it failed itself."""
    port = free_port()
    log = folder / "gateway.log"
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(write_config(folder, config)), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        yield f"http://127.0.0.1:{port}/mcp"
        process.terminate()
        process.wait(STOP_SECONDS)
    failures = [line for line in log.read_text().splitlines() if " ERROR gateway" in line]
    assert not failures, failures[0]


@contextmanager
def deadline(seconds: float, what: str) -> Generator[None]:
    """Fail with the message `what` if the block takes longer than `seconds`."""
    with anyio.move_on_after(seconds) as scope:
        yield
    assert not scope.cancelled_caught, what


async def act(row: Row, client: Any, legacy: Any) -> bool:
    """Send the requests that meet the row's fault, and return whether the tool call returned a result without an error."""
    tool = {"ask": "ask", "answered": "ask", "task-get": "long", "task-result": "long", "cancel": "slow"}.get(row.step, "do")
    doings: dict[str, Callable[[], Awaitable[Any]]] = {
        "read": lambda: client.read_resource(f"{row.name}+page://one"),
        "prompt": lambda: client.get_prompt(f"{row.name}__greet"),
        "complete": lambda: client.complete(_prompt(f"{row.name}__greet"), {"name": "city", "value": "P"}),
        "subscribe": lambda: legacy.subscribe_resource(f"{row.name}+page://one"),
    }
    with deadline(LATE_SECONDS, f"{row.name}: no end of the request"):
        if row.step in doings:
            with suppress(MCPError):
                await doings[row.step]()
        if row.step == "cancel":
            with anyio.move_on_after(0.5), suppress(MCPError):
                await client.call_tool(f"{row.name}__slow", {"id": "first"})
            return False
        try:
            answer = await client.call_tool(f"{row.name}__{tool}", {"id": "first"})
        except MCPError:  # only a JSON-RPC error of the server reaches the client as an `MCPError`
            assert row.kind == "refuse", row.name
            return False
    assert answer.content and answer.content[0].text, f"{row.name}: {answer}"
    return not answer.is_error


def _prompt(name: str) -> Any:
    from mcp_types import PromptReference

    return PromptReference(name=name)


async def keep_asking(client: Any, waits: list[float], over: anyio.Event) -> None:
    """Call the good server over and over; every answer must be right.

    The last call runs to its end, because the SDK's client fails if a response arrives while the client closes.
    """
    while not over.is_set():
        started = time.perf_counter()
        answer = await client.call_tool("good__echo", {"text": "fine"})
        waits.append(time.perf_counter() - started)
        assert answer.content[0].text == "fine"
        await anyio.sleep(0.05)


def runs_of(folder: Path) -> list[str]:
    """Return the calls that a server ran, in order."""
    journal = folder / "journal"
    return journal.read_text().split() if journal.exists() else []


def states(url: str) -> dict[str, str]:
    """Return the state of every source from the gateway's status page."""
    return {row["name"]: row["state"] for row in httpx2.get(url.replace("/mcp", "/status.json")).json()["sources"]}


async def until_listed(client: Any, rows: Sequence[Row]) -> set[str]:
    """Wait until the tools of these rows are listed, and return the names of all listed tools."""
    with anyio.fail_after(60):
        while True:
            listed = {tool.name for tool in (await client.list_tools()).tools}
            if all(f"{row.name}__do" in listed for row in rows):
                return listed
            await anyio.sleep(0.2)


async def until_well(row: Row, folder: Path, client: Any) -> None:
    """Wait until the server serves again and announces its changes."""
    number = 0
    with deadline(60, f"{row.name}: not well again"):
        while True:
            number += 1
            with suppress(MCPError):
                if not (await client.call_tool(f"{row.name}__do", {"id": f"again-{number}"})).is_error:
                    break
            await anyio.sleep(0.2)
        if row.step == "listen":
            (folder / "changed").touch()
            while not any(tool.name == f"{row.name}__more" for tool in (await client.list_tools()).tools):
                await client.call_tool(f"{row.name}__do", {"id": f"again-{(number := number + 1)}"})
                await anyio.sleep(0.2)


async def walk(folder: Path, rows: Sequence[Row]) -> None:
    """Run the fault of each row, and check the properties that the module's docstring lists."""
    by_name = {row.name: row for row in rows}
    waits: list[float] = []
    outcomes: dict[str, bool] = {}
    with servers(folder, rows) as entries, gateway(folder, config_of(entries)) as url:
        async with connected(MODERN, url) as (client, _), connected(LEGACY, url) as (other, _):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(keep_asking, other, waits, over := anyio.Event())
                listed = await until_listed(client, [row for row in rows if row.step not in EARLY])

                async def one(row: Row, use: Any) -> None:
                    outcomes[row.name] = await act(row, use, other)

                async with anyio.create_task_group() as calls:
                    for number, row in enumerate(rows):
                        if f"{row.name}__do" in listed:
                            calls.start_soon(one, row, (client, other)[number % 2])
                for name, is_well in outcomes.items():
                    runs = runs_of(folder / name)
                    assert runs.count("first") <= 1, f"{name} ran twice"
                    lies = by_name[name].kind in ("twice", "drip")  # the server sends a complete result without running the call
                    assert lies or not is_well or runs == ["first"], f"{name} was answered without having run"
                for name in by_name:
                    if by_name[name].step != "delete":
                        (folder / name / "fault").unlink(missing_ok=True)
                async with anyio.create_task_group() as recoveries:
                    for name, row in by_name.items():
                        recoveries.start_soon(until_well, row, folder / name, client)
                over.set()
        ready = states(url)
    assert {name: state for name, state in ready.items() if state != "ready"} == {}
    for name in by_name:
        runs = runs_of(folder / name)
        assert len(runs) == len(set(runs)), f"{name} ran something twice: {runs}"
    assert len(waits) > 5
    assert max(waits) < NEAR_SECONDS
