"""No program that a gateway starts can read what the gateway itself inherited or opened: real gateways, started with an open secret."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from gateway import processes
from gateway.upstream.child_processes import LINEAGE_VARIABLE
from gateway.upstream.stdio import _INHERITED  # pyright: ignore[reportPrivateUsage]  # the list is the rule
from tests.architecture.sources import name_of, nodes_of, python_files
from tests.fakes.running import ROOT, free_port, wait_until_ready, write_config
from tests.interaction.wire import StdioWire, Wire, over_http
from tests.skills.on_disk import write_skill
from tests.skills.sandboxes import sandbox_problem
from tests.skills.test_scripts import granted

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads descriptors from /proc"),
]

REPORT = """
import json, os, sys
open_now = {}
for name in os.listdir("/proc/self/fd"):
    try:
        open_now[name] = os.readlink("/proc/self/fd/" + name)
    except OSError:
        pass
readable = []
for number in range(3, 256):
    try:
        readable += filter(None, [os.pread(number, 100, 0).decode(errors="replace")])
    except OSError:
        pass
report = json.dumps({"open": open_now, "read": readable, "env": sorted(os.environ)})
"""
TO_FILE = "open(sys.argv[1], 'w').write(report)\n"
SERVER = f"{REPORT}{TO_FILE}os.execv(sys.executable, [sys.executable, '-m', 'tests.fakes.upstream', '--stdio'])\n"

Start = Literal["http", "stdio"]


@dataclass(frozen=True)
class Started:
    """A gateway whose parent left a secret file open."""

    wire: Wire
    folder: Path
    gateway: int
    """Process id of the gateway."""

    def report(self, name: str) -> dict[str, Any]:
        """Return the report of a program that the gateway started."""
        return json.loads((self.folder / name).read_text())


def settings(folder: Path) -> dict[str, Any]:
    """A gateway with one program of each kind that it starts; each reports what it inherited."""
    (folder / "server.py").write_text(SERVER)
    (folder / "secret-command.py").write_text(f"{REPORT}{TO_FILE}print('value')\n")
    write_skill(folder / "skills" / "leak", files={"leak.py": f"{REPORT}print(report)\n"})
    allow = [grant.model_dump(by_alias=True) for grant in granted(folder / "skills", "leak", "leak.py")]
    return {
        "secrets": {"one": {"command": [sys.executable, str(folder / "secret-command.py"), str(folder / "command.json")]}},
        "mcpServers": {
            "server": {
                "command": sys.executable,
                "args": [str(folder / "server.py"), str(folder / "server.json")],
                "cwd": str(ROOT),
                "env": {"GIVEN": "${cmd:one}"},
            }
        },
        "expose": {"skills": [str(folder / "skills")]},
        "skills": {"scripts": {"enabled": True, "allow": allow, "approval": "never"}},
    }


@asynccontextmanager
async def started(start: Start, folder: Path, inherited: int) -> AsyncGenerator[Started]:
    """A gateway that inherits descriptor `inherited`, and a client of it."""
    path = write_config(folder, settings(folder))
    argv = [sys.executable, "-m", "gateway", "run", "--config", str(path)]
    if start == "stdio":
        async with await anyio.open_process([*argv, "--stdio"], cwd=ROOT, stderr=subprocess.DEVNULL, pass_fds=(inherited,)) as process:
            try:
                yield Started(StdioWire(process, "modern", tasks=False), folder, process.pid)
            finally:
                process.terminate()
        return
    port = free_port()
    with serving([*argv, "--http", f"127.0.0.1:{port}"], folder / "gateway.log", inherited) as gateway:
        wait_until_ready(gateway, f"http://127.0.0.1:{port}/ready", folder / "gateway.log")
        async with over_http(f"http://127.0.0.1:{port}/mcp", "modern", tasks=False) as wire:
            yield Started(wire, folder, gateway.pid)


@contextmanager
def serving(argv: list[str], log: Path, inherited: int) -> Generator[subprocess.Popen[bytes]]:
    """A process with one inherited descriptor, until the end of the block."""
    with log.open("wb") as stderr, subprocess.Popen(argv, cwd=ROOT, stderr=stderr, pass_fds=(inherited,)) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.fixture
def inherited(tmp_path: Path) -> Generator[int]:
    """A descriptor of a file with a secret, left inheritable by the parent of the gateway."""
    (tmp_path / "secret.txt").write_text("the parent's secret")
    descriptor = os.open(tmp_path / "secret.txt", os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    yield descriptor
    os.close(descriptor)


@pytest.mark.attack(36)
@pytest.mark.faults
@pytest.mark.parametrize("start", ["http", "stdio"])
async def test_no_program_inherits_a_descriptor(start: Start, tmp_path: Path, inherited: int) -> None:
    async with started(start, tmp_path, inherited) as gateway:
        assert os.readlink(f"/proc/{gateway.gateway}/fd/{inherited}").endswith("secret.txt"), "the gateway itself has the descriptor"
        echoed = await gateway.wire.send("tools/call", name="server__echo", arguments={"text": "runs"})
        assert echoed["result"]["content"][0]["text"] == "runs"
        script = None if await sandbox_problem() else await script_of(gateway.wire)
        watchers = [pid for pid in descendants(gateway.gateway) if b"read -r op id" in command_line_of(pid)]
        opened = [extra({n: os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")}) for pid in watchers]
        environment = [environment_of(pid) for pid in watchers]
    assert (opened, environment) == ([[]], [["PATH"]])
    assert set(gateway.report("server.json")["env"]) <= {*_INHERITED, "GIVEN", LINEAGE_VARIABLE, "LC_CTYPE"}
    for report in (gateway.report("command.json"), gateway.report("server.json"), *([script] if script else [])):
        assert (report["read"], extra(report["open"])) == ([], [])
    assert script is None or set(script["env"]) == {"HOME", "LANG", "PATH", "TMPDIR"}


async def script_of(wire: Wire) -> dict[str, Any]:
    """Run the script of a skill and return its report."""
    ran = await wire.send("tools/call", name="run_skill_script", arguments={"skill_name": "leak", "script_name": "leak.py"})
    return json.loads(ran["result"]["structuredContent"]["stdout"])


def extra(opened: dict[str, str]) -> list[str]:
    """Return the open files other than the standard streams; uvloop opens a second descriptor of each standard stream."""
    standard = {opened[number] for number in "012"}
    return [path for path in opened.values() if path not in standard and not path.endswith("/fd")]


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes that a process started, directly or indirectly."""
    children = [int(text) for path in Path(f"/proc/{pid}/task").glob("*/children") for text in path.read_text().split()]
    return [found for child in children for found in (child, *descendants(child))]


def environment_of(pid: int) -> list[str]:
    """Names of the variables that a process was started with."""
    return [word.partition(b"=")[0].decode() for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if word]


def command_line_of(pid: int) -> bytes:
    """The words that a process was started with."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.attack(36)
def test_sealing_works_without_close_range(monkeypatch: pytest.MonkeyPatch, inherited: int) -> None:
    monkeypatch.setattr(processes, "_close_range", lambda: False)
    processes.seal_descriptors()
    assert not os.get_inheritable(inherited)


STARTS = {"open_process", "run_process", "subprocess_exec", "subprocess_shell"}
"""Functions that start a program through the event loop, which may be uvloop's."""


@pytest.mark.attack(36)
def test_every_start_of_a_program_seals_descriptors() -> None:
    unsealed: list[str] = []
    for path in python_files("gateway"):
        for function in nodes_of(path):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                called = [call_name(node) for node in ast.walk(function) if isinstance(node, ast.Call)]
                if STARTS & set(called) and "seal_descriptors" not in called:
                    unsealed.append(f"{name_of(path)}:{function.lineno} {function.name}")
    assert unsealed == []


def call_name(node: ast.Call) -> str:
    """Return the last part of the name of the called function."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
