"""Check that CPU time ratios are within their limits; exit with 1 if a ratio exceeds its limit or was not measured.

    python -m benchmarks.gate [--calls N] [--rounds N] [--against REV [--most RATIO]]

Without `--against`, the ratios compare the gateway with other proxies. Their limits are 30 % above the targets, because the machine may
run other programs too. With `--against`, the ratios compare the gateway of this checkout with that of revision REV, and both are measured
in the same run (`benchmarks.against`). The figures are CPU time of the gateways and proxies, measured in interleaved rounds. The test suite
does not run this check, because it takes a minute or two and its figures are useless on a busy machine. The tests check the upstream
requests and connections per call (M7), which are exact.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks import against
from benchmarks.contenders import GATEWAY
from benchmarks.machine import run_loop, stand_aside
from benchmarks.measures import MEGABYTE, Plan, by_name, called, cast, rounds
from benchmarks.report import Target, ratio
from benchmarks.sheet import Sheet

SLACK = 1.3
MANY_TOOLS = 5_000
SMALL, LARGE, IMAGE, BY_TOOLS = "100 B, c16", "1 MB result, c4", "1 MB image, c4", "100 B, c16, by tools"


def gates() -> list[Target]:
    """Return the checked ratios with their targets.

    If nginx is not installed, the byte proxy `raw` replaces nginx. The proxy uses 2.6 times the CPU time of nginx for calls of 100 B and
    1.2 times for results of 1 MB, so the targets are divided by these factors.
    """
    floor, small, large = ("nginx", 1.0, 1.0) if shutil.which("nginx") else ("raw", 2.6, 1.2)
    return [
        Target("M1", "a call of 100 B, of the tuned SDK relay's", ratio(SMALL, "cpu", "gateway", "relay"), 1 / 13),
        Target("M1", f"a call of 100 B, of {floor}'s", ratio(SMALL, "cpu", "gateway", floor), 5 / small),
        Target("M5", f"a call with {MANY_TOOLS:,} tools, of that with two", ratio(BY_TOOLS, "cpu", "many", "gateway"), 1.1),
        Target("M10", f"an image of 1 MB, not searched, of {floor}'s", ratio(IMAGE, "cpu", "gateway", floor), 1.6 / large),
        Target("M10", f"1 MB of prose, searched, of {floor}'s", ratio(LARGE, "cpu", "gateway", floor), 4 / large),
    ]


async def measure(plan: Plan, sheet: Sheet) -> None:
    """Measure the loads that the checked ratios need."""
    floor = by_name("nginx" if shutil.which("nginx") else "raw")
    async with cast(plan, sheet) as stage:
        few, many = await stage.upstream(2), await stage.upstream(MANY_TOOLS)
        own = await stage.start(GATEWAY, few.wire.port)
        yardstick = await stage.start(floor, few.wire.port)
        relay, full = await stage.start(by_name("relay"), few.wire.port), await stage.start(called("many"), many.wire.port)
        await rounds(plan, sheet, SMALL, plan.load(connections=16), [*own, *yardstick, *relay])
        await rounds(plan, sheet, BY_TOOLS, plan.load(connections=16), [*own, *full])
        for cell, is_image in ((LARGE, False), (IMAGE, True)):
            await rounds(plan, sheet, cell, plan.load(connections=4, result=MEGABYTE, is_image=is_image), [*own, *yardstick])


def main() -> None:
    """Measure, print one line per ratio, and exit with 1 if a check failed."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--calls", type=int, default=4_000, help="most calls in a slot, which takes a third of a second at 4,000")
    cli.add_argument("--rounds", type=int, help="rounds of each load; 7, or 21 with --against")
    cli.add_argument("--against", metavar="REV", help="compare with this revision of the repository")
    cli.add_argument("--most", type=float, default=against.MOST, help="with --against: the largest accepted ratio")
    options = cli.parse_args()
    sheet = Sheet()
    with tempfile.TemporaryDirectory(prefix="moongate-bench-") as name:
        folder = Path(name)
        checkout = against.checked_out(options.against, folder) if options.against else None
        plan = Plan(folder, options.calls, options.rounds or (7 if checkout is None else 21))
        stand_aside()
        run_loop(measure(plan, sheet) if checkout is None else against.measure(plan, sheet, checkout))
    failed = _print_gates(sheet) if checkout is None else _print_compared(sheet, options.most)
    for what, why in sheet.failed.items():
        sys.stderr.write(f"{what}: {why}\n")
    sys.exit(failed or bool(sheet.failed))


def _print_gates(sheet: Sheet) -> bool:
    """Print one line per ratio, and return whether a ratio exceeds its limit or was not measured."""
    failed = False
    for gate in gates():
        value = gate.value(sheet)
        is_kept = value is not None and value <= gate.limit * SLACK
        failed = failed or not is_kept
        said = f"{value:8.3f}" if value is not None else "       -"
        most = f"target {gate.limit:.3f}, at most {gate.limit * SLACK:.3f}{'' if is_kept else '  FAILED'}"
        sys.stdout.write(f"{gate.number + ': ' + gate.text:<62}{said}  {most}\n")
    return failed


def _print_compared(sheet: Sheet, most: float) -> bool:
    """Print one line per load, and return whether a ratio exceeds `most` or nothing was measured."""
    found = against.compared(sheet)
    for each in found:
        sys.stdout.write(each.line(most) + "\n")
    return not found or any(each.median > most for each in found)


if __name__ == "__main__":
    main()
