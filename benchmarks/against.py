"""Comparison of the CPU time per call with that of an earlier revision, for `make bench-gate AGAINST=REV`.

Both gateways run on the same core with the same interpreter, installed packages and upstream servers. Each round measures one gateway after
the other. The figure of a load is the median of the ratios within each round, so other programs on the machine affect both gateways alike.
"""

from __future__ import annotations

import compileall
import dataclasses
import io
import json
import os
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.contenders import GATEWAY, Contender, Place, Running, gateway
from benchmarks.driver import Load, Wire
from benchmarks.machine import ROOT, Command, cores, python
from benchmarks.measures import MEGABYTE, Plan, cast, rounds
from benchmarks.sheet import Sheet

BEFORE, NOW = "before", "gateway"

MOST = 1.05
"""Default limit for the ratio of the CPU time of a call to that of the earlier revision."""


@dataclasses.dataclass(frozen=True)
class Compared:
    """The CPU time ratios of one load, now to before, one per round."""

    cell: str
    ratios: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    def line(self, most: float) -> str:
        """Return a line of text with the median, the middle half of the ratios and the limit, and `FAILED` if the median is too high."""
        low, _, high = statistics.quantiles(self.ratios, n=4) if len(self.ratios) > 1 else (self.median,) * 3
        verdict = "" if self.median <= most else "  FAILED"
        return f"{self.cell:<44}{self.median:8.3f}  (middle half {low:.3f} to {high:.3f}, at most {most:.2f}){verdict}"


def checked_out(revision: str, folder: Path) -> Path:
    """Extract the files of `revision` below `folder`, compile the `gateway` package, and return the path of the files.

    Raises:
        SystemExit: git does not have the revision, or `ROOT` is not a git repository.
    """
    found = subprocess.run(["git", "-C", str(ROOT), "archive", "--format=zip", revision], capture_output=True)
    if found.returncode:
        reason = found.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["git archive failed"]
        raise SystemExit(f"bench-gate: cannot read revision {revision!r} ({reason[0]}). Name a commit of this repository: AGAINST=REV.")
    place = folder / "checkout"
    with zipfile.ZipFile(io.BytesIO(found.stdout)) as archive:
        archive.extractall(place)
    compileall.compile_dir(str(place / "gateway"), quiet=2)
    return place


def compared(sheet: Sheet) -> list[Compared]:
    """Return the ratios of each load that both gateways completed, in the order of measurement."""
    found: list[Compared] = []
    for cell, taken in sheet.cells.items():
        pairs = zip(taken.get(NOW, ()), taken.get(BEFORE, ()), strict=False)
        ratios = [now["cpu"] / before["cpu"] for now, before in pairs if before["cpu"]]
        if ratios:
            found.append(Compared(cell, ratios))
    return found


async def measure(plan: Plan, sheet: Sheet, checkout: Path) -> None:
    """Measure small calls of both eras, calls with an API key, calls to a stdio server, and large results on both gateways."""
    compileall.compile_dir(str(ROOT / "gateway"), quiet=2)
    small, large = plan.load(connections=16), plan.load(connections=4, result=MEGABYTE, seconds=plan.seconds * 2)
    async with cast(plan, sheet) as stage:
        upstream = (await stage.upstream(2)).wire.port
        stdio = [python().argv[0], str(ROOT / "benchmarks" / "stdio_server.py"), str(cores()[1])]
        plain, keyed, piped = [list[Running]() for _ in range(3)]
        for side in sides(checkout, gateway):
            plain += await stage.start(side, upstream)
            piped += await stage.start(side, server=stdio)
        for side in sides(checkout, _with_key):
            keyed += await stage.start(dataclasses.replace(side, reach=_reach_with_key), upstream)
        loads: list[tuple[str, Load, list[Running]]] = [
            ("100 B, 2026", small, plain),
            ("100 B, 2025 session", dataclasses.replace(small, era="legacy"), plain),
            ("100 B, 2026, API key", small, keyed),
            ("100 B, 2026, server over stdio", small, piped),
            ("1 MB of prose, searched", large, plain),
        ]
        for cell, load, targets in loads:
            await rounds(plan, sheet, cell, load, targets)


def sides(checkout: Path, command: Callable[..., Command]) -> list[Contender]:
    """Return two contenders: the gateway of this checkout and that of the earlier revision in `checkout`."""
    before = dataclasses.replace(GATEWAY, name=BEFORE, title="Moongate before", command=partial(command, checkout=checkout))
    return [dataclasses.replace(GATEWAY, name=NOW, command=command), before]


def _with_key(place: Place, *, checkout: Path = ROOT) -> Command:
    """Configure a gateway, create an API key for it, and return its start command. The file `key` in the contender's folder has the key."""
    command = gateway(place, checkout=checkout)
    config = str(place.folder / "gateway.json")
    argv = [sys.executable, "-m", "gateway", "keys", "add", "bench", "--json", "--config", config]
    made = subprocess.run(argv, cwd=command.folder, env={**os.environ, **command.env}, capture_output=True, text=True, check=True)
    (place.folder / "key").write_text(json.loads(made.stdout)["key"])
    return command


def _reach_with_key(place: Place) -> Wire:
    return Wire(place.port, headers=(f"authorization: Bearer {(place.folder / 'key').read_text()}",))
