"""Benchmark of workflow supersteps: CPU time of Moongate's workflow engine relative to agent-framework's.

    python -m benchmarks.workflows [--runs N] [--rounds N] [--environments FOLDER]

Both engines run the same graphs without checkpoints; `workflows_worker` builds the graphs with the same code for both. Each engine runs in
its own Python environment. Rounds are interleaved, and medians are compared. The first run installs agent-framework into `--environments`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = "agent-framework-core==1.13.0"
MODULES = ("gateway", "agent_framework")
SCENARIOS = ("chain", "fan", "pingpong", "chain-streamed", "fan-streamed", "chain-built", "fan-built")
"""Graph names. A `-streamed` run reads the events as a stream, and a `-built` run builds the graph again for every run."""


class Worker:
    """A worker process that runs `workflows_worker.py` for one engine."""

    def __init__(self, python: str, module: str) -> None:
        command = [python, str(HERE / "workflows_worker.py"), module]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)

    def measure(self, scenario: str, runs: int) -> float:
        """Make `runs` runs of a scenario, and return the CPU seconds per run."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{scenario} {runs}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline()) / runs

    def close(self) -> None:
        """Close the stdin of the process and wait up to 10 s for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def set_up(folder: Path) -> dict[str, str]:
    """Return the path of each engine's interpreter; create a missing environment."""
    python = folder / "agent-framework-workflows" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", PACKAGE], check=True)
    return {"gateway": sys.executable, "agent_framework": str(python)}


def main() -> None:
    """Measure all scenarios and print the ratios."""
    parser = argparse.ArgumentParser(description="Overhead of a superstep.")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--environments", type=Path, default=HERE.parent / ".venv" / "bench")
    options = parser.parse_args()
    workers = {module: Worker(python, module) for module, python in set_up(options.environments).items()}
    samples: dict[str, dict[str, list[float]]] = {scenario: {module: [] for module in MODULES} for scenario in SCENARIOS}
    try:
        for number in range(options.rounds + 1):
            for scenario in SCENARIOS:
                for module, worker in workers.items():
                    took = worker.measure(scenario, options.runs)
                    if number:  # the first round warms up
                        samples[scenario][module].append(took)
    finally:
        for worker in workers.values():
            worker.close()
    for scenario, by in samples.items():
        ours, theirs = (statistics.median(by[module]) for module in MODULES)
        figures = f"({ours * 1e6:.0f} µs, {theirs * 1e6:.0f} µs)"
        sys.stdout.write(f"{scenario}: moongate / agent-framework {ours / theirs:.2f}  {figures}\n")


if __name__ == "__main__":
    main()
