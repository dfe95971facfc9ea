"""The targets and the text of the results page, computed from the measured sheets. `benchmarks.page` reads and writes the files.

A ratio is computed within each round, and its figure is the median over the rounds of one run. A target holds if it holds in every run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.sheet import AGAIN, TAKEN, Sheet

Value = Callable[[Sheet], float | None]
"""A function that returns a figure of one run, or `None` if the run lacks the necessary measurements."""


@dataclass(frozen=True)
class Target:
    """A target: a figure and its limit, one row of the target table."""

    number: str
    text: str
    value: Value
    limit: float
    sign: str = "≤"
    """Comparison of the figure with the limit: `≤`, `≥` or `=`."""
    unit: str = ""
    aim: float | None = None
    """The original goal, if the limit is less strict; the page gives the reason. `None` if the limit is the goal."""

    @property
    def wanted(self) -> str:
        """The limit as text, with its sign, unit and aim."""
        return f"{self.sign} {self.limit:g}{self.unit}" + (f" (aim {self.aim:g})" if self.aim is not None else "")

    def holds(self, value: float) -> bool:
        """Return whether a figure meets the limit."""
        match self.sign:
            case "≤":
                return value <= self.limit
            case "≥":
                return value >= self.limit
            case _:
                return value == self.limit


@dataclass(frozen=True)
class About:
    """The conditions of a measurement: date, machine, contender versions, calls, rounds and notes."""

    date: str
    machine: str
    versions: Mapping[str, str]
    calls: int
    rounds: int
    notes: Sequence[str] = field(default_factory=tuple[str, ...])


# -- figures ---------------------------------------------------------------------------------------------------------


def ratio(cell: str, key: str, one: str, other: str) -> Value:
    """Return the ratio of `one` to `other` in the figure `key` of a load: the median of the ratios within each round."""

    def value(sheet: Sheet) -> float | None:
        rounds = sheet.cells.get(cell, {})
        pairs = list(zip(rounds.get(one, ()), rounds.get(other, ()), strict=False))
        parts = [mine[key] / its[key] for mine, its in pairs if its[key]]
        return statistics.median(parts) if parts else None

    return value


def between(one_cell: str, other_cell: str, key: str, name: str) -> Value:
    """Return the ratio of a contender's figure under `one_cell` to its figure under `other_cell`: the median over the rounds."""

    def value(sheet: Sheet) -> float | None:
        pairs = zip(sheet.cells.get(one_cell, {}).get(name, ()), sheet.cells.get(other_cell, {}).get(name, ()), strict=False)
        parts = [mine[key] / its[key] for mine, its in pairs if its[key]]
        return statistics.median(parts) if parts else None

    return value


def added(cell: str, key: str, one: str, other: str) -> Value:
    """Return the ratio of the overheads of `one` and `other`. The overhead is the figure minus that of a direct call."""

    def value(sheet: Sheet) -> float | None:
        found = [typical(sheet, cell, name, key) for name in (one, other, "direct")]
        if None in found:
            return None
        mine, its, bare = (part or 0.0 for part in found)
        return (mine - bare) / (its - bare) if its > bare else None

    return value


def typical(sheet: Sheet, cell: str, name: str, key: str) -> float | None:
    """Return the median of a figure over the rounds of a run, or `None` if it was not measured."""
    rounds = sheet.cells.get(cell, {}).get(name, ())
    return statistics.median(each[key] for each in rounds) if rounds else None


def single(name: str, contender: str) -> Value:
    """Return the median over the rounds of a figure in `Sheet.single`."""

    def value(sheet: Sheet) -> float | None:
        found = sheet.single.get(name, {}).get(contender)
        return statistics.median(found) if found else None

    return value


def share(name: str, one: str, other: str) -> Value:
    """Return the ratio of `one` to `other` in a figure of `Sheet.single`: the median of the ratios within each round."""

    def value(sheet: Sheet) -> float | None:
        found = sheet.single.get(name, {})
        parts = [mine / its for mine, its in zip(found.get(one, ()), found.get(other, ()), strict=False) if its]
        return statistics.median(parts) if parts else None

    return value


_SMALL, _LARGE, _IMAGE = "100 B, c16", "1 MB result, c4", "1 MB image, c4"
_LISTS, _START = "list of 500 tools", "start to first complete list, s"

TARGETS = [
    Target("M1", "CPU per call, Moongate / nginx", ratio(_SMALL, "cpu", "gateway", "nginx"), 5),
    Target("M1", "CPU per call, tuned SDK relay / Moongate", ratio(_SMALL, "cpu", "relay", "gateway"), 13, "≥"),
    Target("M1", "CPU per call, FastMCP / Moongate", ratio(_SMALL, "cpu", "fastmcp", "gateway"), 60, "≥"),
    Target("M2", "calls/s at 16 connections, Moongate / tuned SDK relay", ratio(_SMALL, "per_second", "gateway", "relay"), 12, "≥"),
    Target("M2", "the same, Moongate / FastMCP", ratio(_SMALL, "per_second", "gateway", "fastmcp"), 60, "≥"),
    Target("M2", "the same, Moongate / ContextForge", ratio(_SMALL, "per_second", "gateway", "contextforge"), 150, "≥"),
    Target("M3", "added p50 at 1 connection, Moongate / nginx", added("100 B, c1", "p50", "gateway", "nginx"), 2.5),
    Target("M3", "added p99 at 1 connection, Moongate / nginx", added("100 B, c1", "p99", "gateway", "nginx"), 3),
    Target(
        "M4",
        "calls/s of 2025 clients of a 2026 SDK server, through Moongate / no gateway",
        ratio("SDK server, 2025, c16", "per_second", "gateway", "direct"),
        1.2,
        "≥",
    ),
    Target("M5", "p50 of a call with 5,000 tools / with 2", ratio("100 B, c1, by tools", "p50", "many", "gateway"), 1.1),
    Target(
        "M6", "p50 of a list of 500 tools when cacheable, Moongate / direct", ratio(f"{_LISTS}, cacheable", "p50", "gateway", "direct"), 1
    ),
    Target(
        "M6", "CPU of a list of 500 tools when not, Moongate / nginx", ratio(f"{_LISTS}, not cacheable", "cpu", "gateway", "nginx"), 3.5
    ),
    Target("M7", "upstream requests per call, 2026", single("upstream requests per call, modern", "gateway"), 1, "="),
    Target("M7", "upstream requests per call, 2025", single("upstream requests per call, legacy", "gateway"), 1, "="),
    Target("M7", "new upstream connections in steady state, 2026", single("new upstream connections, modern", "gateway"), 0, "="),
    Target("M7", "new upstream connections in steady state, 2025", single("new upstream connections, legacy", "gateway"), 0, "="),
    Target("M7", "upstream requests of 50 lists and 50 discoveries", single("upstream requests of lists", "gateway"), 0, "="),
    Target("M8", "start to first list, Moongate / tuned SDK relay", share(_START, "1 upstream", "relay"), 0.8, aim=0.35),
    Target("M8", "start to complete list, 50 upstreams / 1", share(_START, "50 upstreams", "1 upstream"), 2),
    Target(
        "M8",
        "start to list, beside a known upstream that refuses now / without",
        share(_START, "1 and a known one that refuses", "1 upstream, known"),
        1.1,
    ),
    Target(
        "M8",
        "start to list, beside a known upstream that is silent now / without",
        share(_START, "1 and a known one that is silent", "1 upstream, known"),
        1.1,
    ),
    Target(
        "M8",
        "start to list, beside a new upstream that refuses / without",
        share(_START, "1 and a new one that refuses", "1 upstream"),
        1.1,
    ),
    Target("M9", "idle memory, Moongate / tuned SDK relay", share("idle memory, MB", "gateway", "relay"), 0.9, aim=0.6),
    Target("M9", "idle 2025 session with its stream", single("idle 2025 session, KiB", "gateway"), 25, unit=" KiB"),
    Target("M9", "growth over 100,000 calls", single("growth over the long run, MB", "gateway"), 0.5, unit=" MB"),
    Target("M10", "CPU of 1 MB that is not searched (an image), Moongate / nginx", ratio(_IMAGE, "cpu", "gateway", "nginx"), 1.6),
    Target("M10", "CPU of 1 MB that is searched (prose), Moongate / nginx", ratio(_LARGE, "cpu", "gateway", "nginx"), 4),
    Target(
        "M11",
        "calls/s over stdio, Moongate / mcp-proxy (PyPI)",
        ratio("over stdio, 2025, c16", "per_second", "gateway", "mcp-proxy"),
        8,
        "≥",
    ),
    Target(
        "M11",
        "calls/s over stdio, Moongate / mcp-proxy (npm), 2026",
        ratio("over stdio, 2026, c16", "per_second", "gateway", "npm-mcp-proxy"),
        5,
        "≥",
    ),
    Target(
        "M11",
        "calls/s over stdio, Moongate / mcp-proxy (npm), 2025",
        ratio("over stdio, 2025, c16", "per_second", "gateway", "npm-mcp-proxy"),
        5,
        "≥",
    ),
    Target("M12", "calls/s at 256 connections / at 16", between("crowd, c256", "crowd, c16", "per_second", "gateway"), 0.8, "≥"),
    Target("M12", "memory after 256 connections / idle", single("memory after 256 connections / idle", "gateway"), 1.1),
]
"""The targets M1 to M12. A failed call ends its load: the page then lists the load under *Left out*, and the load has no figure."""


Columns = Sequence[tuple[str, str, str]]


# -- text ------------------------------------------------------------------------------------------------------------

TITLES = {
    "direct": "direct (no proxy)",
    "nginx": "nginx, plain `proxy_pass`",
    "nginx-large": "nginx, large buffers",
    "raw": "raw ASGI byte proxy",
    "gateway": "**Moongate**",
    "unscanned": "Moongate, `hiddenText: allow`",
    "many": "Moongate, 5,000 tools",
    "relay": "tuned SDK relay",
    "fastmcp": "FastMCP `create_proxy(url)`",
    "contextforge": "ContextForge, SQLite",
    "mcp-proxy": "mcp-proxy (PyPI)",
    "npm-mcp-proxy": "mcp-proxy (npm)",
}

_INTRO = """# Measurements

You want to know what a gateway between your clients and servers costs. On your machine, this program shows how long a call through
the running gateway takes. Run it again with a server's own URL and tool in place of the gateway's: the difference is the gateway's part.

```python
import asyncio
import statistics
import time

from gateway import MCPStreamableHTTPTool


async def main() -> None:
    seconds: list[float] = []
    async with MCPStreamableHTTPTool("hub", "http://127.0.0.1:8765/mcp") as hub:
        for _ in range(200):
            start = time.perf_counter()
            await hub.call_tool("notes__list_notes")
            seconds.append(time.perf_counter() - start)
    print(f"median of 200 calls: {{statistics.median(seconds) * 1000:.2f}} ms")


if __name__ == "__main__":
    asyncio.run(main())
```

This page shows the costs of Moongate and of other gateways, and whether Moongate's targets hold. `make bench-page` writes the page and
measures everything {runs} times. `benchmarks/README.md` describes the contenders, which `benchmarks/setup.sh` installs.

Measured {date} on {machine}.

- Each contender has one core. The driver and the server behind the contender share the other. A server on the SDK takes longer than
  everything else, so it has one core to itself.
- Rounds are interleaved. A figure is the median of the rounds of one run, a ratio the median of the ratios within a round.
- A slot has up to {calls:,} calls, in {rounds} rounds. Targets for ratios that vary much have three or nine times as many rounds.
- A slot is measured again, up to three times, if the host takes more than a fiftieth of it for others.
- All default guards are on unless a row says otherwise. Milliseconds, calls per second and M3 depend on the machine; other ratios hardly
  do. On an AMD EPYC, where nginx adds 0.05 ms instead of 0.20 ms, M3 was 4 to 6, and 5 for the byte proxy in Python
  (`benchmarks/RESULTS.md`).
"""

_YARDSTICK = """The targets were set against nginx with a plain `proxy_pass` that keeps its connections: one process, default
settings. A message of a megabyte then goes through a file, as in most installations. The row *large buffers* shows
nginx with buffers that are large enough for it.
"""

_SEARCHED = """Results are searched for hidden text, except encoded binary data, which most results of a megabyte are. With
`hiddenText: allow` prose is not searched either (see its row in *By size*). The gateway still reads the JSON of the
result, so that nothing bypasses the guards. That takes as long as everything else together, because prose in JSON is
full of escapes for line ends and quotes.
"""

_AIMS = """Start and idle memory have an aim and a limit. The aims are the figures of a prototype without configuration and
state. Like the prototype, the gateway loads the SDK with the first request that needs it. The rest is Python,
pydantic for the configuration, uvicorn, and the packages that every call passes. Own parsers in their place would
come nearer to the aims and make the code harder to read.

`make bench-start` measures starts over stdio, as IDEs make them, beside a bare server of the SDK. Its figures are in
`benchmarks/RESULTS.md`.
"""

_NEW_AND_SILENT = """The gateway waits two seconds for a new server behind a URL that accepts the connection and sends nothing. Such a
server may only be slow, and a client that does not listen for changes would keep a list without its tools. The
gateway does not wait for a server that was listed before.
"""


def number(value: float | None) -> str:
    """Format a figure with two or three significant digits, or `-` if it is `None`."""
    if value is None:
        return "-"
    if value and abs(value) < 0.995:
        return f"{value:.3f}" if abs(value) < 0.0995 else f"{value:.2f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def verdict(target: Target, values: Sequence[float | None]) -> str:
    """Return whether a target holds in all runs, as text."""
    there = [value for value in values if value is not None]
    if not there:
        return "not measured"
    if all(target.holds(value) for value in there):
        return "holds" if len(there) == len(values) else "holds where measured"
    return "**misses**"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text and the others are numbers; return `""` if `rows` is empty."""
    if not rows:
        return ""
    ruler = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ruler, *rows)) + "\n"


def target_table(runs: Sequence[Sheet]) -> str:
    """Return a Markdown table with one row per target and the figure of each run."""
    rows: list[list[str]] = []
    for target in TARGETS:
        values = [target.value(sheet) for sheet in runs]
        rows.append([target.number, target.text, *(number(value) for value in values), target.wanted, verdict(target, values)])
    return table(["", "figure", *(f"run {n}" for n in range(1, len(runs) + 1)), "target", ""], rows)


def cell_table(runs: Sequence[Sheet], cells: Columns) -> str:
    """Return a Markdown table with one row per contender and medians over all runs. Each column is a heading, a load and a figure."""
    names = [name for name in TITLES if any(name in sheet.cells.get(cell, {}) for sheet in runs for _, cell, _ in cells)]
    rows = [[TITLES[name], *(number(_over(runs, cell, name, key)) for _, cell, key in cells)] for name in names]
    return table(["contender", *(heading for heading, _, _ in cells)], rows)


def _over(runs: Sequence[Sheet], cell: str, name: str, key: str) -> float | None:
    if name == "direct" and key == "cpu":
        return None
    found = [value for sheet in runs if (value := typical(sheet, cell, name, key)) is not None]
    return statistics.median(found) if found else None


def single_table(runs: Sequence[Sheet], columns: Sequence[str]) -> str:
    """Return a Markdown table of figures in `Sheet.single`, with one row per contender and medians over all runs."""
    names = [name for name in TITLES if any(name in sheet.single.get(column, {}) for sheet in runs for column in columns)]
    rows = [[TITLES[name], *(number(_single_over(runs, column, name)) for column in columns)] for name in names]
    return table(["contender", *columns], rows)


def _single_over(runs: Sequence[Sheet], column: str, name: str) -> float | None:
    found = [value for sheet in runs if (value := single(column, name)(sheet)) is not None]
    return statistics.median(found) if found else None


def _rates(cells: Mapping[str, str]) -> Columns:
    """Return two columns for each title and load: calls per second, and CPU seconds per 1,000 calls."""
    return [each for title, cell in cells.items() for each in ((f"{title}: calls/s", cell, "per_second"), ("CPU s per 1,000", cell, "cpu"))]


_KINDS = {"2025, JSON": "2025 server", "2025, streams": "2025 server, streams", "2026, streams": "2026 server, streams"}
"""Load names of `measures.SERVERS` by table title. The targets use another kind of server."""

_CELLS: Mapping[str, Columns] = {
    "A call of 100 B": [
        ("p50 ms, 1 connection", "100 B, c1", "p50"),
        ("p99 ms", "100 B, c1", "p99"),
        ("calls/s, 16", _SMALL, "per_second"),
        ("CPU s per 1,000, 16", _SMALL, "cpu"),
        ("calls/s, 64", "100 B, c64", "per_second"),
        ("2025: calls/s, 16", "100 B, 2025, c16", "per_second"),
        ("2025: CPU s per 1,000", "100 B, 2025, c16", "cpu"),
    ],
    "By size, CPU seconds per 1,000 calls": [
        ("10 kB there and back, 16", "10 kB, c16", "cpu"),
        ("1 MB there and back, 1", "1 MB both ways, c1", "cpu"),
        ("1 MB of prose back, 4", _LARGE, "cpu"),
        ("p50 ms", _LARGE, "p50"),
        ("image of 1 MB back, 4", _IMAGE, "cpu"),
        ("p50 ms", _IMAGE, "p50"),
    ],
    "A list of 500 tools": [
        ("p50 ms", f"{_LISTS}, cacheable", "p50"),
        ("CPU s per 1,000", f"{_LISTS}, cacheable", "cpu"),
        ("not cacheable: p50 ms", f"{_LISTS}, not cacheable", "p50"),
        ("CPU s per 1,000", f"{_LISTS}, not cacheable", "cpu"),
    ],
    "In front of a server on the SDK, 16 connections": _rates({"2025": "SDK server, 2025, c16", "2026": "SDK server, 2026, c16"}),
    "In front of servers that speak 2025, or answer with streams, 16 connections": _rates(
        {title: f"{cell}, c16" for title, cell in _KINDS.items()} | {"2025, JSON, to 2026 clients": "2025 server, 2026 clients, c16"}
    ),
    "A result of 1 MB from these servers, 4 connections": _rates({title: f"{cell}, 1 MB result, c4" for title, cell in _KINDS.items()}),
    "In front of a server over stdio, 16 connections": _rates({"2025": "over stdio, 2025, c16", "2026": "over stdio, 2026, c16"}),
}
"""Columns of each table by title. A column is a heading, a load and a figure of the load."""


def tables(runs: Sequence[Sheet]) -> list[str]:
    """Return every table that has at least one row, each below its title."""
    parts = [f"## {title}\n\n{made}" for title, columns in _CELLS.items() if (made := cell_table(runs, columns))]
    memory = single_table(runs, ["first list, s", "idle memory, MB", "idle 2025 session, KiB"])
    return [*parts, *(f"## {title}\n\n{made}" for title, made in (("Starting and memory", memory), ("Starts", _starts(runs))) if made)]


def page(runs: Sequence[Sheet], about: About) -> str:
    """Return the whole page as Markdown."""
    intro = _INTRO.format(runs=len(runs), date=about.date, machine=about.machine, calls=about.calls, rounds=about.rounds)
    parts = [intro, _host(runs), "## Targets\n", target_table(runs), _YARDSTICK, _SEARCHED, _AIMS, *tables(runs), *_rest(runs, about)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


def _host(runs: Sequence[Sheet]) -> str:
    """Return a sentence about the CPU steal time and the repeated slots, or `""` if steal time was not measured."""
    parts = [value for sheet in runs if (value := single(TAKEN, "host")(sheet)) is not None]
    if not parts:
        return ""
    slots = sum(len(found) for sheet in runs for found in sheet.single.get(AGAIN, {}).values())
    shares = ", ".join(f"{part:.1%}" for part in parts)
    return f"The host took {shares} of the time of these cores for others during the runs; {slots} slots were measured again.\n"


def _starts(runs: Sequence[Sheet]) -> str:
    names = list(dict.fromkeys(name for sheet in runs for name in sheet.single.get(_START, {})))
    titles = ["tuned SDK relay" if name == "relay" else f"Moongate, {name}" for name in names]
    columns = (_START, "start to first complete list, CPU s")
    rows = [[title, *(number(_single_over(runs, column, name)) for column in columns)] for title, name in zip(titles, names, strict=True)]
    made = table(["from the start of the process to the first complete list", "s", "CPU s"], rows)
    return f"{made}\n{_NEW_AND_SILENT}" if made else ""


def _rest(runs: Sequence[Sheet], about: About) -> list[str]:
    versions = [[TITLES[name], version] for name, version in about.versions.items()]
    reasons = {what: why for sheet in reversed(runs) for what, why in sheet.failed.items()}
    failed = [f"- {what}: {why}" for what, why in reasons.items()]
    parts = ["## Contenders\n", table(["contender", "version"], versions)] if versions else []
    if failed:
        parts += ["## Left out\n", "\n".join(failed)]
    if about.notes:
        parts += ["## Notes\n", "\n".join(f"- {note}" for note in about.notes)]
    return parts
