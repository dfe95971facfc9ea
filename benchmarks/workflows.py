"""What a superstep costs: Moongate's workflow engine against agent-framework's, as ratios.

    python -m benchmarks.workflows [--runs N] [--rounds N] [--environments FOLDER]

Both run the same graphs, made by the same code (`workflows_worker`), without checkpoints. Each is in an interpreter of its
own; rounds are interleaved and medians of processor time compared. agent-framework is installed into `--environments` at
the first run.
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
"""The graphs, each as a result, as a stream, and built anew for every run."""


class Worker:
    """One contender, running."""

    def __init__(self, python: str, module: str) -> None:
        command = [python, str(HERE / "workflows_worker.py"), module]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)

    def measure(self, scenario: str, runs: int) -> float:
        """Processor seconds of one run."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{scenario} {runs}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline()) / runs

    def close(self) -> None:
        """Let it go."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def set_up(folder: Path) -> dict[str, str]:
    """The interpreter of each contender; a missing one is made."""
    python = folder / "agent-framework-workflows" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", PACKAGE], check=True)
    return {"gateway": sys.executable, "agent_framework": str(python)}


def main() -> None:
    """Measure and print the ratios."""
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
