"""The measurements of the results page: one function per part, each with its own processes. All parts write to one `Sheet`.

Contenders run on one core, the driver and the upstream servers on the other. Rounds are interleaved, and every second round measures the
contenders in reverse order. A failed contender or load is recorded with its reason and left out; the other measurements continue.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio

from benchmarks.contenders import GATEWAY, OVER_HTTP, OVER_STDIO, RELAY, UPSTREAM, Contender, Place, Running, gateway, installed, running
from benchmarks.driver import CallFailed, Load, Streams, Wire, drive, plain_get, request
from benchmarks.machine import ROOT, Command, cores, cpu_seconds, free_port, free_ports, host_took, pinned, python, started, wait_for_port
from benchmarks.sheet import AGAIN, Sheet

T = TypeVar("T")

MEGABYTE = 1_000_000
SETTLE_SECONDS = 2.0
"""Seconds without requests before idle memory is read."""

MANY_SESSIONS = 200
LONG_RUN = 25
"""Length of the memory growth run in slots: 25 slots of 4,000 calls are 100,000 calls."""

START_SECONDS = 30.0
"""Timeout from the start of a process to its first complete tool list."""

PATIENCE_SECONDS = 8.0
"""Seconds that a contender may spend on one load. `rounds` skips the later rounds of a slower contender, to save time."""

OFTEN = 3
"""Factor for the number of rounds if a target depends on a ratio that varies much between rounds."""

MOST_OFTEN = 9
"""Factor for the number of rounds if the ratio varies more between rounds than its target allows."""

MOST_TAKEN = 0.02
"""Largest share of CPU steal time (time that the host gave to other guests) in a slot or start; a larger share repeats the measurement."""

TRIES = 4
"""Maximum number of attempts for a slot or start; the attempt with the smallest steal time counts."""

CALM_SECONDS = 10.0
"""Seconds to wait until the memory of the gateway has returned to its idle size after a load."""


@dataclass(frozen=True)
class Plan:
    """The number of calls and rounds of a measurement, its folder and its progress callback."""

    folder: Path
    calls: int = 4_000
    rounds: int = 3
    say: Callable[[str], None] = lambda text: None

    @property
    def seconds(self) -> float:
        """Maximum duration of a slot; the slot then ends even if fewer than `calls` calls were made."""
        return self.calls / 12_000

    def load(self, **fields: Any) -> Load:
        """Return a load with the calls and seconds of this plan, with `fields` set on top."""
        return dataclasses.replace(Load(calls=self.calls, seconds=self.seconds), **fields)


async def rounds(
    plan: Plan, sheet: Sheet, cell: str, load: Load, targets: Sequence[Running], often: Collection[str] = (), times: int = OFTEN
) -> None:
    """Measure one load on all targets, round by round, and record the figures under `cell` in the sheet.

    Targets named in `often` get `times` times as many rounds. The figures of the first round, the warm-up, are dropped.
    """
    plan.say(cell)
    there, spent = list(targets), dict.fromkeys((target.name for target in targets), 0.0)
    for turn in range(plan.rounds * (times if often else 1) + 1):
        if turn > plan.rounds:
            there = [target for target in there if target.name in often]
        for target in (there, there[::-1])[turn % 2]:
            wanted = load if turn else dataclasses.replace(load, seconds=load.seconds / 2)
            if spent[target.name] > PATIENCE_SECONDS * (times if target.name in often else 1) and turn > 1:
                continue
            began = time.monotonic()
            try:
                taken = await _undisturbed(partial(drive, target.wire, wanted, target.cpu), lambda: sheet.note(AGAIN, cell, 1))
            except CallFailed as error:
                sheet.fail(f"{cell}, {target.contender.title}", error)
                sheet.cells.get(cell, {}).pop(target.name, None)
                there = [other for other in there if other is not target]
                continue
            finally:
                spent[target.name] += time.monotonic() - began
            if turn and taken.calls:
                figures = {"per_second": taken.per_second, "cpu": taken.cpu_per_thousand, "p50": taken.p50, "p99": taken.percentile(0.99)}
                sheet.cells.setdefault(cell, {}).setdefault(target.name, []).append(figures)


async def _undisturbed(measured: Callable[[], Awaitable[T]], again: Callable[[], None]) -> T:
    """Measure, and repeat the measurement up to `TRIES` times in total while the CPU steal time is above `MOST_TAKEN`.

    Call `again` before each repetition, and return the result of the attempt with the smallest steal time.
    """
    tries: list[tuple[float, T]] = []
    while True:
        began, before = time.monotonic(), host_took()
        taken = await measured()
        lost = (host_took() - before) / (time.monotonic() - began) / len(set(cores()))
        tries.append((lost, taken))
        if lost <= MOST_TAKEN or len(tries) == TRIES:
            return min(tries, key=lambda each: each[0])[1]
        again()


class Cast:
    """The processes of one part. A contender that cannot be started is recorded in the sheet."""

    def __init__(self, plan: Plan, sheet: Sheet, stack: contextlib.AsyncExitStack) -> None:
        self._plan = plan
        self._sheet = sheet
        self._stack = stack

    async def start(self, contender: Contender, upstream: int = 0, *, server: Sequence[str] = (), core: int | None = None) -> list[Running]:
        """Start a contender and return it in a list; return an empty list if it is not installed or does not start."""
        if contender.program() is None:
            self._sheet.fail(contender.title, "not installed")
            return []
        pinned = cores()[0] if core is None else core
        try:
            entering = running(contender, self._plan.folder, upstream, core=pinned, server=server)
            return [await self._stack.enter_async_context(entering)]
        except (CallFailed, OSError) as error:
            self._sheet.fail(contender.title, error)
            return []

    async def upstream(self, tools: int, ttl_ms: int = 60_000, kind: str = "both", eras: tuple[str, ...] = UPSTREAM.eras) -> Running:
        """Start an upstream server on the core of the driver, and return it."""

        def command(place: Place) -> Command:
            return python("-m", "benchmarks.upstream", str(place.port), str(tools), str(ttl_ms), kind)

        found = await self.start(dataclasses.replace(UPSTREAM, command=command, eras=eras), core=cores()[1])
        assert found, self._sheet.failed
        return found[0]


@contextlib.asynccontextmanager
async def cast(plan: Plan, sheet: Sheet) -> AsyncGenerator[Cast]:
    """Provide the `Cast` of one part, and stop its processes on exit."""
    async with contextlib.AsyncExitStack() as stack:
        yield Cast(plan, sheet, stack)


def by_name(name: str) -> Contender:
    """Return the contender of `OVER_HTTP` with this name."""
    return next(contender for contender in OVER_HTTP if contender.name == name)


# -- parts -----------------------------------------------------------------------------------------------------------


def _unscanned(place: Place) -> Command:
    return gateway(place, policy={"hiddenText": "allow"})


UNSCANNED = dataclasses.replace(GATEWAY, name="unscanned", title="Moongate, `hiddenText: allow`", command=_unscanned)


async def hop(plan: Plan, sheet: Sheet) -> None:
    """Measure calls of several sizes on all contenders: targets M1, M2, M3, M7 and M10, and the table of contenders."""
    async with cast(plan, sheet) as stage:
        upstream = await stage.upstream(2)
        everyone = [upstream]
        for contender in [*OVER_HTTP, UNSCANNED]:
            everyone += await stage.start(contender, upstream.wire.port)
        for one in everyone[1:]:
            sheet.note("first list, s", one.name, one.seconds)
        await anyio.sleep(SETTLE_SECONDS)
        for one in everyone[1:]:
            sheet.note("idle memory, MB", one.name, one.megabytes())
        common = [one for one in everyone if one.name not in ("unscanned", "nginx-large")]
        await rounds(plan, sheet, "100 B, c1", plan.load(), common, ("direct", "nginx", "gateway"), MOST_OFTEN)
        await rounds(
            plan, sheet, "100 B, c16", plan.load(connections=16), common, ("nginx", "gateway", "fastmcp", "contextforge"), MOST_OFTEN
        )
        await rounds(plan, sheet, "100 B, 2025, c16", plan.load(connections=16, era="legacy"), common)
        await rounds(plan, sheet, "10 kB, c16", plan.load(connections=16, size=10_000), common)
        await rounds(plan, sheet, "1 MB both ways, c1", plan.load(size=MEGABYTE), everyone)
        for cell, is_image in (("1 MB result, c4", False), ("1 MB image, c4", True)):
            load = plan.load(connections=4, result=MEGABYTE, is_image=is_image, seconds=plan.seconds * 2)
            await rounds(plan, sheet, cell, load, everyone, ("nginx", "gateway"), MOST_OFTEN if is_image else OFTEN)
        await rounds(plan, sheet, "100 B, c64", plan.load(connections=64), common)
        await counted(plan, sheet, upstream.wire, [one for one in everyone if one.name == "gateway"])


async def counted(plan: Plan, sheet: Sheet, upstream: Wire, targets: Sequence[Running]) -> None:
    """Count the upstream requests and connections that calls and tool lists cause (target M7)."""
    for target in targets:
        for era in ("modern", "legacy"):
            load = plan.load(connections=8, era=era, calls=500, seconds=5.0)
            await drive(target.wire, load)
            before = json.loads(await plain_get(upstream.port, "/counts"))
            taken = await drive(target.wire, load)
            after = json.loads(await plain_get(upstream.port, "/counts"))
            made = taken.calls + load.connections
            asked = sum(after["requests"].values()) - sum(before["requests"].values())
            sheet.note(f"upstream requests per call, {era}", target.name, asked / made)
            sheet.note(f"new upstream connections, {era}", target.name, after["connections"] - before["connections"])
        before = json.loads(await plain_get(upstream.port, "/counts"))
        for _ in range(50):
            await request(target.wire, "modern", "tools/list", {})
            await request(target.wire, "modern", "server/discover", {})
        after = json.loads(await plain_get(upstream.port, "/counts"))
        sheet.note("upstream requests of lists", target.name, sum(after["requests"].values()) - sum(before["requests"].values()))


async def catalogue(plan: Plan, sheet: Sheet) -> None:
    """Measure calls with a large catalog (target M5) and tool lists (target M6)."""
    async with cast(plan, sheet) as stage:
        few, many = await stage.upstream(2), await stage.upstream(5_000)
        small, large = await stage.start(GATEWAY, few.wire.port), await stage.start(called("many"), many.wire.port)
        await rounds(plan, sheet, "100 B, c1, by tools", plan.load(), [*small, *large], ("gateway", "many"), MOST_OFTEN)
        await rounds(plan, sheet, "100 B, c16, by tools", plan.load(connections=16), [*small, *large])
    for label, ttl in (("cacheable", 60_000), ("not cacheable", 0)):
        async with cast(plan, sheet) as stage:
            upstream = await stage.upstream(500, ttl)
            everyone = [upstream]
            for name in ("nginx", "gateway", "relay", "fastmcp")[: 4 if ttl else 3]:
                everyone += await stage.start(by_name(name), upstream.wire.port)
            await rounds(plan, sheet, f"list of 500 tools, {label}", plan.load(method="tools/list"), everyone)


def called(name: str) -> Contender:
    """Return the gateway contender under another name, to measure two gateways in one load."""
    return dataclasses.replace(GATEWAY, name=name)


SDK_SERVER = Contender(
    "direct", "SDK server, no gateway", lambda place: python("-m", "benchmarks.bare", str(place.port)), installed, UPSTREAM.version
)


async def translated(plan: Plan, sheet: Sheet) -> None:
    """Measure 2025 and 2026 clients of a server on the MCP SDK (target M4).

    The SDK server uses most of the CPU time, so it has one core to itself; the driver and the contenders share the other core.
    """
    async with cast(plan, sheet) as stage:
        server = await stage.start(SDK_SERVER, core=cores()[1])
        everyone = list(server)
        for name in ("nginx", "gateway", "relay"):
            everyone += await stage.start(by_name(name), server[0].wire.port) if server else []
        load = plan.load(connections=16, seconds=plan.seconds * 2)
        with pinned(cores()[0]):
            await rounds(plan, sheet, "SDK server, 2025, c16", dataclasses.replace(load, era="legacy"), everyone, ("direct", "gateway"))
            await rounds(plan, sheet, "SDK server, 2026, c16", load, everyone)


SERVERS = {
    "2025 server": ("2025", "legacy"),
    "2025 server, streams": ("2025-streams", "legacy"),
    "2026 server, streams": ("streams", "modern"),
}
"""Server kind and client era by load. Client and server have the same era, because nginx cannot translate between eras."""

SHORTER = 0.6
"""Slot duration in `servers`, relative to the other parts. The part has many loads, which should take one minute in total."""

TRANSLATORS = ("gateway", "relay", "fastmcp")
"""Names of the contenders that translate between clients of one era and servers of the other."""


async def servers(plan: Plan, sheet: Sheet) -> None:
    """Measure contenders in front of 2025 servers with sessions and of servers that respond with SSE streams."""
    seconds = plan.seconds * SHORTER
    for cell, (kind, era) in SERVERS.items():
        async with cast(plan, sheet) as stage:
            upstream = await stage.upstream(2, kind=kind, eras=(era,))
            everyone = [upstream]
            for name in ("nginx", *TRANSLATORS):
                everyone += await stage.start(dataclasses.replace(by_name(name), eras=(era,)), upstream.wire.port)
            small = plan.load(connections=16, era=era, seconds=seconds)
            large = plan.load(connections=4, era=era, seconds=seconds, result=MEGABYTE)
            await rounds(plan, sheet, f"{cell}, c16", small, everyone)
            await rounds(plan, sheet, f"{cell}, 1 MB result, c4", large, everyone)
            if kind == "2025":
                able = [one for one in everyone if one.name in TRANSLATORS]
                await rounds(plan, sheet, f"{cell}, 2026 clients, c16", dataclasses.replace(small, era="modern"), able)


@dataclass(frozen=True)
class Start:
    """The upstreams and the state folder of a gateway start that is measured."""

    urls: Sequence[str]
    complete: int
    """Number of upstreams whose tools a complete tool list contains."""
    folder: Path | None = None
    """State folder of an earlier gateway that listed all upstreams; `None` to use a new, empty folder for each start."""


COMPARED = (
    "1 upstream",
    "1 and a new one that refuses",
    "1 upstream, known",
    "1 and a known one that refuses",
    "1 and a known one that is silent",
)
"""Names of the starts that should take equally long; they get `MOST_OFTEN` times as many rounds."""


async def starts(plan: Plan, sheet: Sheet) -> None:
    """Measure the time from the start of the process to the first complete tool list (target M8)."""

    def relay(place: Place) -> Command:
        return python("-m", "benchmarks.relay", str(place.port), urls[0])

    gone, mute, *ports = free_ports(52)
    urls = [_url(port) for port in ports]
    with contextlib.ExitStack() as stack:
        stack.enter_context(listening(ports))
        kinds = {
            "1 upstream": Start(urls[:1], 1),
            "10 upstreams": Start(urls[:10], 10),
            "50 upstreams": Start(urls, 50),
            "1 and a new one that refuses": Start([urls[0], _url(gone)], 1),
            "1 and a new one that is silent": Start([urls[0], _url(mute)], 1),
        }
        for name, port in (("1 upstream, known", 0), ("1 and a known one that refuses", gone), ("1 and a known one that is silent", mute)):
            given = [urls[0], *([_url(port)] if port else [])]
            folder = plan.folder / f"known-{port}"
            folder.mkdir()
            with listening([port] if port else []):
                await begin(plan, Sheet(), name, Start(given, len(given), folder))
            kinds[name] = Start(given, 1, folder)
        stack.enter_context(socket.create_server(("127.0.0.1", mute)))
        for turn in range(plan.rounds * MOST_OFTEN):
            plan.say(f"starts, round {turn + 1}")
            names = [name for name in kinds if name in COMPARED or turn < plan.rounds]
            for name in (names, names[::-1])[turn % 2]:
                await begin(plan, sheet, name, kinds[name])
            if turn < plan.rounds * OFTEN:
                await begin(plan, sheet, "relay", Start(urls[:1], 1), relay)


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/mcp"


@contextlib.contextmanager
def listening(ports: Sequence[int]) -> Generator[None]:
    """Run upstream servers with ten tools each on `ports`."""
    if not ports:
        yield
        return
    with started(python("-m", "benchmarks.upstream", ",".join(map(str, ports)), "10"), core=cores()[1]) as child:
        wait_for_port(ports[-1], child, 20)
        yield


async def begin(plan: Plan, sheet: Sheet, name: str, start: Start, command: Callable[[Place], Command] | None = None) -> None:
    """Measure one start up to the first complete tool list, and record its wall time and CPU time.

    CPU time depends less on the other processes of the machine than wall time does.
    """
    try:
        taken = await _undisturbed(partial(_begun, plan, start, command), lambda: sheet.note(AGAIN, f"start, {name}", 1))
    except CallFailed as error:
        sheet.fail(f"start, {name}", error)
        return
    sheet.note("start to first complete list, s", name, taken[0])
    sheet.note("start to first complete list, CPU s", name, taken[1])


async def _begun(plan: Plan, start: Start, command: Callable[[Place], Command] | None) -> tuple[float, float]:
    """Start a process and return the wall seconds and CPU seconds until its first complete tool list.

    Raises:
        CallFailed: The process did not send a complete tool list within `START_SECONDS`.
    """
    folder = start.folder or Path(tempfile.mkdtemp(prefix="start-", dir=plan.folder))
    place = Place(folder, free_port(), 0)
    made = command(place) if command is not None else gateway(place, urls=start.urls)
    began = time.monotonic()
    with started(made, core=cores()[0], log=folder / "log") as child:
        while time.monotonic() - began < START_SECONDS:
            with contextlib.suppress(OSError, CallFailed):
                answer = await request(Wire(place.port), "modern", "tools/list", {})
                if answer.count(b'tool_1"') >= start.complete:
                    return time.monotonic() - began, cpu_seconds(child.pid)
            await anyio.sleep(0.005)
    raise CallFailed(f"no complete list in {START_SECONDS:g} s")


async def memory(plan: Plan, sheet: Sheet) -> None:
    """Measure the memory used by idle sessions, after many calls (target M9) and after many connections (target M12)."""
    async with cast(plan, sheet) as stage:
        upstream = await stage.upstream(2)
        for contender in (GATEWAY, RELAY):
            for one in await stage.start(contender, upstream.wire.port):
                await _sessions(plan, sheet, one)
        for one in await stage.start(GATEWAY, upstream.wire.port):
            await _crowd(plan, sheet, one)
        for one in await stage.start(GATEWAY, upstream.wire.port):
            plan.say("memory after many calls")
            many = plan.load(connections=16, calls=plan.calls * LONG_RUN, seconds=60.0)
            await drive(one.wire, dataclasses.replace(many, calls=plan.calls * 2))
            before = one.megabytes()
            taken = await drive(one.wire, many)
            sheet.note("growth over the long run, MB", one.name, one.megabytes() - before)
            sheet.note("calls of the long run", one.name, taken.calls)


async def _sessions(plan: Plan, sheet: Sheet, one: Running) -> None:
    plan.say(f"idle sessions, {one.name}")
    streams = Streams(one.wire)
    try:
        await streams.open(20)
        before = one.megabytes()
        await streams.open(MANY_SESSIONS)
        await anyio.sleep(SETTLE_SECONDS)
        sheet.note("idle 2025 session, KiB", one.name, (one.megabytes() - before) / MANY_SESSIONS * 1024)
    except (CallFailed, OSError) as error:
        sheet.fail(f"idle sessions, {one.contender.title}", error)
    finally:
        await streams.close()


async def _crowd(plan: Plan, sheet: Sheet, one: Running) -> None:
    await drive(one.wire, plan.load(connections=16))
    await anyio.sleep(SETTLE_SECONDS)
    idle = one.megabytes()
    once = dataclasses.replace(plan, rounds=1)
    for _ in range(plan.rounds):
        for connections in (16, 256):
            load = plan.load(connections=connections, seconds=plan.seconds * 2, calls=plan.calls * 2)
            await rounds(once, sheet, f"crowd, c{connections}", load, [one])
    until = time.monotonic() + CALM_SECONDS
    while (now := one.megabytes()) > idle * 1.1 and time.monotonic() < until:  # noqa: ASYNC110  # memory can only be polled
        await anyio.sleep(0.5)
    sheet.note("memory after 256 connections / idle", one.name, now / idle)


async def bridges(plan: Plan, sheet: Sheet) -> None:
    """Measure contenders that forward HTTP requests to a stdio server (target M11)."""
    server = [python().argv[0], str(ROOT / "benchmarks" / "stdio_server.py"), str(cores()[1])]
    async with cast(plan, sheet) as stage:
        everyone: list[Running] = []
        for contender in OVER_STDIO:
            everyone += await stage.start(contender, server=server)
        for era, label in (("modern", "2026"), ("legacy", "2025")):
            there = [one for one in everyone if era in one.contender.eras]
            load = plan.load(connections=16, era=era, shares_session=True)
            await rounds(plan, sheet, f"over stdio, {label}, c16", load, there, [one.name for one in there])


PARTS = {
    "hop": hop,
    "catalogue": catalogue,
    "translated": translated,
    "servers": servers,
    "starts": starts,
    "memory": memory,
    "bridges": bridges,
}
