"""A pytest plugin that keeps what came of the tests of each row of `table`, and writes docs/faults.md from it.

    make faults-report                                     every test of a row, then the page
    make faults-report ARGS="tests/faults/test_bounds.py"  some of them; what earlier runs found of the others stays
    make faults-engines                                    the kill matrix, then its table; the rest of the page stays

Outcomes are kept by test in pytest's cache, so the page may combine several runs (`make faults` counts as one). A row keeps its
previous text if none of its tests ever ran here.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faults.caps import caps_table
from tests.faults.table import ATTACKS, FAULTS, Row

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "faults.md"
STORE = "faults/outcomes"
"""Key in pytest's cache: by test id, its rows, how it ended, and the seconds it took."""

PROPERTY = "rows"
"""Property of a test's report with the rows that the test proves. pytest-xdist sends it from a worker to the main process."""

Outcomes = Mapping[tuple[str, int], Mapping[str, int]]
"""Number of tests by outcome, for each row; a row's key is its kind and number."""

LONG_SECONDS = 20.0
"""The page names each test file whose tests take longer than this in total."""

SITES = {
    "local-sqlite": "`local`, SQLite",
    "local-postgres": "`local`, PostgreSQL",
    "temporal-sqlite": "`temporal`, SQLite",
    "temporal-postgres": "`temporal`, PostgreSQL",
}
"""The engines and databases of the kill matrix, and how the page names them."""

KILL_MATRIX = (*range(1, 11), 14, 15)
"""The rows that are tested with both engines."""

_SITE_ROW = re.compile(r"^\| row (\d+) \| ((?:[^|]+ \| ){3}[^|]+) \|$", re.MULTILINE)
_ENGINES_TITLE = "### Engines of tasks"
_ENGINES_INTRO = """The rows about tasks are tested with both values of [`tasks.engine`](temporal.md), on both databases. Rows 9 and 10 need
a database server.
`make faults-engines` updates this table; a cell keeps its outcome until its tests run again.
"""
_ROW = re.compile(r"^\| (\d+) \| (.*?) \| (.*?) \| (.*) \|$", re.MULTILINE)
_INTRO = """# Faults and attacks

You want to know what happens to your calls when a server hangs, a disk is full, or a client attacks the gateway. For example, the
program `sleep` never answers. This program connects to it as to a server. After a second it prints
that the server did not answer (row 16):

```python
import asyncio

from gateway import MCPStdioTool, ToolException


async def main() -> None:
    try:
        async with MCPStdioTool("silent", "sleep", args=["600"], request_timeout=1):
            print("connected")
    except ToolException as error:
        print(error)


if __name__ == "__main__":
    asyncio.run(main())
```

Tests cause each fault on purpose. A row says what they do, what must hold, and the outcome of the last run. `make faults-report
ARGS="FILE"` repeats the tests of one file and updates this page.

Tests name the row that they prove (`@pytest.mark.fault`, `@pytest.mark.attack`). Most run with `make test`, the long ones with `make
faults`, which takes about half an hour on two cores. `make faults-report` runs all of them and writes this page.
"""


def rows_of(page: str) -> list[tuple[str, str]]:
    """Number and outcome of each row of a page, in order."""
    return [(number, outcome) for number, _, _, outcome in _ROW.findall(page)]


def marked(item: pytest.Item) -> list[list[Any]]:
    """Kind and number of every row that a test proves."""
    return sorted([kind, number] for kind in ("fault", "attack") for mark in item.iter_markers(kind) for number in mark.args)


class Report:
    """Collects test outcomes, stores them in pytest's cache, and with `--faults-page` writes the page when pytest ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._writes_page = bool(config.getoption("--faults-page"))
        self._writes_engines = bool(config.getoption("--faults-engines"))
        self._found: dict[str, dict[str, Any]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """For the page, keep only tests that prove a row."""
        if self._writes_page:
            items[:] = [item for item in items if marked(item)]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any]:
        """Write the rows of the test on its report."""
        outcome = yield
        if rows := marked(item):
            outcome.get_result().user_properties.append((PROPERTY, rows))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of set-up, test and tear-down."""
        rows = dict(report.user_properties).get(PROPERTY)
        if not rows:
            return
        one = self._found.setdefault(report.nodeid, {"rows": rows, "outcome": "passed", "seconds": 0.0})
        one["seconds"] = round(one["seconds"] + report.duration, 1)
        if report.outcome != "passed":
            one["outcome"] = report.outcome

    def pytest_sessionfinish(self) -> None:
        """Merge the new outcomes into the stored outcomes, and write the page if requested."""
        if hasattr(self._config, "workerinput"):
            return
        cache: Any = self._config.cache
        known: dict[str, dict[str, Any]] = {**cache.get(STORE, {}), **self._found}
        known = {name: one for name, one in known.items() if exists(name)}
        cache.set(STORE, known)
        if self._writes_page:
            before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
            PAGE.write_text(page(counted(known), before, times(known), by_site(known)), encoding="utf-8")
        elif self._writes_engines:
            PAGE.write_text(with_engines(PAGE.read_text(encoding="utf-8"), by_site(known)), encoding="utf-8")


def exists(name: str) -> bool:
    """Return whether the test function of this id still exists; parameters are ignored."""
    path, _, function = name.partition("::")
    file = ROOT / path
    return file.is_file() and f"def {function.partition('[')[0].rpartition('::')[2]}(" in file.read_text(encoding="utf-8")


def counted(known: Mapping[str, Mapping[str, Any]]) -> Outcomes:
    """Group the stored outcomes of tests by row."""
    rows: dict[tuple[str, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in known.values():
        for kind, number in one["rows"]:
            rows[kind, number][one["outcome"]] += 1
    return rows


def by_site(known: Mapping[str, Mapping[str, Any]]) -> Mapping[tuple[int, str], Mapping[str, int]]:
    """Group the stored outcomes of the tests that run with both engines by fault row and site. A test that names no database has SQLite."""
    found: dict[tuple[int, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, one in known.items():
        words = name.partition("[")[2].rstrip("]").split("-")
        engines = [word for word in words if word in ("local", "temporal")]
        store = "postgres" if "postgres" in words else "sqlite"
        for kind, number in one["rows"]:
            if engines and kind == "fault":
                found[number, f"{engines[0]}-{store}"][one["outcome"]] += 1
    return found


def times(known: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Seconds by file."""
    files: dict[str, float] = defaultdict(float)
    for name, one in known.items():
        files[name.partition("::")[0]] += one["seconds"]
    return files


def page(
    outcomes: Outcomes, before: str, seconds: Mapping[str, float], sites: Mapping[tuple[int, str], Mapping[str, int]] | None = None
) -> str:
    """Return the text of the page. A row without an outcome keeps its text from `before`. `sites` has the outcomes by row and site."""
    known = rows_of(before)
    old = {("fault", number): kept for (_, kept), number in zip(known[: len(FAULTS)], FAULTS, strict=False)}
    old |= {("attack", number): kept for (_, kept), number in zip(known[len(FAULTS) :], ATTACKS, strict=False)}
    today = time.strftime("%Y-%m-%d", time.gmtime())
    where = f"\nLast run: {today}, {platform.system()} with {os.cpu_count()} cores, Python {platform.python_version()}.\n"
    tables = [_table(title, kind, rows, outcomes, old) for title, kind, rows in _PARTS]
    parts = [tables[0], _engines(sites or {}, before), *tables[1:]]
    return "\n".join([_INTRO.rstrip("\n"), where.rstrip("\n"), *parts, caps_table(), _durations(seconds)])


def with_engines(before: str, sites: Mapping[tuple[int, str], Mapping[str, int]]) -> str:
    """Return the page `before` with a new table of the kill matrix. The rest of the page stays as it is."""
    start, end = before.index(_ENGINES_TITLE), before.index("\n## Attacks\n")
    return f"{before[:start]}{_engines(sites, before).lstrip()}{before[end:]}"


_PARTS = (("Faults", "fault", FAULTS), ("Attacks", "attack", ATTACKS))


def _table(title: str, kind: str, rows: Mapping[int, Row], outcomes: Outcomes, old: Mapping[tuple[str, int], str]) -> str:
    lines = [f"\n## {title}\n", "| # | What is done | What must hold | Outcome |", "|---|---|---|---|"]
    for number, row in rows.items():
        told = row.without or _words(outcomes.get((kind, number), {})) or old.get((kind, number), "not run yet")
        lines.append(f"| {number} | {row.what} | {row.holds} | {told} |")
    return "\n".join(lines) + "\n"


def _engines(sites: Mapping[tuple[int, str], Mapping[str, int]], before: str) -> str:
    """Return the table of the kill matrix. A cell without an outcome keeps its text from `before`."""
    old = {match[1]: match[2].split(" | ") for match in _SITE_ROW.finditer(before)}
    today = time.strftime("%Y-%m-%d", time.gmtime())
    where = f"Last run of this table: {today}, {platform.system()} with {os.cpu_count()} cores.\n"
    lines = [f"\n{_ENGINES_TITLE}\n", _ENGINES_INTRO, where, f"| # | {' | '.join(SITES.values())} |", f"|---|{'---|' * len(SITES)}"]
    for number in KILL_MATRIX:
        kept = old.get(str(number), [])
        cells = [_words(sites.get((number, site), {})) for site in SITES]
        told = [cell or (kept[at] if len(kept) == len(SITES) else "-") for at, cell in enumerate(cells)]
        lines.append(f"| row {number} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def _durations(seconds: Mapping[str, float]) -> str:
    whole = f"\n## Time\n\nThese tests take {sum(seconds.values()) / 60:.0f} minutes in sequence. The longest files:\n"
    lines = [whole, "| File | Minutes |", "|---|---|"]
    for file, took in sorted(seconds.items(), key=lambda pair: -pair[1]):
        if took >= LONG_SECONDS:
            lines.append(f"| `{file}` | {took / 60:.1f} |")
    return "\n".join(lines) + "\n"


def _words(counts: Mapping[str, int]) -> str:
    names = {"passed": "held", "failed": "**failed**", "skipped": "skipped here"}
    told = [
        f"{names[outcome]} ({number} test{'' if number == 1 else 's'})"
        for outcome in ("failed", "passed", "skipped")
        if (number := counts.get(outcome, 0))
    ]
    return ", ".join(told)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--faults-page`, which `make faults-report` gives, and `--faults-engines`, which `make faults-engines` gives."""
    parser.addoption("--faults-page", action="store_true", help="run the tests of fault and attack rows alone and write docs/faults.md")
    parser.addoption("--faults-engines", action="store_true", help="write the table of task engines in docs/faults.md")


def pytest_configure(config: pytest.Config) -> None:
    """Take part in the run this plugin was named for."""
    config.pluginmanager.register(Report(config), "faults-report")
