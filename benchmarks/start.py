"""What it costs until the first answer, and while nothing happens: the gateway over stdio beside a bare server of the SDK.

    python -m benchmarks.start [--rounds N]

Starts are interleaved; figures are ratios within one run. `empty` is a gateway with nothing configured, `full` one with a server over
stdio and the agents, workflows and skills of this repository.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import ROOT, cpu_seconds, megabytes
from benchmarks.payload import META

DISCOVER = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": META}}
IDLE_SECONDS = 3.0
"""After the first answer, for sources to settle; what is resident then is idle memory."""


@dataclass(frozen=True, slots=True)
class Start:
    """What one start took."""

    seconds: float
    cpu_seconds: float
    megabytes: float
    """Its own and its share of what it shares (PSS), without its children."""


def measure(argv: list[str]) -> Start:
    """Start, ask `server/discover`, wait, and end."""
    started = time.monotonic()
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps(DISCOVER).encode() + b"\n")
            child.stdin.flush()
            answer = child.stdout.readline()
            took, spent = time.monotonic() - started, cpu_seconds(child.pid)
            assert b'"result"' in answer, answer[:300]
            time.sleep(IDLE_SECONDS)
            return Start(took, spent, megabytes(child.pid))
        finally:
            child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
            child.kill()


def contenders(folder: Path) -> dict[str, list[str]]:
    """Commands by name."""
    bare = [sys.executable, "-m", "benchmarks.bare"]
    exposed = {"agents": [str(ROOT / "agents")], "skills": [str(ROOT / "skills")]}
    full = {"mcpServers": {"bare": {"command": bare[0], "args": bare[1:], "cwd": str(ROOT)}}, "expose": exposed}
    made = {"bare": bare}
    for name, settings in (("empty", {}), ("full", full)):
        config = folder / f"{name}.json"
        config.write_text(json.dumps({**settings, "storage": {"dir": str(folder / name)}}))
        made[name] = [sys.executable, "-m", "gateway", "run", "--stdio", "--config", str(config)]
    return made


def rows(rounds: int) -> list[tuple[str, str, str]]:
    """Every figure with its target."""
    samples: dict[str, list[Start]] = {}
    with tempfile.TemporaryDirectory() as name:
        commands = contenders(Path(name))
        for turn in range(rounds + 1):
            for contender in (list(commands), list(reversed(commands)))[turn % 2]:
                start = measure(commands[contender])
                if turn:  # the first round fills the caches of the system
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
