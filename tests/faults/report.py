"""A pytest plugin that writes docs/faults.md: each row of `table` with what came of its tests.

    make faults-report

Rows whose tests were not part of the run keep what the page said of them.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.faults.table import ATTACKS, FAULTS, Row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
Outcomes = Mapping[tuple[str, int], Mapping[str, int]]
"""How many tests of a row, by kind and number, ended how."""

_ROW = re.compile(r"^\| (\d+) \| (.*?) \| (.*?) \| (.*) \|$", re.MULTILINE)
_INTRO = """# Faults and attacks

What is done to a gateway on purpose, what must hold, and what came of it. A row is proved by tests that name it
(`@pytest.mark.fault`, `@pytest.mark.attack`); most run with `make test`, the long ones with `make faults`. This page is
written by `make faults-report`, which runs them all.
"""


def rows_of(page: str) -> list[tuple[str, str]]:
    """Number and outcome of each row of a page, in order."""
    return [(number, outcome) for number, _, _, outcome in _ROW.findall(page)]


class Report:
    """Collects outcomes by row while pytest runs; writes the page at the end."""

    def __init__(self) -> None:
        self._rows: dict[str, set[tuple[str, int]]] = {}
        self._outcomes: dict[tuple[str, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep only tests that prove a row."""
        for item in items:
            found = {(kind, number) for kind in ("fault", "attack") for mark in item.iter_markers(kind) for number in mark.args}
            if found:
                self._rows[item.nodeid] = found
        items[:] = [item for item in items if item.nodeid in self._rows]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one outcome for each row of the test."""
        if report.when == "call" or report.outcome != "passed":
            for row in self._rows.get(report.nodeid, ()):
                self._outcomes[row][report.outcome] += 1

    def pytest_sessionfinish(self) -> None:
        """Write the page."""
        before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        PAGE.write_text(page(self._outcomes, before), encoding="utf-8")


def page(outcomes: Outcomes, before: str) -> str:
    """The page after a run; rows without an outcome keep what `before` said."""
    known = rows_of(before)
    old = {("fault", number): kept for (_, kept), number in zip(known[: len(FAULTS)], FAULTS, strict=False)}
    old |= {("attack", number): kept for (_, kept), number in zip(known[len(FAULTS) :], ATTACKS, strict=False)}
    today = time.strftime("%Y-%m-%d", time.gmtime())
    where = f"\nLast run: {today}, {platform.system()} with {os.cpu_count()} cores, Python {platform.python_version()}.\n"
    tables = [_table(title, kind, rows, outcomes, old) for title, kind, rows in _PARTS]
    return "\n".join([_INTRO.rstrip("\n"), where.rstrip("\n"), *tables])


_PARTS = (("Faults", "fault", FAULTS), ("Attacks", "attack", ATTACKS))


def _table(title: str, kind: str, rows: Mapping[int, Row], outcomes: Outcomes, old: Mapping[tuple[str, int], str]) -> str:
    lines = [f"\n## {title}\n", "| # | What is done | What must hold | Outcome |", "|---|---|---|---|"]
    for number, row in rows.items():
        told = row.without or _words(outcomes.get((kind, number), {})) or old.get((kind, number), "not run yet")
        lines.append(f"| {number} | {row.what} | {row.holds} | {told} |")
    return "\n".join(lines) + "\n"


def _words(counts: Mapping[str, int]) -> str:
    names = {"passed": "held", "failed": "**failed**", "skipped": "skipped here"}
    return ", ".join(f"{names[outcome]} ({counts[outcome]} tests)" if outcome != "failed" else f"**failed** ({counts[outcome]})"
                     for outcome in ("failed", "passed", "skipped") if counts.get(outcome))  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Take part in the run this plugin was named for."""
    config.pluginmanager.register(Report(), "faults-report")
