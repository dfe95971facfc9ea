"""Benchmark of starts over stdio: time to the first response and idle memory of the gateway and of a bare server on the MCP SDK.

    python -m benchmarks.start [--rounds N]

Starts are interleaved, and figures are ratios within one run. The gateway `empty` has no servers. The gateway `full` has a stdio server and
the agents, workflows and skills of this repository. The gateway `repository` has the configuration of this repository, whose HTTP server
is not running, as usual when an IDE starts the gateway. Each gateway has run before, so it can answer 2025 clients from its stored state.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import ROOT, cpu_seconds, free_ports, megabytes
from benchmarks.payload import META
from gateway.json_types import JsonObject

DISCOVER = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": META}}
HELLO: JsonObject = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {"form": {}, "url": {}}},
        "clientInfo": {"name": "ide", "version": "1"},
    },
}
"""An `initialize` request with the capabilities that IDEs usually declare."""
SESSION_TARGET = "<= 0.5"
FIRST_LIST = b"""{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"_meta":{"progressToken":0}}}
"""
IDLE_SECONDS = 3.0
"""Pause after the first response until idle memory is read, so that the upstream servers have finished starting."""


@dataclass(frozen=True, slots=True)
class Start:
    """The time, CPU time and memory of one start, up to its first response."""

    seconds: float
    cpu_seconds: float
    megabytes: float
    """Proportional set size (PSS): private memory plus the share of shared memory, without children; read after `IDLE_SECONDS`."""


@dataclass(frozen=True, slots=True)
class SessionStart:
    """Seconds from the start of a process to its responses to `initialize` and the first `tools/list` of a 2025 client."""

    initialize: float
    first_list: float


class Starting:
    """A server process and its stdio client. The owner must call `end`."""

    def __init__(self, argv: list[str], environ: dict[str, str]) -> None:
        self._started = time.monotonic()
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd=ROOT, env={**os.environ, **environ})

    def answer(self, lines: bytes, number: int) -> float:
        """Send lines and wait for the result of request `number`; return the seconds since the start of the process."""
        stdin, stdout = self.child.stdin, self.child.stdout
        assert stdin is not None and stdout is not None
        stdin.write(lines)
        stdin.flush()
        while (line := stdout.readline()) and json.loads(line).get("id") != number:
            pass
        assert b'"result"' in line, line[:300]
        return time.monotonic() - self._started

    def end(self) -> None:
        """Close stdin, as a leaving client does, and kill the process if it does not end within 10 s."""
        with self.child as child:
            assert child.stdin is not None
            child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
            child.kill()


def measure(argv: list[str], environ: dict[str, str]) -> Start:
    """Start a process, send `server/discover`, read the idle memory after `IDLE_SECONDS`, and end the process."""
    starting = Starting(argv, environ)
    try:
        took = starting.answer(json.dumps(DISCOVER).encode() + b"\n", 1)
        spent = cpu_seconds(starting.child.pid)
        time.sleep(IDLE_SECONDS)
        return Start(took, spent, megabytes(starting.child.pid))
    finally:
        starting.end()


def measure_session(argv: list[str], environ: dict[str, str], *, stays: float = 0.0) -> SessionStart:
    """Start a process, open a 2025 session, list the tools, wait `stays` seconds, and end the process."""
    starting = Starting(argv, environ)
    try:
        return SessionStart(starting.answer(json.dumps(HELLO).encode() + b"\n", 1), starting.answer(FIRST_LIST, 2))
    finally:
        time.sleep(stays)
        starting.end()


Contender = tuple[list[str], dict[str, str]]
"""A command line and its additional environment variables."""


def contenders(folder: Path) -> dict[str, Contender]:
    """Return the measured commands by name, and write their configuration files to `folder`."""
    bare = [sys.executable, "-m", "benchmarks.bare"]
    exposed = {"agents": [str(ROOT / "agents")], "skills": [str(ROOT / "skills")]}
    full = {"mcpServers": {"bare": {"command": bare[0], "args": bare[1:], "cwd": str(ROOT)}}, "expose": exposed}
    made: dict[str, Contender] = {"bare": (bare, {})}
    for name, settings in (("empty", {}), ("full", full)):
        config = folder / f"{name}.json"
        config.write_text(json.dumps({**settings, "storage": {"dir": str(folder / name)}}))
        made[name] = _gateway(config), {}
    environ = {"XDG_STATE_HOME": str(folder / "state"), "NOTES_FILE": str(folder / "notes.json"), "UNITS_PORT": str(free_ports(1)[0])}
    made["repository"] = _gateway(ROOT / "config" / "gateway.json"), environ
    return made


def _gateway(config: Path) -> list[str]:
    return [sys.executable, "-m", "gateway", "run", "--stdio", "--config", str(config)]


def rows(rounds: int) -> list[tuple[str, str, str]]:
    """Measure all starts, and return a title, a ratio and a target for each figure."""
    samples: dict[str, list[Start]] = {}
    sessions: dict[str, list[SessionStart]] = {}
    with tempfile.TemporaryDirectory() as name:
        commands = contenders(Path(name))
        for turn in range(rounds + 1):
            for contender in (list(commands), list(reversed(commands)))[turn % 2]:
                opened = measure_session(*commands[contender], stays=0.0 if turn else IDLE_SECONDS)
                start = measure(*commands[contender]) if contender != "repository" else None
                if not turn:  # the first round fills system caches and the gateway state, so it is not counted
                    continue
                sessions.setdefault(contender, []).append(opened)
                if start is not None:
                    samples.setdefault(contender, []).append(start)
    found: list[tuple[str, str, str]] = []
    for contender in ("empty", "full"):
        pairs = list(zip(samples[contender], samples["bare"], strict=True))
        first = statistics.median(own.seconds / bare.seconds for own, bare in pairs)
        spent = statistics.median(own.cpu_seconds / bare.cpu_seconds for own, bare in pairs)
        idle = statistics.median(own.megabytes / bare.megabytes for own, bare in pairs)
        found.append((f"first server/discover, gateway ({contender}) / bare server", f"{first:.2f}", "<= 1.3"))
        found.append((f"the same, processor time ({contender})", f"{spent:.2f}", "<= 1.3"))
        found.append((f"idle memory, gateway ({contender}) / bare server", f"{idle:.2f}", "<= 1.25"))
    for contender in ("empty", "repository"):
        both = list(zip(sessions[contender], sessions["bare"], strict=True))
        hello = statistics.median(own.initialize / bare.initialize for own, bare in both)
        listed = statistics.median(own.first_list / bare.first_list for own, bare in both)
        found.append((f"2025: initialize, gateway ({contender}) / bare server", f"{hello:.2f}", SESSION_TARGET))
        found.append((f"2025: first tools/list, gateway ({contender}) / bare server", f"{listed:.2f}", SESSION_TARGET))
    return found


def main() -> None:
    """Measure, and print a table of all figures with their targets."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rounds", type=int, default=9)
    options = cli.parse_args()
    compileall.compile_dir(str(ROOT / "gateway"), quiet=2)  # as pip does; `PYTHONDONTWRITEBYTECODE` may be set
    for figure, value, target in rows(options.rounds):
        sys.stdout.write(f"{figure:<60}  {value:>6}  {target}\n")


if __name__ == "__main__":
    main()
