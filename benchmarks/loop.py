"""Benchmark of the agent loop: CPU time overhead per model call and tool call of Moongate, agent-framework and Pydantic AI.

    python -m benchmarks.loop [--runs N] [--rounds N] [--environments FOLDER]

Every framework runs in its own Python environment and sends its requests to the same scripted OpenAI-compatible server. The overhead of a
framework is its CPU time minus that of a minimal loop on the `openai` package in the same environment. Rounds are interleaved, and the
medians are compared as ratios. The first run installs the other frameworks into `--environments`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.fakes.openai_server import openai_server

HERE = Path(__file__).resolve().parent
PACKAGES = {
    "agent-framework": ("agent-framework-core==1.9.0", "agent-framework-openai==1.8.2"),
    "pydantic-ai": ("pydantic-ai-slim[openai]>=2,<3",),
}
"""Requirements by framework: the agent-framework release whose names Moongate adopted, and any Pydantic AI 2 release."""

TARGET = 0.5
"""Largest accepted ratio of Moongate's time to that of the faster of the other frameworks."""

TOOL_CALLS = 8
SCENARIOS = ("plain", "tools", "plain-streamed", "tools-streamed")
CALLS = [{"id": f"c{n}", "name": "weather_async", "arguments": {"city": "Kiel", "day": n}} for n in range(TOOL_CALLS)]
TURNS: list[dict[str, Any]] = [
    {"when": {"last_role": "tool"}, "text": "all finished now", "repeat": True},
    {"when": {"contains": "tools-task"}, "tool_calls": CALLS, "repeat": True},
    {"text": "all finished now", "repeat": True},
]
IMPORTS = {
    "moongate": "from gateway import Agent, OpenAIChatClient",
    "agent-framework": "from agent_framework import Agent\nfrom agent_framework.openai import OpenAIChatClient",
}


class Worker:
    """A worker process that runs `loop_worker.py` for one framework."""

    def __init__(self, python: str, name: str, url: str) -> None:
        self._name = name
        command = [python, "-W", "ignore", str(HERE / "loop_worker.py"), name, url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)

    def measure(self, scenario: str, runs: int) -> float:
        """Make `runs` runs of a scenario, and return the CPU seconds per run."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{scenario} {runs}\n")
        self._process.stdin.flush()
        told = self._process.stdout.readline()
        if not told:
            raise SystemExit(f"{self._name} stopped while it ran {scenario!r}; what it said is above.")
        return float(told) / runs

    def close(self) -> None:
        """Close the stdin of the process and wait for its end; kill the process after 30 s."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:  # all results have been read, so a kill loses nothing
            self._process.kill()
            self._process.wait(30)


def set_up(folder: Path) -> dict[str, str]:
    """Return the path of each framework's interpreter; create missing environments."""
    found = {"moongate": sys.executable}
    for name, packages in PACKAGES.items():
        python = folder / name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        found[name] = str(python)
    return found


def overheads(pythons: dict[str, str], url: str, runs: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return CPU seconds per run beyond the minimal loop, by framework and scenario: medians over interleaved rounds."""
    workers = {name: (Worker(python, name, url), Worker(python, "bare", url)) for name, python in pythons.items()}
    samples: dict[str, dict[str, list[float]]] = {name: {s: [] for s in SCENARIOS} for name in workers}
    try:
        for number in range(rounds + 1):
            for scenario in SCENARIOS:
                for name, (own, bare) in workers.items():
                    beyond = own.measure(scenario, runs) - bare.measure(scenario, runs)
                    if number:  # the first round warms up
                        samples[name][scenario].append(beyond)
    finally:
        for pair in workers.values():
            for worker in pair:
                worker.close()
    return {name: {s: statistics.median(values) for s, values in by.items()} for name, by in samples.items()}


def import_seconds(pythons: dict[str, str], rounds: int) -> dict[str, float]:
    """Return the wall seconds that the imports add to an interpreter start, by framework: medians over interleaved rounds."""
    samples: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(rounds):
        for name, statement in IMPORTS.items():
            took: list[float] = []
            for code in ("pass", statement):
                start = time.perf_counter()
                subprocess.run([pythons[name], "-W", "ignore", "-c", code], check=True, cwd=HERE.parent)
                took.append(time.perf_counter() - start)
            samples[name].append(took[1] - took[0])
    return {name: statistics.median(values) for name, values in samples.items()}


def main() -> None:
    """Measure the overheads and import times, and print the ratios."""
    parser = argparse.ArgumentParser(description="Overhead of an agent's run.")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--environments", type=Path, default=HERE.parent / ".venv" / "bench")
    options = parser.parse_args()
    pythons = set_up(options.environments)
    with openai_server(*TURNS) as server:
        found = overheads(pythons, server.base_url, options.runs, options.rounds)
    imports = import_seconds(pythons, options.rounds)
    rows: list[tuple[str, dict[str, float]]] = []
    for mode in ("", "-streamed"):
        per_call = {name: by[f"plain{mode}"] for name, by in found.items()}
        per_tool = {name: (by[f"tools{mode}"] - 2 * by[f"plain{mode}"]) / TOOL_CALLS for name, by in found.items()}
        rows += [(f"per model call{mode}", per_call), (f"per tool call{mode}", per_tool)]
    for label, values in rows:
        fastest = min(value for name, value in values.items() if name != "moongate")
        shown = ", ".join(f"{name} {value * 1e6:.0f} µs" for name, value in values.items())
        sys.stdout.write(f"{label}: moongate / the faster other {_verdict(values['moongate'], fastest)}  ({shown})\n")
    took = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in imports.items())
    sys.stdout.write(f"import: moongate / agent-framework {_verdict(imports['moongate'], imports['agent-framework'])}  ({took})\n")


def _verdict(own: float, other: float) -> str:
    """Return the ratio as text, and whether the ratio is within `TARGET`.

    A negative value is not used for a ratio. It means that a run uses less CPU time than the minimal loop, which is possible because the
    `openai` package builds a model object for every response.
    """
    if other <= 0:
        return f"has no ratio: the other one costs less than the bare loop, and ours {'less still' if own < other else 'MORE than that'}"
    if own <= 0:
        return f"holds (at most {TARGET:.2f}): ours costs less than the bare loop"
    return f"{own / other:.2f} ({'holds' if own / other <= TARGET else 'MISSED'}: at most {TARGET:.2f})"


if __name__ == "__main__":
    main()
