"""The part `replicas`: CPU time per call as a fleet grows from one to four replicas, at the same load per replica.

Four gateways serve the same load in every slot: the first n replicas of the fleet, which alone are counted, and gateways that stand alone,
each with its own nginx and database. Because: all programs share the processors of one machine, and a call costs more CPU time on a busier
machine, whether or not the gateways belong together. Rounds go forwards and backwards in turn, so that a machine that becomes slower
meanwhile does not count against the larger fleets.
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

WARM_SECONDS = 12.0
"""Seconds of load before each measurement, in which each session is continued once at every replica."""


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
    """Measure a fleet of `count` replicas once; CPU in milliseconds per call. Gateways of `alone` serve the rest of the load."""
    site.balance(count)
    load = Load(site.port, site.people)
    loads = [(load, count), *((Load(one.port, one.people), 1) for one in alone[: size.most - count])]
    try:
        for one, replicas in loads:
            await one.open_all(size.sessions * replicas, size.every, 1.0)
            one.start_modern(size.rate * replicas)
        await asyncio.sleep(WARM_SECONDS)
        before, first = _cpu(site, count), len(load.journal.outcomes)
        await asyncio.sleep(size.seconds)
        after, outcomes = _cpu(site, count), load.journal.outcomes[first:]
    finally:
        for one, _ in loads:
            await one.stop()
    if any(outcome.verdict is not Verdict.RIGHT for outcome in outcomes):
        raise RuntimeError(f"calls of the quiet fleet failed: {[one for one in outcomes if one.verdict is not Verdict.RIGHT][:3]}")
    gateways, database = ((now - then) / len(outcomes) * 1000 for now, then in zip(after, before, strict=True))
    return {"gateways": gateways, "postgres": database, "per_second": len(outcomes) / size.seconds}


async def idle(site: Site, seconds: float) -> float:
    """Return the CPU seconds per second of one idle replica."""
    before = _cpu(site, len(site.replicas))[0]
    await asyncio.sleep(seconds)
    return (_cpu(site, len(site.replicas))[0] - before) / seconds / len(site.replicas)


def _cpu(site: Site, count: int) -> tuple[float, float]:
    """Return the CPU seconds of the first `count` replicas and of PostgreSQL."""
    pids = [replica.pid for replica in site.replicas[:count] if replica.pid is not None]
    return sum(process_cpu(pid) for pid in pids), tree_cpu(site.postgres_pid())


async def measure(site: Site, alone: Sequence[Site], size: Size) -> dict[str, Any]:
    """Measure all sizes of the fleet and return the figures."""
    slots: dict[int, list[dict[str, float]]] = {count: [] for count in range(1, size.most + 1)}
    resting = await idle(site, size.seconds)
    say(f"an idle replica takes {resting * 100:.1f} % of a processor")
    for turn in range(size.rounds):
        for count in sorted(slots, reverse=turn % 2 == 1):
            found = await slot(site, alone, size, count)
            slots[count].append(found)
            say(f"{count} replicas: gateways {found['gateways']:.3f} ms per call, PostgreSQL {found['postgres']:.3f} ms")
    medians = {count: {key: statistics.median(one[key] for one in found) for key in found[0]} for count, found in slots.items()}
    one = medians[1]["gateways"]
    return {
        "size": dataclasses.asdict(size),
        "idle": resting,
        "fleets": {str(count): figures for count, figures in medians.items()},
        "ratio": max(figures["gateways"] for figures in medians.values()) / one,
    }


def run(folder: Path, size: Size) -> dict[str, Any]:
    """Start the largest fleet and the gateways that stand alone in an empty folder, run the part, and return the figures."""
    with ExitStack() as stack:
        site = stack.enter_context(running(folder, this_checkout(), replicas=size.most))
        alone: list[Site] = []
        for number in range(1, size.most):
            place = folder / f"alone-{number}"
            place.mkdir()
            alone.append(stack.enter_context(running(place, this_checkout(), replicas=1)))
        say(f"{size.most} replicas and {len(alone)} gateways alone serve")
        return asyncio.run(measure(site, alone, size))
