"""Prints the reports of `skills check` and `workflows check`, and ends the command with exit code 5 if a file is rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from gateway.cli.failures import CommandFailed
from gateway.cli.output import print_json, say, tell

if TYPE_CHECKING:
    from gateway.cli.failures import Code
    from gateway.diagnostics import Diagnostic, Verdict
    from gateway.json_types import JsonObject


class Report(Protocol):
    """The verdict on one file or folder."""

    @property
    def path(self) -> str:
        """The checked file or folder."""
        ...

    @property
    def verdict(self) -> Verdict:
        """Whether the gateway would serve it."""
        ...

    @property
    def diagnostics(self) -> Sequence[Diagnostic]:
        """What was found."""
        ...

    def to_json(self) -> JsonObject:
        """Return the object that `--json` prints."""
        ...


def show_reports(reports: Sequence[Report], what: str, code: Code, *, manifest: str = "", remark: str = "", as_json: bool) -> None:
    """Print a line per warning and error in the form that editors and CI read: `file:line: level: message [code]`; then the totals.

    `what` names the checked things in the plural. `manifest` is the end of the path of a line's file. `remark` follows the totals.

    Raises:
        CommandFailed: A report is a rejection.
    """
    totals = Counter(report.verdict for report in reports)
    if as_json:
        print_json([report.to_json() for report in reports])
    else:
        for report in reports:
            for found in report.diagnostics:
                if found.level != "info":
                    place = f"{report.path}{manifest}:{found.line}" if found.line else report.path
                    tell(f"{place}: {found.level}: {' '.join(found.message.split())} [{found.code}]")
        warned, rejected = totals["accepted_with_warning"], totals["rejected"]
        say(f"{totals['accepted']} accepted, {warned} with warnings, {rejected} rejected{remark}.")
    if totals["rejected"]:
        raise CommandFailed(f"{totals['rejected']} of {len(reports)} {what} rejected.", code=code)
