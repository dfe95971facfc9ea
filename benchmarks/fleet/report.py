"""Tables and targets of the harness, and the files that show them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT

HERE = Path(__file__).parent
RESULTS, FIGURES = HERE / "RESULTS.md", HERE / "results.json"
PAGE = ROOT / "docs" / "scale.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

MOST_P99 = 3.0
MOST_GROWTH = 2.0
"""MiB per minute that the memory of a replica may grow in the quiet phase and still count as flat."""
MOST_MEMORY = 1.35
"""Largest memory in the disturbed phase, in multiples of that in the quiet phase: replicas take over the streams of others meanwhile."""
MOST_COST = 1.1

Figures = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A figure with a limit. `value` returns the figure of one run."""

    part: str
    text: str
    value: Callable[[Figures], float | None]
    limit: float
    form: str = "{:.0f}"

    def found(self, figures: Figures) -> float | None:
        """Return the figure of a run, or `None` if the run did not measure the part."""
        return self.value(figures[self.part]) if self.part in figures else None

    def is_met(self, figures: Figures) -> bool:
        """Return whether the figure is within the limit; a figure that was not measured is."""
        value = self.found(figures)
        return value is None or value <= self.limit

    def shown(self, figures: Figures) -> str:
        value = self.found(figures)
        return "-" if value is None else self.form.format(value)


def _both(name: str) -> Callable[[Figures], float]:
    return lambda calls: calls["quiet"]["judgement"][name] + calls["disturbed"]["judgement"][name]


def _bare(calls: Figures) -> float | None:
    """Return the failed calls without a retryable error; `None` for a run from before they were counted."""
    found: list[float | None] = [calls[phase]["judgement"].get("bare") for phase in ("quiet", "disturbed")]
    return None if None in found else sum(value or 0 for value in found)


def _growth(calls: Figures) -> float:
    return calls["quiet"]["growth_mib_per_minute"]


def _memory(calls: Figures) -> float:
    return calls["disturbed"]["memory_mib"] / calls["quiet"]["memory_mib"]


TARGETS = (
    Target("calls", "wrong answers", _both("wrong"), 0),
    Target("calls", "answers of another principal", _both("foreign"), 0),
    Target("calls", "failures that were not in flight at a killed replica, or not retryable", _both("violations"), 0),
    Target("calls", "failed without a retryable error", _bare, 0),
    Target("calls", "calls that failed in every attempt", _both("lost"), 0),
    Target("calls", "p99 disturbed / quiet", lambda calls: calls["p99_ratio"], MOST_P99, "{:.2f}"),
    Target("calls", "growth of memory, quiet, MiB per minute", _growth, MOST_GROWTH, "{:.2f}"),
    Target("calls", "largest memory, disturbed / quiet", _memory, MOST_MEMORY, "{:.2f}"),
    Target("tasks", "lost tasks", lambda tasks: tasks["lost_count"] + tasks["never_called"], 0),
    Target("tasks", "tasks with a wrong result", lambda tasks: tasks["wrong_count"], 0),
    Target("tasks", "most repeated steps of one task", lambda tasks: tasks["most_repeats_of_a_task"], 1),
    Target("tasks", "repeated steps per kill", lambda tasks: tasks["repeated_per_kill"], 1, "{:.2f}"),
    Target("replicas", "CPU per call, most expensive fleet of 1 to 4 / one replica", lambda grown: grown["ratio"], MOST_COST, "{:.2f}"),
)


def problems(figures: Figures) -> list[str]:
    """Return a sentence for each target that a run missed."""
    missed = [target for target in TARGETS if not target.is_met(figures)]
    return [f"{target.part}: {target.text}: {target.shown(figures)}, at most {target.form.format(target.limit)}" for target in missed]


def page(runs: Sequence[Figures]) -> str:
    """Return the figures of all runs as Markdown."""
    parts = [_head(runs), _targets(runs)]
    for name, table in (("calls", _calls), ("tasks", _tasks), ("replicas", _replicas)):
        found = [run[name] for run in runs if name in run]
        if found:
            parts.append(table(found))
    return "\n\n".join(parts) + "\n"


def write(runs: Sequence[Figures]) -> None:
    """Write the figures to `RESULTS.md`, `results.json` and the marked part of `docs/scale.md`."""
    text = page(runs)
    FIGURES.write_text(json.dumps(runs, indent=1) + "\n")
    RESULTS.write_text(f"# Recorded figures of the fleet\n\n{text}")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def _head(runs: Sequence[Figures]) -> str:
    first = runs[0]
    smaller = [str(number) for number, run in enumerate(runs, 1) if not run["full"]]
    size = f"**run {', '.join(smaller)} with smaller sizes than those of the targets**" if smaller else "all with the sizes of the targets"
    minutes = ", ".join(f"{run['minutes']:.0f}" for run in runs)
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    machine = f"Measured {first['date']} on {first['machine']}. All programs share these cores."
    return f"{machine} {count} of {minutes} minutes, {size}."


def _targets(runs: Sequence[Figures]) -> str:
    rows: list[Sequence[str]] = []
    for target in TARGETS:
        if any(target.part in run for run in runs):
            verdict = "holds" if all(target.is_met(run) for run in runs) else "misses"
            rows.append((target.text, *(target.shown(run) for run in runs), f"≤ {target.limit:g}", verdict))
    return _table(("target", *_numbers(runs), "limit", ""), rows)


def _calls(found: Sequence[Figures]) -> str:
    size = found[0]["size"]
    text = (
        f"## Calls\n\n{size['sessions']:,} sessions of 2025 with a call every {size['every']:g} s, {size['share']:.0%} of them with an "
        f"event stream, and {size['rate']:g} requests per second of 2026, through three replicas. A kill every {size['interval']:g} s"
        f"{'; upgrade: ' + ', '.join(found[0]['versions']) if found[0]['versions'] else ''}. The server behind the gateways takes 20 ms."
    )
    rows = [_row("sessions opened per second", found, lambda run: run["opened_per_second"], "{:.0f}")]
    for phase in ("quiet", "disturbed"):
        rows += [_row(f"{phase}: {label}", found, _in(phase, value), form) for label, value, form in _PHASE_ROWS]
    rows.append(_row("disturbed: longest stop after SIGTERM, s", found, _longest("stop_seconds"), "{:.2f}"))
    rows.append(_row("disturbed: longest start until ready, s", found, _longest("ready_seconds"), "{:.1f}"))
    return f"{text}\n\n{_table(_columns(found), rows)}\n\n{_failures(found)}"


_PHASE_ROWS: tuple[tuple[str, Callable[[Figures], float], str], ...] = (
    ("calls", lambda phase: phase["calls"], "{:,.0f}"),
    ("p50, ms", lambda phase: phase["latency"]["all"]["p50"] * 1000, "{:.1f}"),
    ("p99, ms", lambda phase: phase["latency"]["all"]["p99"] * 1000, "{:.1f}"),
    ("p99 with retries, ms", lambda phase: phase["latency_with_retries_p99"] * 1000, "{:.1f}"),
    ("failed in flight at a killed replica", lambda phase: sum(phase["judgement"]["excused"].values()), "{:.0f}"),
    ("failed without a retryable error", lambda phase: phase["judgement"].get("bare", 0), "{:.0f}"),
    ("stream broke", lambda phase: phase["judgement"].get("stream_broke", 0), "{:.0f}"),
    ("CPU of the gateways per call, ms", lambda phase: phase["gateway_ms_per_call"], "{:.2f}"),
    ("processors: gateways", lambda phase: phase["use"]["gateways"], "{:.2f}"),
    ("processors: PostgreSQL", lambda phase: phase["use"]["PostgreSQL"], "{:.2f}"),
    ("processors: nginx", lambda phase: phase["use"]["nginx"], "{:.2f}"),
    ("processors: harness and its server", lambda phase: phase["use"]["harness and server"], "{:.2f}"),
    ("processors: the whole machine", lambda phase: phase["use"]["machine"], "{:.2f}"),
    ("transactions per second", lambda phase: phase["use"]["transactions"], "{:.0f}"),
    ("rows written per second", lambda phase: phase["use"]["rows written"], "{:.0f}"),
    ("connections to the database", lambda phase: phase["connections"], "{:.0f}"),
    ("largest memory of a replica, MiB", lambda phase: phase["memory_mib"], "{:.0f}"),
    ("event streams that ended", lambda phase: phase["stream_ends"], "{:.0f}"),
)


def _failures(found: Sequence[Figures]) -> str:
    """Return a table of all failures that clients got, and what they may do."""
    forms: dict[str, int] = {}
    for run in found:
        for form, count in run["disturbed"]["judgement"]["excused"].items():
            key = f"in flight at a killed replica: {form}"
            forms[key] = forms.get(key, 0) + count
        for form, count in run["disturbed"]["judgement"]["violation_forms"].items():
            forms[form] = forms.get(form, 0) + count
    rows = [(form, f"{count}") for form, count in sorted(forms.items(), key=lambda one: -one[1])]
    return _table(("what the client got", "all runs"), rows) if rows else "No call failed."


_TASK_ROWS: tuple[tuple[str, Callable[[Figures], float], str], ...] = (
    ("tasks with the right result", lambda run: run["right"], "{:,.0f}"),
    ("kills", lambda run: run["kills"], "{:.0f}"),
    ("repeated steps", lambda run: run["repeated_steps"], "{:.0f}"),
    ("tasks per second", lambda run: run["tasks_per_second"], "{:.0f}"),
    ("tasks per second and replica", lambda run: run["tasks_per_second"] / 3, "{:.0f}"),
    ("start to result, p50, s", lambda run: run["wait"]["p50"], "{:.2f}"),
    ("start to result, p99, s", lambda run: run["wait"]["p99"], "{:.2f}"),
    ("longest, s", lambda run: run["wait"]["max"], "{:.1f}"),
    ("CPU of the gateways per task, ms", lambda run: run["gateway_ms_per_task"], "{:.1f}"),
    ("CPU of PostgreSQL per task, ms", lambda run: run["postgres_ms_per_task"], "{:.1f}"),
    ("transactions per task", lambda run: run["transactions_per_task"], "{:.1f}"),
    ("rows written per task", lambda run: run["rows_written_per_task"], "{:.1f}"),
    ("write-ahead log, MB per second", lambda run: run["use"]["MB of write-ahead log"], "{:.1f}"),
    ("processors: gateways", lambda run: run["use"]["gateways"], "{:.2f}"),
    ("processors: PostgreSQL", lambda run: run["use"]["PostgreSQL"], "{:.2f}"),
    ("processors: the whole machine", lambda run: run["use"]["machine"], "{:.2f}"),
    ("connections to the database", lambda run: run["connections"], "{:.0f}"),
)


def _tasks(found: Sequence[Figures]) -> str:
    size = found[0]["size"]
    numbers = " and ".join(dict.fromkeys(f"{run['size']['tasks']:,}" for run in found))
    text = (
        f"## Tasks\n\n{numbers} tasks of one step, {size['in_flight']} at once, through three replicas, one of which is killed "
        f"every {size['interval']:g} s. The server behind them takes 20 ms."
    )
    return f"{text}\n\n{_table(_columns(found), [_row(label, found, value, form) for label, value, form in _TASK_ROWS])}"


def _replicas(found: Sequence[Figures]) -> str:
    size = found[0]["size"]
    text = (
        f"## Replicas\n\n{size['rate']:g} requests per second of 2026 and {size['sessions'] / size['every']:g} calls per second of "
        f"{size['sessions']} sessions, per replica. Gateways that stand alone serve the same load at the same time, so that there are "
        f"always {size['most'] + 1} gateways. CPU in ms per call, medians of {size['rounds']} rounds. The target compares the costs in "
        "multiples of those at gateways that stand alone, because the machine is not equally fast all the time."
    )
    rows: list[Sequence[str]] = []
    for count in found[0]["fleets"]:
        for label, key in (("gateways", "gateways"), ("PostgreSQL", "postgres")):
            rows.append(_row(f"{count} replica{'' if count == '1' else 's'}: {label}", found, _of_fleet(count, key), "{:.3f}"))
    for count in found[0]["fleets"]:
        label = f"{count} replica{'' if count == '1' else 's'}: cost of a call in multiples of that at gateways that stand alone"
        rows.append(_row(label, found, _of_fleet(count, "relative"), "{:.2f}"))
    rows.append(_row("an idle replica, % of a processor", found, lambda run: run["idle"] * 100, "{:.1f}"))
    return f"{text}\n\n{_table(_columns(found), rows)}"


def _longest(name: str) -> Callable[[Figures], float]:
    return lambda run: max(run["disturbed"][name], default=0.0)


def _of_fleet(count: str, key: str) -> Callable[[Figures], float]:
    return lambda run: run["fleets"][count][key]


def _in(phase: str, value: Callable[[Figures], float]) -> Callable[[Figures], float]:
    return lambda run: value(run[phase])


def _numbers(runs: Sequence[Figures]) -> list[str]:
    return [f"run {number}" for number in range(1, len(runs) + 1)]


def _columns(runs: Sequence[Figures]) -> Sequence[str]:
    """Return the head of a table of `_row`."""
    return ("figure", *_numbers(runs), *(["median"] if len(runs) > 1 else []))


def _row(label: str, found: Sequence[Figures], value: Callable[[Figures], float], form: str) -> Sequence[str]:
    values = [value(run) for run in found]
    shown = [form.format(one) for one in values]
    return (label, *shown, *([form.format(statistics.median(values))] if len(values) > 1 else []))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, [":--", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
