"""The page of measurements describes each measurement, and the driver counts only answers of the called tool."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from benchmarks import against, measures
from benchmarks.contenders import UPSTREAM, Contender, Place, gateway
from benchmarks.driver import CallFailed, Load, Streams, Wire, close_session, drive, open_session, plain_get, request
from benchmarks.machine import ROOT, free_ports, has_ended, python, started
from benchmarks.report import TARGETS, About, Target, added, page, ratio, tables, verdict
from benchmarks.sheet import AGAIN, TAKEN, Sheet
from tests.architecture.documents import read
from tests.fakes.running import child, free_port, wait_until_ready

CELL = "100 B, c16"
ABOUT = About("2026-11-21", "2 cores", {"nginx": "nginx/1.22"}, 10, 1)


def round_of(cpu: float, per_second: float = 1.0) -> dict[str, float]:
    return {"per_second": per_second, "cpu": cpu, "p50": cpu, "p99": cpu}


def measured(gateway: list[float], nginx: list[float]) -> Sheet:
    return Sheet(cells={CELL: {"gateway": [round_of(cpu) for cpu in gateway], "nginx": [round_of(cpu) for cpu in nginx]}})


def test_ratio_is_the_median_of_the_ratios_within_a_round() -> None:
    sheet = measured([2.0, 40.0, 9.0], [1.0, 10.0, 3.0])
    assert ratio(CELL, "cpu", "gateway", "nginx")(sheet) == 3.0
    assert ratio(CELL, "cpu", "gateway", "fastmcp")(sheet) is None


def test_overhead_is_counted_from_no_proxy() -> None:
    sheet = measured([5.0], [3.0])
    assert added(CELL, "p50", "gateway", "nginx")(sheet) is None
    sheet.cells[CELL]["direct"] = [round_of(2.0)]
    assert added(CELL, "p50", "gateway", "nginx")(sheet) == 3.0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([4.9, 5.0, 5.0], "holds"),
        ([4.9, 5.1, 4.9], "**misses**"),
        ([4.9, None, 4.9], "holds where measured"),
        ([None, None, None], "not measured"),
    ],
)
def test_target_holds_if_it_holds_in_every_run(values: list[float | None], said: str) -> None:
    assert verdict(Target("M1", "", lambda sheet: None, 5), values) == said


def test_page_has_every_run_the_table_of_all_and_omissions() -> None:
    first, second = measured([4.0], [1.0]), measured([6.0], [1.0])
    second.fail("FastMCP", "not installed")
    made = page([first, second], ABOUT)
    assert "| M1 | CPU per call, Moongate / nginx | 4.00 | 6.00 | ≤ 5 | **misses** |" in made
    assert "- FastMCP: not installed" in made and "| nginx, plain `proxy_pass` | nginx/1.22 |" in made
    kept = [Sheet(**json.loads(json.dumps(dataclasses.asdict(sheet)))) for sheet in (first, second)]
    assert tables(kept) == tables([first, second])
    assert tables([Sheet()]) == []


def test_table_stays_when_a_load_was_omitted_from_some_runs() -> None:
    title = "## In front of servers that speak 2025, or answer with streams, 16 connections"
    kept = measured([4.0], [1.0])
    assert not [text for text in tables([kept]) if text.startswith(title)]
    newer = Sheet(cells={"2025 server, streams, c16": {"gateway": [round_of(0.25, 3_000.0)], "direct": [round_of(0.1, 9_000.0)]}})
    found = next(text for text in tables([kept, newer]) if text.startswith(title))
    assert "| **Moongate** | - | - | 3,000 | 0.25 | - |" in found and "| direct (no proxy) | - | - | 9,000 | - | - |" in found


async def test_loads_before_servers_of_each_kind_match_their_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of both eras stands in for the contenders, because it starts fast."""

    def stand_in(name: str) -> Contender:
        return dataclasses.replace(UPSTREAM, name=name)

    monkeypatch.setattr(measures, "by_name", stand_in)
    monkeypatch.setattr(measures, "TRANSLATORS", ("gateway",))
    sheet = Sheet()
    await measures.servers(measures.Plan(tmp_path, calls=20, rounds=1), sheet)
    assert not sheet.failed
    rows = [line for text in tables([sheet]) for line in text.splitlines() if line.startswith("| **Moongate** |")]
    assert len(rows) == 2 and not [row for row in rows if "| - |" in row]


@pytest.mark.parametrize(("taken", "slots"), [([0.0], 2), ([0.0, 9.0, 5.0, 0.0], 4), ([0.0, 9.0, 9.0, 9.0, 9.0], 5)])
async def test_slot_is_measured_again_while_the_host_steals_cpu_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[float], slots: int
) -> None:
    """`taken` holds the CPU time that the host took during each slot, and later slots lose none. The first slot is a warm-up."""
    ends = [part for lost in taken for part in (0.0, lost)]
    monkeypatch.setattr(measures, "host_took", lambda: ends.pop(0) if ends else 0.0)
    sheet = Sheet()
    async with measures.cast(plan := measures.Plan(tmp_path, calls=20, rounds=1), sheet) as stage:
        server = await stage.upstream(2)
        before = json.loads(await plain_get(server.wire.port, "/counts"))["connections"]
        await measures.rounds(plan, sheet, CELL, plan.load(), [server])
        after = json.loads(await plain_get(server.wire.port, "/counts"))["connections"]
    assert after - before == slots
    assert len(sheet.cells[CELL]["direct"]) == 1 and len(sheet.single.get(AGAIN, {}).get(CELL, [])) == slots - 2
    sheet.note(TAKEN, "host", 0.0123)
    assert f"The host took 1.2% of the time of these cores for others during the runs; {slots - 2} slots" in page([sheet], ABOUT)


def test_comparison_pairs_rounds_and_fails_above_the_limit() -> None:
    now, before = [round_of(cpu) for cpu in (2.0, 11.0, 4.0)], [round_of(cpu) for cpu in (2.0, 10.0, 2.0)]
    sheet = Sheet(cells={CELL: {"gateway": now, "before": before}})
    (found,) = against.compared(sheet)
    assert found.median == 1.1
    assert "FAILED" in found.line(1.05) and "FAILED" not in found.line(1.1)
    assert against.compared(Sheet(cells={CELL: {"gateway": [round_of(2.0)]}})) == []


def test_earlier_revision_is_read_from_git_and_unknown_one_named(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    checkout = against.checked_out("HEAD", tmp_path)
    gateways = [side.command(Place(tmp_path, 1, 2)) for side in against.sides(checkout, gateway)]
    assert [command.folder for command in gateways] == [ROOT, checkout]
    assert (checkout / "gateway" / "__main__.py").is_file() and gateways[1].env["PYTHONPATH"] == str(checkout)
    with pytest.raises(SystemExit, match="no-such-revision"):
        against.checked_out("no-such-revision", tmp_path)


def test_process_that_exited_is_not_a_fault() -> None:
    with started(python("-c", "")) as process:
        while not has_ended(process):
            time.sleep(0.01)
    assert process.returncode == 0


def test_servers_that_run_at_once_have_ports_of_their_own() -> None:
    assert len(set(free_ports(500))) == 500


def test_docs_page_lists_every_target() -> None:
    kept = read("docs/benchmarks.md")
    for target in TARGETS:
        row = next((line for line in kept.splitlines() if line.startswith(f"| {target.number} | {target.text} |")), "")
        assert f"| {target.wanted} |" in row, target.text


@asynccontextmanager
async def upstream(folder: Path, kind: str = "both") -> AsyncGenerator[Wire]:
    port = free_port()
    with child("-m", "benchmarks.upstream", str(port), "2", "60000", kind, log=folder / "log") as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/counts", folder / "log")
        yield Wire(port)


async def test_slot_calls_in_both_eras_and_fails_on_a_foreign_response(tmp_path: Path) -> None:
    async with upstream(tmp_path) as wire:
        for era in ("modern", "legacy"):
            taken = await drive(wire, Load(era=era, connections=4, calls=40, seconds=5.0, result=50_000))
            assert taken.calls == len(taken.latencies) == 40 and taken.p50 <= taken.percentile(0.99)
        counts = json.loads(await plain_get(wire.port, "/counts"))
        assert counts["requests"]["tools/call"] == 88 and counts["requests"]["initialize"] == 4
        with pytest.raises(CallFailed, match="Method not found"):
            await drive(wire, Load(method="resources/list", calls=1))


@pytest.mark.parametrize(("kind", "eras"), [("streams", ["modern", "legacy"]), ("2025", ["legacy"]), ("2025-streams", ["legacy"])])
async def test_servers_of_each_kind_are_called_and_answer_as_they_do(tmp_path: Path, kind: str, eras: list[str]) -> None:
    async with upstream(tmp_path, kind) as wire:
        for era in eras:
            taken = await drive(wire, Load(era=era, connections=4, calls=20, seconds=5.0, result=50_000))
            assert taken.calls == 20
            session = await open_session(wire) if era == "legacy" else ""
            assert bool(session) == kind.startswith("2025")
            answer = await request(wire, era, "tools/list", {}, session)
            assert answer.startswith(b"event: message\r\ndata: {") == kind.endswith("streams")
            assert (b"resultType" in answer) == (not kind.startswith("2025"))


async def test_server_of_2025_refuses_requests_without_its_session(tmp_path: Path) -> None:
    async with upstream(tmp_path, "2025-streams") as wire:
        with pytest.raises(CallFailed, match=r"400.*Missing session ID"):
            await request(wire, "modern", "server/discover", {})
        session = await open_session(wire)
        with pytest.raises(CallFailed, match=r"404.*Session not found"):
            await request(wire, "legacy", "tools/list", {}, session + "0")
        assert b"Method not found" in await request(wire, "legacy", "server/discover", {}, session)
        await close_session(wire, session)
        with pytest.raises(CallFailed, match=r"404.*Session not found"):
            await request(wire, "legacy", "tools/list", {}, session)


async def test_session_has_one_listening_stream_which_ends_with_it(tmp_path: Path) -> None:
    async with upstream(tmp_path, "2025") as wire:
        session = await open_session(wire)
        listen = f"GET /mcp HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\nmcp-session-id: {session}\r\n\r\n".encode()
        async with await anyio.connect_tcp("127.0.0.1", wire.port) as first, await anyio.connect_tcp("127.0.0.1", wire.port) as second:
            await first.send(listen)
            assert b"200 OK" in await first.receive()
            await second.send(listen)
            assert b"409 " in await second.receive()
            await close_session(wire, session)
            assert await first.receive() == b"0\r\n\r\n"
        streams = Streams(wire)
        await streams.open(2)
        await streams.close()
