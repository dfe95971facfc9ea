"""What must not get worse: three targets as ratios, each with slack for a machine that does other things too. Ends with 1 where one fails.

    python -m benchmarks.gate [--calls N] [--rounds N]

Rounds are interleaved and figures are processor time of the servers. Not part of the tests: it takes a minute or two, and says
nothing on a machine that is busy for longer than that. Requests and connections per call (M7) are exact, and gated by the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import anyio

from benchmarks.hop import cpu_seconds, first_list, free_port, process
from benchmarks.hop_sizes import run_calls, start
from gateway.upstream.pool import Pool

SLACK = 1.3
MANY_TOOLS = 5_000
LARGE = 1_000_000
"""Of a result; the call that asks for it is small."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One target: what `one` takes per call, at most `limit` times what `other` takes."""

    name: str
    size: int
    """Of the result."""
    one: str
    other: str
    limit: float


def gates() -> list[Gate]:
    """Where nginx is missing, the byte proxy stands in: it takes 1.2 times as much at 1 MB and 2.6 times at 100 B."""
    floor, small, large = ("nginx", 1.0, 1.0) if shutil.which("nginx") else ("raw", 2.6, 1.2)
    return [
        Gate("M1: a call of 100 B, of the tuned SDK relay's", 100, "gateway", "relay", 1 / 13),
        Gate(f"M1: a call of 100 B, of {floor}'s", 100, "gateway", floor, 5 / small),
        Gate("M5: with 5,000 tools, of that with two", 100, "many", "gateway", 1.1),
        Gate(f"M10: a result of 1 MB, every guard on, of {floor}'s", LARGE, "gateway", floor, 4 / large),
    ]


async def measure(folder: Path, calls: int, rounds: int) -> list[tuple[Gate, float]]:
    """The ratio of each gate, median of the rounds."""
    wanted = gates()
    names = list(dict.fromkeys(name for gate in wanted for name in (gate.one, gate.other)))
    few, many = free_port(), free_port()
    found: list[tuple[Gate, float]] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(process("-m", "benchmarks.upstream", str(few), "2"))
        stack.enter_context(process("-m", "benchmarks.upstream", str(many), str(MANY_TOOLS)))
        time.sleep(1)  # noqa: ASYNC251  # nothing else runs yet
        pids: dict[str, int] = {}
        pools: dict[str, Pool] = {}
        for name in names:
            port, upstream = free_port(), many if name == "many" else few
            kind = "gateway" if name == "many" else name
            child = stack.enter_context(start(kind, folder / name, f"http://127.0.0.1:{upstream}/mcp", port, ""))
            await first_list(port, time.monotonic())
            pids[name], pools[name] = child.pid, Pool(name, "127.0.0.1", port, tls=None, max_body_bytes=1 << 26)
            stack.callback(pools[name].close)
        for size in dict.fromkeys(gate.size for gate in wanted):
            count = calls if size < LARGE else max(calls // 20, 16)
            taking_part = list(dict.fromkeys(name for gate in wanted if gate.size == size for name in (gate.one, gate.other)))
            spent: dict[str, list[float]] = {name: [] for name in taking_part}
            for turn in range(rounds + 1):
                for name in (taking_part, taking_part[::-1])[turn % 2]:
                    before = cpu_seconds(pids[name])
                    await run_calls(pools[name], 100, count, size - 100)
                    if turn:  # the first round warms up
                        spent[name].append((cpu_seconds(pids[name]) - before) / count)
            for gate in wanted:
                if gate.size == size:
                    pairs = zip(spent[gate.one], spent[gate.other], strict=True)
                    found.append((gate, statistics.median(one / other for one, other in pairs)))
    return found


def main() -> None:
    """Print one line per gate."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--calls", type=int, default=1_000, help="calls per round and contender; a twentieth at 1 MB")
    cli.add_argument("--rounds", type=int, default=7)
    options = cli.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for gate in gates():
            for part in (gate.one, gate.other):
                (Path(name) / part).mkdir(exist_ok=True)
        found = anyio.run(measure, Path(name), options.calls, options.rounds)
    failed = False
    for gate, ratio in found:
        is_kept = ratio <= gate.limit * SLACK
        failed = failed or not is_kept
        verdict = "" if is_kept else "  FAILED"
        sys.stdout.write(f"{gate.name:<62}{ratio:8.3f}  target {gate.limit:.3f}, at most {gate.limit * SLACK:.3f}{verdict}\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
