"""Benchmark of durable tasks: time and CPU per task and per step, and tasks per second of one to three processes on one database.

    python -m benchmarks.tasks [--tasks N] [--rounds N] [--in-flight N]

Measures SQLite in a temporary folder, and a PostgreSQL server that the benchmark starts. The steps of a task do nothing, so the figures
are the cost of the task engine. Rounds of the two stores are interleaved. Each worker process runs this module with `--worker`, prints
`ready`, and starts its tasks when it receives a command on stdin.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread

from gateway.config.models import TaskSettings
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tasks.runner import TaskRunner
from gateway.tools.base import Complete
from gateway.tools.context import CallContext
from tests.fakes.postgres import postgres

STEPS = 10
MANY = 1_000_000
PROCESSES = (1, 2, 3)


def say(line: str) -> None:
    """Write a line to stdout and flush stdout."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def nothing(key: str) -> JsonValue:
    return {"result": {"content": [{"type": "text", "text": "done"}]}}


async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
    assert ctx.ports.durable is not None
    for _ in range(int(arguments["steps"])):
        await ctx.ports.durable.step("step", nothing, repeatable=True)
    return Complete.text("done")


async def one_task(runner: TaskRunner, steps: int) -> float:
    """Run a task with `steps` steps, and return the seconds from its start to its end."""
    began = time.perf_counter()
    task = await runner.start("tool", {"steps": steps}, CallContext())
    while not task.is_over:
        task = await runner.wait_for_change(task)
    return time.perf_counter() - began


async def work(folder: Path, url: str | None, count: int, in_flight: int) -> JsonObject:
    """Print `ready`, read a command from stdin, run `count` tasks, and return the measurements in seconds.

    `alone` runs one task at a time, without steps and with `STEPS` steps; the result has the median wall and mean CPU time of both.
    Any other command runs `in_flight` tasks at a time; the result has the start and end times.
    """
    records = Records(StateFolder(folder), audit_days=1, url=url)
    told: JsonObject = {}
    async with anyio.create_task_group() as group:
        settings = TaskSettings(max_per_caller=MANY, max_running_per_caller=MANY, ttl_seconds=3600)
        runner = TaskRunner(group, records, call, settings=settings)
        group.start_soon(runner.run)
        await one_task(runner, STEPS)
        say("ready")
        alone = (await anyio.to_thread.run_sync(sys.stdin.readline)).strip() == "alone"
        if alone:
            for steps in (0, STEPS):
                cpu = time.process_time()
                taken = [await one_task(runner, steps) for _ in range(count)]
                told[str(steps)] = {"wall": statistics.median(taken), "cpu": (time.process_time() - cpu) / count}
        else:
            began, left = time.time(), iter(range(count))

            async def client() -> None:
                for _ in left:
                    await one_task(runner, 1)

            async with anyio.create_task_group() as clients:
                for _ in range(in_flight):
                    clients.start_soon(client)
            told = {"began": began, "ended": time.time()}
        group.cancel_scope.cancel()
    await records.aclose()
    return told


class Worker:
    """A worker process that waits for a command; created when the process is ready."""

    def __init__(self, folder: Path, url: str | None, count: int, in_flight: int) -> None:
        place = [str(folder), *(["--url", url] if url else [])]
        command = [sys.executable, "-m", "benchmarks.tasks", "--tasks", str(count), "--in-flight", str(in_flight), "--worker", *place]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n"

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def told(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        self.process.wait()
        return answer


def run_round(url: str | None, tasks: int, in_flight: int) -> dict[str, float]:
    """Measure one store once: single tasks in one process, then many tasks in one to three processes."""
    with tempfile.TemporaryDirectory(prefix="moongate-bench-") as folder:
        alone = Worker(Path(folder), url, tasks, in_flight)
        alone.tell("alone")
        single = alone.told()
        bare, stepped = single["0"], single[str(STEPS)]
        figures = {
            "task, ms": bare["wall"] * 1000,
            "task, ms of CPU": bare["cpu"] * 1000,
            "step, ms": (stepped["wall"] - bare["wall"]) / STEPS * 1000,
            "step, ms of CPU": (stepped["cpu"] - bare["cpu"]) / STEPS * 1000,
        }
        for count in PROCESSES:
            workers = [Worker(Path(folder), url, tasks, in_flight) for _ in range(count)]
            for worker in workers:
                worker.tell("together")
            ends = [worker.told() for worker in workers]
            seconds = max(end["ended"] for end in ends) - min(end["began"] for end in ends)
            figures[f"tasks a second, {count} process{'es' if count > 1 else ''}"] = count * tasks / seconds
    return figures


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--tasks", type=int, default=200)
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--in-flight", type=int, default=20, help="tasks of one process at once")
    cli.add_argument("--worker", type=Path)
    cli.add_argument("--url")
    given = cli.parse_args()
    if given.worker is not None:
        place = cast("Path", given.worker), cast("str | None", given.url)
        say(json.dumps(anyio.run(work, *place, cast("int", given.tasks), cast("int", given.in_flight))))
        return
    rounds: dict[str, list[dict[str, float]]] = {"SQLite": [], "PostgreSQL": []}
    with postgres(durable=True) as server:
        for number in range(given.rounds):
            rounds["SQLite"].append(run_round(None, given.tasks, given.in_flight))
            rounds["PostgreSQL"].append(run_round(server.database(f"bench_{number}"), given.tasks, given.in_flight))
    say("| figure | SQLite | PostgreSQL |\n|---|---:|---:|")
    for name in rounds["SQLite"][0]:
        cells = (f"{statistics.median(figures[name] for figures in rounds[store]):.2f}" for store in rounds)
        say(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
