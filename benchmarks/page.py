"""Measure every target of the gateway several times in a row, and write docs/benchmarks.md.

    python -m benchmarks.page [--runs N] [--calls N] [--rounds N] [--part NAME]… [--keep FILE] [--from FILE] [--out FILE] [--note TEXT]…

All processes listen on the loopback interface only and are stopped at the end. `--keep` writes the measurements to a JSON file, and
`--from` writes the page again from that file. Contenders that are not installed are left out and listed on the page; `setup.sh` installs
them.
"""

from __future__ import annotations

import argparse
import compileall
import dataclasses
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.contenders import OVER_HTTP, OVER_STDIO
from benchmarks.machine import ROOT, cores, host_took, machine_class, run_loop, stand_aside
from benchmarks.measures import PARTS, Plan
from benchmarks.report import TARGETS, About, number, page, tables, verdict
from benchmarks.sheet import TAKEN, Sheet

BEGAN = time.monotonic()
PAGE = ROOT / "docs" / "benchmarks.md"


async def measure(plan: Plan, parts: list[str]) -> Sheet:
    """Measure the named parts once, and record the CPU steal time of the run."""
    sheet = Sheet()
    began, before = time.monotonic(), host_took()
    for name in parts:
        try:
            await PARTS[name](plan, sheet)
        except Exception as error:  # the failure is recorded, and the other parts are still measured
            sheet.fail(f"part {name}", f"{type(error).__name__}: {error}")
    sheet.note(TAKEN, "host", (host_took() - before) / (time.monotonic() - began) / len(set(cores())))
    return sheet


def versions() -> dict[str, str]:
    """Return the version of each installed contender by name."""
    found: dict[str, str] = {}
    for contender in [*OVER_HTTP, *OVER_STDIO]:
        if contender.name not in found and contender.program() is not None:
            found[contender.name] = contender.version()
    return found


def say(text: str) -> None:
    """Write a progress message to stderr, with the seconds since the start."""
    sys.stderr.write(f"{time.monotonic() - BEGAN:5.0f} s  {text}\n")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Make all runs and return their conditions and figures, ready for JSON; with `--keep`, write the file after each run."""
    compileall.compile_dir(str(ROOT / "gateway"), quiet=2)  # as pip does; `PYTHONDONTWRITEBYTECODE` may be set
    machine = machine_class()
    stand_aside()
    about = About(time.strftime("%Y-%m-%d", time.gmtime()), machine, versions(), options.calls, options.rounds, options.note)
    runs: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    for turn in range(options.runs):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="moongate-bench-") as folder:
            plan = Plan(Path(folder), options.calls, options.rounds, lambda text, turn=turn: say(f"run {turn + 1}: {text}"))
            sheet = run_loop(measure(plan, options.part or list(PARTS)))
        say(f"run {turn + 1} took {time.monotonic() - began:.0f} s")
        runs.append(dataclasses.asdict(sheet))
        found = {"about": dataclasses.asdict(about), "runs": runs}
        if options.keep:
            options.keep.write_text(json.dumps(found))
    return found


def main() -> None:
    """Measure or load the figures, write the page or print its tables, and print the targets."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--runs", type=int, default=3)
    cli.add_argument("--calls", type=int, default=4_000, help="at most so many in a slot, a third of a second long at 4,000")
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument(
        "--part",
        action="append",
        choices=list(PARTS),
        help="only these; their tables are printed, and no page is made unless --out names one",
    )
    cli.add_argument("--keep", type=Path, help="write what was measured here")
    cli.add_argument("--from", type=Path, dest="kept", help="make the page of what --keep wrote")
    cli.add_argument("--out", type=Path)
    cli.add_argument("--note", action="append", default=[], help="a sentence for the end of the page")
    options = cli.parse_args()
    signal.signal(signal.SIGTERM, _end)
    found = json.loads(options.kept.read_text()) if options.kept else run(options)
    sheets, about = [Sheet(**sheet) for sheet in found["runs"]], About(**found["about"])
    if options.kept:
        about = dataclasses.replace(about, notes=[*about.notes, *options.note])
    if (out := options.out or (None if options.part else PAGE)) is not None:
        out.write_text(page(sheets, about), encoding="utf-8")
    else:
        sys.stdout.write("\n".join(tables(sheets)) + "\n")
    for target in TARGETS:
        values = [target.value(sheet) for sheet in sheets]
        if any(value is not None for value in values):
            figures = "  ".join(f"{number(value):>8}" for value in values)
            sys.stdout.write(f"{target.number:<4}{target.text:<78}{figures}   {target.wanted}  {verdict(target, values)}\n")
    for sheet in sheets:
        for what, why in sheet.failed.items():
            say(f"left out: {what}: {why}")


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
