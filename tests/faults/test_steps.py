"""Each fault at each step of the protocol, all at once behind one gateway: nobody else notices, nothing runs twice, all recover."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.running import ROOT, gateway_http, upstream_stdio
from tests.interaction.test_faults import sources
from tests.interaction.ways import Way, connected

MODERN = Way("http", "modern", "good")
LEGACY = Way("http", "legacy", "good")
CALL_SECONDS = 3.0
STEPS = ("discover", "initialize", "initialized", "list", "before", "after", "progress", "idle")
KINDS = ("die", "hang", "garbage", "binary", "shape", "stranger", "half", "twice", "refuse")
SOME = [
    ("initialize", "hang"),
    ("list", "half"),
    ("before", "die"),
    ("after", "die"),
    ("after", "twice"),
    ("progress", "hang"),
    ("idle", "die"),
]
ALL = [(step, kind) for step in STEPS for kind in KINDS]


def entry_of(folder: Path, step: str, kind: str, *options: str) -> dict[str, Any]:
    """A scripted server over stdio with its fault switched on."""
    folder.mkdir()
    (folder / "fault").touch()
    argv = ["-m", "tests.fakes.scripted_upstream", "--stdio", *options, str(folder), step, kind]
    return {"command": sys.executable, "args": argv, "cwd": str(ROOT)}


async def keep_asking(client: Any, waits: list[float]) -> None:
    """Call the good server over and over; every answer must be right."""
    while True:
        started = time.perf_counter()
        answer = await client.call_tool("good__echo", {"text": "fine"})
        waits.append(time.perf_counter() - started)
        assert answer.content[0].text == "fine"
        await anyio.sleep(0.02)


async def faults_stay_where_they_are(tmp_path: Path, faults: list[tuple[str, str]], *options: str) -> None:
    """The oracle of every row: see the module."""
    names = {f"{step}-{kind}": (step, kind) for step, kind in faults}
    servers = {name: entry_of(tmp_path / name, *fault, *options) for name, fault in names.items()}
    policies = {name: {"timeoutSeconds": CALL_SECONDS, "connectTimeoutSeconds": 2} for name in servers}
    config = {
        "mcpServers": {"good": upstream_stdio(), **servers},
        "policies": policies,
        "server": {"startupTimeoutSeconds": 20, "maxChildProcesses": 200},
    }
    outcomes: dict[str, bool] = {}
    waits: list[float] = []
    with gateway_http(tmp_path, config) as url:
        async with connected(MODERN, url) as (client, _), connected(LEGACY, url) as (other, _):
            # A first clean listing, so that faults in the handshake meet a known tool too.
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(keep_asking, other, waits)
                listed = {tool.name for tool in (await client.list_tools()).tools}

                async def one_call(name: str) -> None:
                    with anyio.fail_after(60):
                        answer = await client.call_tool(f"{name}__do", {"id": "first"})
                    outcomes[name] = answer.is_error

                async with anyio.create_task_group() as calls:
                    for name in servers:
                        if f"{name}__do" in listed:
                            calls.start_soon(one_call, name)
                # What ran, ran once; what was answered well did run.
                for name, is_error in outcomes.items():
                    journal = tmp_path / name / "journal"
                    runs = journal.read_text().split() if journal.exists() else []
                    assert runs.count("first") <= 1, f"{name} ran twice"
                    assert is_error or runs == ["first"], f"{name} was answered without having run"
                for name in servers:
                    (tmp_path / name / "fault").unlink()
                with anyio.fail_after(90):
                    for name in servers:
                        number = 0
                        while True:
                            number += 1
                            if any(tool.name == f"{name}__do" for tool in (await client.list_tools()).tools):
                                if not (await client.call_tool(f"{name}__do", {"id": f"again-{number}"})).is_error:
                                    break
                            await anyio.sleep(0.1)
                tasks.cancel_scope.cancel()
        states = {name: row["state"] for name, row in sources(url).items()}
    assert set(states.values()) == {"ready"}
    for name in servers:
        runs = (tmp_path / name / "journal").read_text().split()
        assert len(runs) == len(set(runs)), f"{name} ran something twice: {runs}"
    assert len(waits) > 5


@pytest.mark.timeout(240)
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_fault_at_a_step_hurts_only_that_server_runs_nothing_twice_and_passes(tmp_path: Path, era: str) -> None:
    faults = [fault for fault in SOME if fault[0] != "initialize" or era == "legacy"]
    await faults_stay_where_they_are(tmp_path, faults, *(["--modern"] if era == "modern" else []))


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_every_fault_at_every_step_hurts_only_that_server_runs_nothing_twice_and_passes(tmp_path: Path, era: str) -> None:
    await faults_stay_where_they_are(tmp_path, ALL, *(["--modern"] if era == "modern" else []))
