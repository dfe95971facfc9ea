"""What the results page is made of, measured once: one function per part, each with its own processes, all into one `Sheet`.

Contenders run on one core; the driver and what is behind them on the other. Rounds are interleaved, in turn forwards and backwards. What
fails is noted with its reason and left out; the rest goes on.
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
"""Before idle memory is read."""

MANY_SESSIONS = 200
LONG_RUN = 25
"""Times the calls of a slot: what memory must not grow by (100,000 calls)."""

START_SECONDS = 30.0
"""For a first complete list."""

PATIENCE_SECONDS = 8.0
"""A contender that has taken so long for one load is spared its later rounds, and all others the wait."""

OFTEN = 3
"""Times the rounds, where a target is set for a ratio that moves much by itself."""

MOST_OFTEN = 9
"""Times the rounds, where it moves more than the target allows."""

MOST_TAKEN = 0.02
"""Of the time of its cores that a host that shares them may take from a slot or a start: one of which it took more is measured again."""

TRIES = 4
"""For such a one; that of which the host took least counts."""

CALM_SECONDS = 10.0
"""For memory to come back after a load."""


@dataclass(frozen=True)
class Plan:
    """How much is done."""

    folder: Path
    calls: int = 4_000
    rounds: int = 3
    say: Callable[[str], None] = lambda text: None

    @property
    def seconds(self) -> float:
        """A slot ends after so many, however few the calls."""
        return self.calls / 12_000

    def load(self, **fields: Any) -> Load:
        """A load of this plan."""
        return dataclasses.replace(Load(calls=self.calls, seconds=self.seconds), **fields)


async def rounds(
    plan: Plan, sheet: Sheet, cell: str, load: Load, targets: Sequence[Running], often: Collection[str] = (), times: int = OFTEN
) -> None:
    """One load on all of these, in turn, those named `often` so many times as often; the first round warms up."""
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
    """What is measured, or measured once more while the host takes much of the time for others."""
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
    """Those that run at once; each is started when it is asked for, and one that does not start is noted."""

    def __init__(self, plan: Plan, sheet: Sheet, stack: contextlib.AsyncExitStack) -> None:
        self._plan = plan
        self._sheet = sheet
        self._stack = stack

    async def start(self, contender: Contender, upstream: int = 0, *, server: Sequence[str] = (), core: int | None = None) -> list[Running]:
        """It, or nothing."""
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
        """The server behind them."""

        def command(place: Place) -> Command:
            return python("-m", "benchmarks.upstream", str(place.port), str(tools), str(ttl_ms), kind)

        found = await self.start(dataclasses.replace(UPSTREAM, command=command, eras=eras), core=cores()[1])
        assert found, self._sheet.failed
        return found[0]


@contextlib.asynccontextmanager
async def cast(plan: Plan, sheet: Sheet) -> AsyncGenerator[Cast]:
    """A part and its processes."""
    async with contextlib.AsyncExitStack() as stack:
        yield Cast(plan, sheet, stack)


def by_name(name: str) -> Contender:
    """One of those over HTTP."""
    return next(contender for contender in OVER_HTTP if contender.name == name)


# -- parts -----------------------------------------------------------------------------------------------------------


def _unscanned(place: Place) -> Command:
    return gateway(place, policy={"hiddenText": "allow"})


UNSCANNED = dataclasses.replace(GATEWAY, name="unscanned", title="Moongate, `hiddenText: allow`", command=_unscanned)


async def hop(plan: Plan, sheet: Sheet) -> None:
    """M1, M2, M3, M7, M10 and the table of all contenders."""
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
    """M7: what a call is upstream."""
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
    """M5 and M6."""
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
    """A gateway under another name, where there are two."""
    return dataclasses.replace(GATEWAY, name=name)


SDK_SERVER = Contender(
    "direct", "SDK server, no gateway", lambda place: python("-m", "benchmarks.bare", str(place.port)), installed, UPSTREAM.version
)


async def translated(plan: Plan, sheet: Sheet) -> None:
    """M4: 2025 clients of a server on the SDK, which takes most of the time: it has a core to itself, and the driver shares the other."""
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
"""By load the kind of the server and the era of its clients: the server's own, for what only passes bytes on."""

SHORTER = 0.6
"""The length of a slot before these, of the others: there are many, and all together are to take a minute."""

TRANSLATORS = ("gateway", "relay", "fastmcp")
"""Who may have clients of one era before a server of another."""


async def servers(plan: Plan, sheet: Sheet) -> None:
    """In front of servers that speak 2025 with sessions, and of those whose answers are event streams."""
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
    """A gateway that is started."""

    urls: Sequence[str]
    complete: int
    """Upstreams whose tools the list has when it is complete."""
    folder: Path | None = None
    """Of a former one, which has listed all; nothing for a new one each time."""


COMPARED = (
    "1 upstream",
    "1 and a new one that refuses",
    "1 upstream, known",
    "1 and a known one that refuses",
    "1 and a known one that is silent",
)
"""Starts that are to take the same time."""


async def starts(plan: Plan, sheet: Sheet) -> None:
    """M8: from the start of the process to the first complete listing."""

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
    """Upstreams of ten tools each."""
    if not ports:
        yield
        return
    with started(python("-m", "benchmarks.upstream", ",".join(map(str, ports)), "10"), core=cores()[1]) as child:
        wait_for_port(ports[-1], child, 20)
        yield


async def begin(plan: Plan, sheet: Sheet, name: str, start: Start, command: Callable[[Place], Command] | None = None) -> None:
    """One start, up to the first complete list; processor time too, which depends less on what else the machine does."""
    try:
        taken = await _undisturbed(partial(_begun, plan, start, command), lambda: sheet.note(AGAIN, f"start, {name}", 1))
    except CallFailed as error:
        sheet.fail(f"start, {name}", error)
        return
    sheet.note("start to first complete list, s", name, taken[0])
    sheet.note("start to first complete list, CPU s", name, taken[1])


async def _begun(plan: Plan, start: Start, command: Callable[[Place], Command] | None) -> tuple[float, float]:
    """Seconds of a start, and of its processor time."""
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
    """M9 and M12: what idle sessions, many calls and many connections leave behind."""
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
    while (now := one.megabytes()) > idle * 1.1 and time.monotonic() < until:  # noqa: ASYNC110  # another process tells nobody
        await anyio.sleep(0.5)
    sheet.note("memory after 256 connections / idle", one.name, now / idle)


async def bridges(plan: Plan, sheet: Sheet) -> None:
    """M11: a server over stdio, called over HTTP."""
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
