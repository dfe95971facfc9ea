"""The part `replicas`: CPU time per call as a fleet grows from one to four replicas, at the same load per replica.

Five gateways serve the same load in every slot: the first n replicas of the fleet, and gateways that stand alone, each with its own nginx
and database. The cost in the fleet is divided by the cost at the gateways that stand alone at the same time. Because: all programs share
the processors of one machine, which are up to a fifth slower in one minute than in another, and slower the busier the machine is.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # as the connections of `clients`
import dataclasses
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fleet.judge import Verdict
from benchmarks.fleet.meters import process_cpu, tree_cpu
from benchmarks.fleet.progress import say
from benchmarks.fleet.site import Site, running
from benchmarks.fleet.traffic import Load
from benchmarks.fleet.versions import this_checkout

WARM_SECONDS = 16.0
"""Seconds of load before each measurement, in which nearly all sessions are continued once at every replica."""


@dataclass(frozen=True)
class Size:
    """The load per replica and the length of the slots."""

    most: int = 4
    """Replicas of the largest fleet."""
    rate: float = 60.0
    """2026 requests per second and replica."""
    sessions: int = 60
    """2025 sessions per replica, each with an event stream."""
    every: float = 1.0
    """Seconds between two calls of a session."""
    seconds: float = 8.0
    rounds: int = 2


async def slot(site: Site, alone: Sequence[Site], size: Size, count: int) -> dict[str, float]:
    """Measure a fleet of `count` replicas and the gateways of `alone` that serve the rest of the load; CPU in milliseconds per call."""
    site.balance(count)
    load, rest = Load(site.port, site.people), alone[: size.most + 1 - count]
    others = [Load(one.port, one.people) for one in rest]
    loads = [(load, count), *((other, 1) for other in others)]
    try:
        for one, replicas in loads:
            await one.open_all(size.sessions * replicas, size.every, 1.0)
            one.start_modern(size.rate * replicas)
        await asyncio.sleep(WARM_SECONDS)
        before, first = _cpu([site], count), [len(one.journal.outcomes) for one, _ in loads]
        before_alone = _cpu(rest, 1)
        await asyncio.sleep(size.seconds)
        after, after_alone = _cpu([site], count), _cpu(rest, 1)
        outcomes = [one.journal.outcomes[start:] for (one, _), start in zip(loads, first, strict=True)]
    finally:
        for one, _ in loads:
            await one.stop()
    if failed := [outcome for found in outcomes for outcome in found if outcome.verdict is not Verdict.RIGHT]:
        raise RuntimeError(f"calls of the quiet fleet failed: {failed[:3]}")
    calls, calls_alone = len(outcomes[0]), sum(map(len, outcomes[1:]))
    gateways, database = ((now - then) / calls * 1000 for now, then in zip(after, before, strict=True))
    by_themselves = (after_alone[0] - before_alone[0]) / calls_alone * 1000
    return {
        "gateways": gateways,
        "alone": by_themselves,
        "relative": gateways / by_themselves,
        "postgres": database,
        "per_second": calls / size.seconds,
    }


async def idle(site: Site, seconds: float) -> float:
    """Return the CPU seconds per second of one idle replica."""
    before = _cpu([site], len(site.replicas))[0]
    await asyncio.sleep(seconds)
    return (_cpu([site], len(site.replicas))[0] - before) / seconds / len(site.replicas)


def _cpu(sites: Sequence[Site], count: int) -> tuple[float, float]:
    """Return the CPU seconds of the first `count` replicas of each fleet, and of the PostgreSQL servers."""
    pids = [replica.pid for site in sites for replica in site.replicas[:count] if replica.pid is not None]
    return sum(map(process_cpu, pids)), sum(tree_cpu(site.postgres_pid()) for site in sites)


async def measure(site: Site, alone: Sequence[Site], size: Size) -> dict[str, Any]:
    """Measure all sizes of the fleet and return the figures."""
    slots: dict[int, list[dict[str, float]]] = {count: [] for count in range(1, size.most + 1)}
    resting = await idle(site, size.seconds)
    say(f"an idle replica takes {resting * 100:.1f} % of a processor")
    for turn in range(size.rounds):
        for count in sorted(slots, reverse=turn % 2 == 1):
            found = await slot(site, alone, size, count)
            slots[count].append(found)
            say(f"{count} replicas: {found['gateways']:.3f} ms per call, {found['relative']:.2f} times that of gateways that stand alone")
    medians = {count: {key: statistics.median(one[key] for one in found) for key in found[0]} for count, found in slots.items()}
    return {
        "size": dataclasses.asdict(size),
        "idle": resting,
        "fleets": {str(count): figures for count, figures in medians.items()},
        "ratio": max(figures["relative"] for figures in medians.values()) / medians[1]["relative"],
    }


def run(folder: Path, size: Size) -> dict[str, Any]:
    """Start the largest fleet and the gateways that stand alone in an empty folder, run the part, and return the figures."""
    with ExitStack() as stack:
        site = stack.enter_context(running(folder, this_checkout(), replicas=size.most))
        alone: list[Site] = []
        for number in range(1, size.most + 1):
            place = folder / f"alone-{number}"
            place.mkdir()
            alone.append(stack.enter_context(running(place, this_checkout(), replicas=1)))
        say(f"{size.most} replicas and {len(alone)} gateways alone serve")
        return asyncio.run(measure(site, alone, size))
