"""`check_workflows`: checks workflow files for the command `moongate workflows check`.

It checks each file as the gateway does when it loads the file (`loader`). It also looks up the workflows that the file names, in the
checked files and in the same folder, and the agents, in the same folder. It imports no Python module that a file names. The functions
block.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.config.paths import did_you_mean_path
from gateway.config.suggest import did_you_mean
from gateway.diagnostics import Diagnostic, Verdict
from gateway.errors import GatewayError
from gateway.json_types import JsonObject
from gateway.workflows.definition import AgentStep, ToolStep, WorkflowFile, WorkflowStep
from gateway.workflows.loader import SUFFIXES, examine
from gateway.workflows.reachability import on_a_loop
from gateway.workflows.team_definition import GroupChatTeam, MagenticTeam, pattern_of

_AGENT_SUFFIX = ".agent.md"
_PASSED_OVER = frozenset({"node_modules", "__pycache__"})


@dataclass(frozen=True, slots=True)
class WorkflowReport:
    """Result of checking one workflow file, or an error for a path without workflow files.

    `name` is empty if there is no file or the file has mistakes. With `is_strict`, a file with a warning is rejected.
    """

    path: str
    name: str
    diagnostics: tuple[Diagnostic, ...]
    is_strict: bool = False

    @property
    def verdict(self) -> Verdict:
        """The result of the check: `rejected` (an error, or with `is_strict` a warning), `accepted_with_warning` or `accepted`."""
        if any(found.level == "error" or self.is_strict for found in self.diagnostics):
            return "rejected"
        return "accepted_with_warning" if self.diagnostics else "accepted"

    def to_json(self) -> JsonObject:
        """Return the report as the JSON object that `moongate workflows check --json` prints for a file."""
        return {
            "path": self.path, "name": self.name, "verdict": self.verdict, "diagnostics": [found.to_json() for found in self.diagnostics],
        }  # fmt: skip


def check_workflows(paths: Sequence[str], *, strict: bool = False) -> list[WorkflowReport]:
    """Check all workflow files in `paths` (files, and folders with their subfolders), and return a report for each file, sorted by path.

    Subfolders `node_modules` and `__pycache__`, and those whose name begins with a dot, are skipped. A path without workflow files gets a
    report with an error. Reports contain relative paths if `paths` are relative. With `strict`, a file with a warning is rejected.
    """
    found: dict[str, str] = {}
    reports: list[WorkflowReport] = []
    for path in paths:
        files = list(_files_below(path))
        if not files:
            hint = did_you_mean_path(path)
            message = f"There is no *{SUFFIXES[0]} here." if os.path.exists(path) else f"There is no such file or folder. {hint}".rstrip()
            reports.append(WorkflowReport(path, "", (Diagnostic("no-workflow", "error", message),), strict))
        for file in files:
            found.setdefault(os.path.realpath(file), file)
    examined = {file: examine(Path(file)) for file in found.values()}
    workflows = {path: file for path, (file, _) in examined.items() if file is not None}
    for path, (file, findings) in examined.items():
        diagnostics = [Diagnostic(item.code, "error", item.text, item.line) for item in findings]
        if file is not None:
            diagnostics += _beside_others(path, file, workflows)
        reports.append(WorkflowReport(path, file.name if file is not None else "", tuple(diagnostics), strict))
    return sorted(reports, key=lambda report: (report.path, report.name))


def _files_below(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        if os.path.isfile(path):
            yield path
        return
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name not in _PASSED_OVER)
        yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith(SUFFIXES))


def _beside_others(path: str, file: WorkflowFile, workflows: dict[str, WorkflowFile]) -> Iterator[Diagnostic]:
    if not path.endswith(SUFFIXES):
        yield Diagnostic("suffix", "error", f"The name of the file must end in {SUFFIXES[0]}, or the gateway passes it over.")
    twins = sorted(other for other, item in workflows.items() if item.name == file.name and other != path)
    if twins:
        yield Diagnostic("duplicate-name", "error", f"name: workflow {file.name!r} is also defined in {twins[0]}; rename one.")
    pairs = [(item.name, name) for item in workflows.values() for name in workflows_in(item)]
    circle = on_a_loop(pairs)
    if file.name in circle:
        yield Diagnostic("circle", "error", f"It calls itself through {', '.join(map(repr, circle))}; its run would fail.")
    near = {item.name for item in workflows.values()} | {item.name for item in _siblings(path)}
    yield from _unknown("workflow", workflows_in(file), near)
    yield from _unknown("agent", agents_in(file), _agents_beside(path), place=" in this folder")


def _unknown(kind: str, names: Iterable[str], known: Collection[str], *, place: str = "") -> Iterator[Diagnostic]:
    """Yield a warning for each workflow or agent (`kind`) in `names` that is not in `known`. `place` follows the name in the text."""
    for name in dict.fromkeys(names):
        if name not in known:
            hint = did_you_mean(name, known) or "It must be in a folder of `expose.agents`."
            yield Diagnostic(f"unknown-{kind}", "warning", f"Unknown {kind} {name!r}{place}. {hint}")


def workflows_in(file: WorkflowFile) -> Iterator[str]:
    """Yield the names of the other workflows that a workflow file calls, as an executor, a tool or a participant of an orchestration."""
    for step in file.steps.values():
        if isinstance(step, WorkflowStep):
            yield step.workflow
        elif isinstance(step, ToolStep) and step.tool.startswith("workflow/"):
            yield step.tool.removeprefix("workflow/")
    for item in file.team.participants if file.team is not None else ():
        if item.startswith("workflow/"):
            yield item.removeprefix("workflow/")


def agents_in(file: WorkflowFile) -> Iterator[str]:
    """Yield the names of the agents in a workflow file: values of the key `agent`, and participants, orchestrators and managers."""
    yield from (step.agent for step in file.steps.values() if isinstance(step, AgentStep))
    team = file.team
    if team is None:
        return
    yield from (pattern_of(item).removeprefix("agent/") for item in team.participants if pattern_of(item).startswith("agent/"))
    if isinstance(team, GroupChatTeam) and team.orchestrator is not None:
        yield team.orchestrator
    if isinstance(team, MagenticTeam):
        yield team.manager


def _siblings(path: str) -> Iterator[WorkflowFile]:
    folder = os.path.dirname(path) or os.curdir
    for name in sorted(os.listdir(folder)):
        if name.endswith(SUFFIXES):
            file, _ = examine(Path(folder, name))
            if file is not None:
                yield file


def _agents_beside(path: str) -> set[str]:
    from gateway.agents.definition import read_agent

    folder = os.path.dirname(path) or os.curdir
    names: set[str] = set()
    for name in os.listdir(folder):
        if name.endswith(".md"):
            try:
                names.add(read_agent(Path(folder, name)).file.name)
            except GatewayError:
                names.add(name.removesuffix(_AGENT_SUFFIX).removesuffix(".md"))
    return names
