"""What it costs until the first answer, and while nothing happens: the gateway over stdio beside a bare server of the SDK.

    python -m benchmarks.start [--rounds N]

Starts are interleaved; figures are ratios within one run. `empty` is a gateway with nothing configured, `full` one with a server over
stdio and the agents, workflows and skills of this repository, `repository` one with the configuration of this repository. Its server over
HTTP is not there, as for an IDE. Each was started before, so the gateway answers 2025 clients with what it kept then.
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
"""What hosts declare."""
SESSION_TARGET = "<= 0.5"
FIRST_LIST = b"""{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"_meta":{"progressToken":0}}}
"""
IDLE_SECONDS = 3.0
"""After the first answer, for sources to settle; what is resident then is idle memory."""


@dataclass(frozen=True, slots=True)
class Start:
    """What one start took."""

    seconds: float
    cpu_seconds: float
    megabytes: float
    """Its own and its share of what it shares (PSS), without its children."""


@dataclass(frozen=True, slots=True)
class SessionStart:
    """Seconds from the start of a process to the answers that a 2025 client waits for."""

    initialize: float
    first_list: float


class Starting:
    """A process that was just started, and a client of it. `end` it."""

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
        """Have it end as its client leaves."""
        with self.child as child:
            assert child.stdin is not None
            child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
            child.kill()


def measure(argv: list[str], environ: dict[str, str]) -> Start:
    """Start, send `server/discover`, wait, and end."""
    starting = Starting(argv, environ)
    try:
        took = starting.answer(json.dumps(DISCOVER).encode() + b"\n", 1)
        spent = cpu_seconds(starting.child.pid)
        time.sleep(IDLE_SECONDS)
        return Start(took, spent, megabytes(starting.child.pid))
    finally:
        starting.end()


def measure_session(argv: list[str], environ: dict[str, str], *, stays: float = 0.0) -> SessionStart:
    """Start, open a 2025 session, list the tools, stay so many seconds, and end."""
    starting = Starting(argv, environ)
    try:
        return SessionStart(starting.answer(json.dumps(HELLO).encode() + b"\n", 1), starting.answer(FIRST_LIST, 2))
    finally:
        time.sleep(stays)
        starting.end()


Contender = tuple[list[str], dict[str, str]]
"""A command, and what its environment has beside ours."""


def contenders(folder: Path) -> dict[str, Contender]:
    """Commands by name."""
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
    """Every figure with its target."""
    samples: dict[str, list[Start]] = {}
    sessions: dict[str, list[SessionStart]] = {}
    with tempfile.TemporaryDirectory() as name:
        commands = contenders(Path(name))
        for turn in range(rounds + 1):
            for contender in (list(commands), list(reversed(commands)))[turn % 2]:
                opened = measure_session(*commands[contender], stays=0.0 if turn else IDLE_SECONDS)
                start = measure(*commands[contender]) if contender != "repository" else None
                if not turn:  # the first round fills the caches of the system, and the gateway keeps its answers for the next
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
    """Print one table."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--rounds", type=int, default=9)
    options = cli.parse_args()
    compileall.compile_dir(str(ROOT / "gateway"), quiet=2)  # as installers do; an environment may forbid starts to keep bytecode
    for figure, value, target in rows(options.rounds):
        sys.stdout.write(f"{figure:<60}  {value:>6}  {target}\n")


if __name__ == "__main__":
    main()
