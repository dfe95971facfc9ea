"""The page of measurements says what was measured, and the driver counts answers only that are the called tool's own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.driver import CallFailed, Load, Wire, drive, plain_get
from benchmarks.report import TARGETS, About, Target, added, page, ratio, tables, verdict
from benchmarks.sheet import Sheet
from tests.fakes.running import child, free_port, wait_until_ready
from tests.house.documents import read

CELL = "100 B, c16"


def round_of(cpu: float, per_second: float = 1.0) -> dict[str, float]:
    return {"per_second": per_second, "cpu": cpu, "p50": cpu, "p99": cpu}


def measured(gateway: list[float], nginx: list[float]) -> Sheet:
    return Sheet(cells={CELL: {"gateway": [round_of(cpu) for cpu in gateway], "nginx": [round_of(cpu) for cpu in nginx]}})


def test_a_ratio_is_the_median_of_the_ratios_within_a_round() -> None:
    sheet = measured([2.0, 40.0, 9.0], [1.0, 10.0, 3.0])
    assert ratio(CELL, "cpu", "gateway", "nginx")(sheet) == 3.0
    assert ratio(CELL, "cpu", "gateway", "fastmcp")(sheet) is None


def test_what_is_added_is_counted_from_no_proxy_at_all() -> None:
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
def test_a_target_holds_where_it_holds_in_every_run(values: list[float | None], said: str) -> None:
    assert verdict(Target("M1", "", lambda sheet: None, 5), values) == said


def test_a_page_has_a_figure_for_each_run_the_table_of_all_and_what_was_left_out() -> None:
    first, second = measured([4.0], [1.0]), measured([6.0], [1.0])
    second.fail("FastMCP", "not installed")
    made = page([first, second], About("2026-11-21", "2 cores", {"nginx": "nginx/1.22"}, 10, 1))
    assert "| M1 | CPU per call, Moongate / nginx | 4.00 | 6.00 | ≤ 5 | **misses** |" in made
    assert "- FastMCP: not installed" in made and "| nginx, plain `proxy_pass` | nginx/1.22 |" in made
    kept = [Sheet(**json.loads(json.dumps(dataclasses.asdict(sheet)))) for sheet in (first, second)]
    assert tables(kept) == tables([first, second])
    assert tables([Sheet()]) == []


def test_the_page_in_the_docs_has_every_target_as_it_is_here() -> None:
    kept = read("docs/benchmarks.md")
    for target in TARGETS:
        row = next((line for line in kept.splitlines() if line.startswith(f"| {target.number} | {target.text} |")), "")
        assert f"| {target.wanted} |" in row, target.text


@asynccontextmanager
async def upstream(folder: Path) -> AsyncGenerator[Wire]:
    port = free_port()
    with child("-m", "benchmarks.upstream", str(port), "2", log=folder / "log") as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/counts", folder / "log")
        yield Wire(port)


async def test_a_slot_calls_in_both_eras_and_fails_where_an_answer_is_not_its_own(tmp_path: Path) -> None:
    async with upstream(tmp_path) as wire:
        for era in ("modern", "legacy"):
            taken = await drive(wire, Load(era=era, connections=4, calls=40, seconds=5.0, result=50_000))
            assert taken.calls == len(taken.latencies) == 40 and taken.p50 <= taken.percentile(0.99)
        counts = json.loads(await plain_get(wire.port, "/counts"))
        assert counts["requests"]["tools/call"] == 88 and counts["requests"]["initialize"] == 4
        with pytest.raises(CallFailed, match="Method not found"):
            await drive(wire, Load(method="resources/list", calls=1))
