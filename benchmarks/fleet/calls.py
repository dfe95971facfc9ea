"""The part `calls`: sessions and requests through a quiet fleet, and then while its replicas are killed and upgraded."""

from __future__ import annotations

import asyncio  # noqa: TID251  # as the connections of `clients`
import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fleet.disturbances import Disturbances
from benchmarks.fleet.judge import Failure, Judgement, Outcome, Verdict, judge
from benchmarks.fleet.meters import Meters, per_second
from benchmarks.fleet.progress import say
from benchmarks.fleet.site import Site, running
from benchmarks.fleet.traffic import Load
from benchmarks.fleet.versions import Upgrade, prepare, this_checkout

SETTLE_SECONDS = 5.0
"""Pause after the sessions are open, and between the phases."""


@dataclass(frozen=True)
class Size:
    """The size of the load and the disturbances."""

    sessions: int = 2_000
    rate: float = 200.0
    """2026 requests per second."""
    every: float = 20.0
    """Seconds between two calls of a session."""
    share: float = 1.0
    """Share of sessions with an open event stream. Clients of the official SDKs all open one."""
    quiet: float = 60.0
    """Seconds of the quiet phase."""
    kills: int = 6
    interval: float = 20.0
    """Seconds between two kills."""
    upgrades: bool = True
    revision: str | None = None
    """The earlier version of the upgrade."""
    wrong_every: int = 0
    """Each n-th call gets a wrong answer, to test the judge; 0: none."""


async def measure(site: Site, size: Size, versions: Upgrade | None) -> dict[str, Any]:
    """Run both phases on a fleet and return the figures."""
    load, meters = Load(site.port, site.people), Meters(site)
    sampling = asyncio.create_task(meters.sample())
    try:
        began = time.monotonic()
        await load.open_all(size.sessions, size.every, size.share)
        opened = time.monotonic() - began
        say(f"{size.sessions} sessions are open after {opened:.1f} s")
        meters.drivers.append(load.streams.pid)
        load.start_modern(size.rate)
        await asyncio.sleep(SETTLE_SECONDS)
        say(f"quiet phase, {size.quiet:g} s")
        quiet = await _phase(site, load, meters, asyncio.sleep(size.quiet), Disturbances(site))
        say(f"quiet: {_line(quiet)}")
        disturbances = Disturbances(site, meters.note)
        say(f"disturbed phase: {size.kills} kills{', one upgrade' if versions else ''}")
        disturbed = await _phase(site, load, meters, _disturb(disturbances, size, versions), disturbances)
        say(f"disturbed: {_line(disturbed)}")
        load.check()
        refusals = dict(load.streams.counts.refusals)
    finally:
        sampling.cancel()
        await load.stop()
    return {
        "size": dataclasses.asdict(size),
        "opened_per_second": size.sessions / opened,
        "quiet": quiet,
        "disturbed": disturbed,
        "p99_ratio": disturbed["latency"]["all"]["p99"] / quiet["latency"]["all"]["p99"],
        "stream_refusals": refusals,
        "warnings": site.warnings(),
        "nginx_errors": site.nginx_errors(),
        "versions": _names(versions),
    }


def _names(versions: Upgrade | None) -> list[str]:
    """Return the names and schema versions of an upgrade."""
    if versions is None:
        return []
    return [f"{one.name} (schema {one.schema})" for one in (versions.earlier, versions.expanded, versions.contracted)]


async def _disturb(disturbances: Disturbances, size: Size, versions: Upgrade | None) -> None:
    """Kill replicas and upgrade the fleet at the same time, and wait until nginx uses all replicas again.

    The first replica is never killed, so that its memory can be judged until it is replaced.
    """
    numbers = tuple(range(1, len(disturbances.site.replicas)))

    async def upgrade() -> None:
        if versions is not None:
            await asyncio.sleep(size.interval * size.kills / 2 + size.interval / 4)
            await disturbances.upgrade(versions)

    async with asyncio.TaskGroup() as group:
        group.create_task(disturbances.kill_every(size.interval, numbers, size.kills))
        group.create_task(upgrade())
    await asyncio.sleep(SETTLE_SECONDS)


async def _phase(site: Site, load: Load, meters: Meters, work: Any, disturbances: Disturbances) -> dict[str, Any]:
    before, began, streams = meters.read(), time.time(), load.streams.counts.ends
    first, first_wait, samples = len(load.journal.outcomes), len(load.journal.waits), len(meters.connections)
    await work
    after, ended = meters.read(), time.time()
    await asyncio.sleep(1)  # nginx writes its log when a request ends
    outcomes = load.journal.outcomes[first:]
    judged = judge(outcomes, disturbances.kills, site.failed_requests())
    waits = [seconds for _, seconds in load.journal.waits[first_wait:]]
    used = per_second(before, after)
    calls = sum(outcome.verdict is Verdict.RIGHT for outcome in outcomes)
    growths = [growth for one in site.replicas if (growth := meters.growth(one.number, began, ended)) is not None]
    return {
        "seconds": ended - began,
        "calls": calls,
        "latency": _latencies(outcomes),
        "latency_with_retries_p99": _percentile(waits, 0.99),
        "latency_with_retries_max": max(waits, default=0.0),
        "use": used,
        "gateway_ms_per_call": (after.gateways - before.gateways) / max(calls, 1) * 1000,
        "transactions_per_call": (after.database.transactions - before.database.transactions) / max(calls, 1),
        "growth_mib_per_minute": max(growths, default=0.0),
        "memory_mib": meters.highest(began),
        "connections": max(meters.connections[samples:], default=0),
        "stream_ends": load.streams.counts.ends - streams,
        "open_streams": load.streams.counts.open,
        "stop_seconds": disturbances.stop_seconds,
        "ready_seconds": disturbances.ready_seconds,
        "events": disturbances.notes,
        "judgement": _judged(judged),
    }


def _judged(judged: Judgement) -> dict[str, Any]:
    return {
        "attempts": judged.answers,
        "wrong": len(judged.wrong) - judged.foreign,
        "foreign": judged.foreign,
        "excused": dict(judged.excused),
        "violations": len(judged.violations),
        "violation_forms": dict(judged.forms()),
        "examples": [*judged.wrong[:10], *judged.violations[:30]],
        "lost": judged.lost,
        "bare": judged.failures[Failure.BARE],
        "stream_broke": judged.failures[Failure.STREAM_BROKE],
        "clean": judged.is_clean,
    }


def _latencies(outcomes: list[Outcome]) -> dict[str, dict[str, float]]:
    """Return p50 and p99 in seconds of right answers, of all and of each protocol version."""
    right = [outcome for outcome in outcomes if outcome.verdict is Verdict.RIGHT]
    kinds = {"all": right, "2025": [one for one in right if one.era == "2025"], "2026": [one for one in right if one.era == "2026"]}
    return {
        name: {part: _percentile([one.seconds for one in chosen], value) for part, value in (("p50", 0.5), ("p99", 0.99))}
        for name, chosen in kinds.items()
    }


def _percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0


def _line(phase: dict[str, Any]) -> str:
    judged, latency = phase["judgement"], phase["latency"]["all"]
    return (
        f"{phase['calls']} calls, p50 {latency['p50'] * 1000:.1f} ms, p99 {latency['p99'] * 1000:.1f} ms, "
        f"{judged['wrong']} wrong, {judged['foreign']} foreign, {sum(judged['excused'].values())} failed in flight at a killed replica, "
        f"{judged['violations']} other failures, {judged['lost']} lost; processors {phase['use']['machine']:.2f}"
    )


def run(folder: Path, size: Size) -> dict[str, Any]:
    """Start a fleet in an empty folder, run the part, and return the figures."""
    versions = prepare(folder / "versions", size.revision) if size.upgrades else None
    say(f"upgrade from {versions.earlier.name}" if versions else "no upgrade")
    site_folder = folder / "site"
    site_folder.mkdir()
    with running(site_folder, versions.earlier if versions else this_checkout(), wrong_every=size.wrong_every) as site:
        say("three replicas serve")
        return asyncio.run(measure(site, size, versions))

