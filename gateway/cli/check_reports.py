"""Prints the reports of `skills check` and `workflows check`, and ends the command with exit code 5 if a file is rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from gateway.cli.failures import CommandFailed
from gateway.cli.output import print_json, print_note, print_text

if TYPE_CHECKING:
    from gateway.cli.failures import Code
    from gateway.diagnostics import Diagnostic, Verdict
    from gateway.json_types import JsonObject


class Report(Protocol):
    """The result of checking one file or folder, such as a skill or a workflow."""

    @property
    def path(self) -> str:
        """Path of the checked file or folder."""
        ...

    @property
    def verdict(self) -> Verdict:
        """Whether the gateway would serve the file or folder."""
        ...

    @property
    def diagnostics(self) -> Sequence[Diagnostic]:
        """Findings about the file or folder."""
        ...

    def to_json(self) -> JsonObject:
        """Return the JSON object that the command prints with `--json`."""
        ...


def show_reports(reports: Sequence[Report], what: str, code: Code, *, manifest: str = "", remark: str = "", as_json: bool) -> None:
    """Print one line per warning and error in the form for editors and CI, `file:line: level: message [code]`, and then the totals.

    `what` names the checked objects in the plural, such as `skills`. `code` is the command's error code if a file or folder is rejected.
    `manifest` is the file of a checked folder to which line numbers refer, such as `/SKILL.md`: it is appended to the folder's path in
    lines with a number. `remark` is appended to the line of totals. With `as_json`, only the reports are printed, as JSON.

    Raises:
        CommandFailed: A file or folder is rejected.
    """
    totals = Counter(report.verdict for report in reports)
    if as_json:
        print_json([report.to_json() for report in reports])
    else:
        for report in reports:
            for found in report.diagnostics:
                if found.level != "info":
                    place = f"{report.path}{manifest}:{found.line}" if found.line else report.path
                    print_text(f"{place}: {found.level}: {' '.join(found.message.split())} [{found.code}]")
        warned, rejected = totals["accepted_with_warning"], totals["rejected"]
        print_note(f"{totals['accepted']} accepted, {warned} with warnings, {rejected} rejected{remark}.")
    if totals["rejected"]:
        raise CommandFailed(f"{totals['rejected']} of {len(reports)} {what} rejected.", code=code)
