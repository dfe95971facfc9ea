"""The command of the harness: runs its parts, prints the figures, and writes the pages.

    python -m benchmarks.fleet calls | tasks | replicas | all [--runs N] [--write] [--json FILE] [sizes]

Exit code 1: an answer was wrong, a failure was not excused, a task was lost, or a target was missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fleet import background, calls, growth, report
from benchmarks.fleet.progress import say
from benchmarks.fleet.site import NGINX
from benchmarks.machine import machine_class

PARTS = ("calls", "tasks", "replicas")


def main() -> None:
    """Parse the command line, run the parts, and exit with 1 if something is not as it must be."""
    options = _parser().parse_args()
    if NGINX is None:
        raise SystemExit("fleet: nginx is missing. Install it with the packages of your system.")
    chosen = PARTS if options.part == "all" else (options.part,)
    runs: list[dict[str, Any]] = []
    for number in range(options.runs):
        say(f"run {number + 1} of {options.runs}")
        began = time.monotonic()
        figures: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "machine": machine_class(), "full": _is_full(options, number)}
        for part in chosen:
            figures[part] = _run(part, options, number)
            figures["minutes"] = (time.monotonic() - began) / 60
        runs.append(figures)
        if options.json:
            options.json.write_text(json.dumps(runs, indent=1) + "\n")
    sys.stdout.write(report.page(runs))
    if options.write:
        report.write(runs)
    failed = [f"run {number}: {problem}" for number, figures in enumerate(runs, 1) for problem in report.problems(figures)]
    for problem in failed:
        sys.stderr.write(f"fleet: {problem}\n")
    sys.exit(bool(failed))


def _run(part: str, options: argparse.Namespace, number: int) -> dict[str, Any]:
    """Run one part with a fleet of its own, and return its figures."""
    say(f"part {part}")
    with tempfile.TemporaryDirectory(prefix="moongate-fleet-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        work: dict[str, Callable[[], dict[str, Any]]] = {
            "calls": lambda: calls.run(folder, _calls(options)),
            "tasks": lambda: background.run(folder, _tasks(options, number)),
            "replicas": lambda: growth.run(folder, growth.Size(seconds=options.slot, rounds=options.rounds)),
        }
        return work[part]()


def _calls(options: argparse.Namespace) -> calls.Size:
    return calls.Size(
        sessions=options.sessions,
        rate=options.rate,
        every=options.every,
        share=options.share,
        quiet=options.quiet,
        kills=options.kills,
        interval=options.interval,
        upgrades=not options.no_upgrade,
        revision=options.revision,
        wrong_every=options.wrong_every,
    )


def _tasks(options: argparse.Namespace, number: int) -> background.Size:
    """Return the size of the part `tasks` in run `number`, from 0."""
    return background.Size(options.tasks[min(number, len(options.tasks) - 1)], options.in_flight, options.interval, limit=options.limit)


def _is_full(options: argparse.Namespace, number: int) -> bool:
    """Return whether the sizes are those of the targets, or larger."""
    aim, size = calls.Size(), _calls(options)
    is_large = size.sessions >= aim.sessions and size.rate >= aim.rate and size.interval <= aim.interval and size.kills >= aim.kills
    return is_large and size.upgrades and _tasks(options, number).tasks >= background.Size().tasks


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    cli = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__, formatter_class=form)
    aim, tasks, grown = calls.Size(), background.Size(), growth.Size()
    cli.add_argument("part", choices=[*PARTS, "all"])
    cli.add_argument("--runs", type=int, default=1)
    cli.add_argument("--write", action="store_true", help="write RESULTS.md, results.json and the figures of docs/scale.md")
    cli.add_argument("--json", type=Path, metavar="FILE", help="write the figures of all runs to FILE")
    cli.add_argument("--sessions", type=int, default=aim.sessions, help="2025 sessions")
    cli.add_argument("--every", type=float, default=aim.every, help="seconds between two calls of a session")
    cli.add_argument("--share", type=float, default=aim.share, help="share of sessions that hold an event stream, 0 to 1")
    cli.add_argument("--rate", type=float, default=aim.rate, help="2026 requests per second")
    cli.add_argument("--quiet", type=float, default=aim.quiet, help="seconds of the quiet phase")
    cli.add_argument("--kills", type=int, default=aim.kills)
    cli.add_argument("--interval", type=float, default=aim.interval, help="seconds between two kills")
    cli.add_argument("--no-upgrade", action="store_true", help="do not upgrade the fleet in the disturbed phase")
    cli.add_argument("--from", dest="revision", metavar="REV", help="earlier revision of the upgrade; default: this checkout")
    cli.add_argument("--wrong-every", type=int, default=0, help="let the server return a wrong answer to each n-th call, to test the judge")
    several = "one number for each run, the last for all further runs"
    cli.add_argument("--tasks", type=_numbers, default=(tasks.tasks,), metavar="N[,N]", help=f"tasks; {several}")
    cli.add_argument("--in-flight", type=int, default=tasks.in_flight, help="tasks that clients have started and not yet read")
    cli.add_argument("--limit", type=float, default=tasks.limit, help="seconds after which no more tasks are started")
    cli.add_argument("--slot", type=float, default=grown.seconds, help="seconds of a slot of the part replicas")
    cli.add_argument("--rounds", type=int, default=grown.rounds, help="rounds of the part replicas")
    return cli


if __name__ == "__main__":
    main()
