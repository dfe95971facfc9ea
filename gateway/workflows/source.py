"""`WorkflowSource`: the `*.workflow.yaml` files of some folders, as tools.

Reads once, when entered; a broken file is noted in `problems` and the others load. Entered by `app`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import anyio.to_thread

from gateway.config.executes import RunEntry
from gateway.errors import WorkflowInvalid
from gateway.tools.base import OnChange, Tool
from gateway.tools.function_rules import FunctionRules
from gateway.tools.functions_source import SourceProblem
from gateway.tools.toolbox import ToolBox, ToolGuards
from gateway.workflows.checking import workflows_in
from gateway.workflows.definition import WorkflowFile
from gateway.workflows.graph import on_a_loop
from gateway.workflows.loader import SUFFIXES, load_workflow
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.tool import Forms, WorkflowTool

logger = logging.getLogger(__name__)


class WorkflowSource:
    """Workflows of folders and files, in the order of their names."""

    def __init__(
        self,
        paths: Sequence[Path | str],
        *,
        toolbox: ToolBox,
        base_dir: Path,
        forms: Forms | None = None,
        rules: FunctionRules | None = None,
    ) -> None:
        """Relative `paths` and modules that files name are looked for in `base_dir`. `forms` asks people whose client cannot ask.
        `rules` say which Python functions files may run; each call of one is gated if `toolbox` is a `ToolGuards` too. No side
        effects before it is entered.
        """
        self._paths = [base_dir / path for path in paths]
        self._toolbox = toolbox
        self._forms = forms
        self._guards = toolbox if isinstance(toolbox, ToolGuards) else None
        self._rules = rules
        self._base_dir = base_dir
        self._tools: dict[str, WorkflowTool] = {}
        self._plans: list[tuple[Path, WorkflowPlan]] = []
        self._refusal: Callable[[RunEntry], str | None] = lambda entry: None
        self.is_waiting = False
        """Whether a workflow is left out until a person accepts its file."""
        self.modules: set[str] = set()
        """What the files name in Python, as `module:name`."""
        self.problems: list[SourceProblem] = []
        """What did not load; shown by `moongate doctor`."""

    def judge_files(self, refusal: Callable[[RunEntry], str | None]) -> None:
        """Import nothing that `refusal` has a reason against; before entering. It may block. Without it everything is imported."""
        self._refusal = refusal

    @property
    def id(self) -> str:
        """Always `workflow`."""
        return "workflow"

    async def __aenter__(self) -> WorkflowSource:
        """Read and check every file, and import what they name."""
        found: dict[str, tuple[Path, WorkflowFile]] = {}
        for path in await anyio.to_thread.run_sync(partial(find_files, self._paths)):
            try:
                file = await anyio.to_thread.run_sync(partial(load_workflow, path))
            except WorkflowInvalid as error:
                self._note(str(error))
                continue
            first = found.setdefault(file.name, (path, file))[0]
            if first != path:
                self._note(f"{path}: workflow {file.name!r} is already defined in {first}; rename one.")
        self._refuse_circles(found)
        for name, (path, file) in found.items():
            self.modules |= file.python_references
            entry = file.run_entry(path)
            if entry is not None and (refusal := await anyio.to_thread.run_sync(self._refusal, entry)) is not None:
                self.is_waiting = True
                self._note(f"{path}: {refusal}")
                continue
            try:
                plan = await WorkflowPlan.prepare(file, base_dir=self._base_dir, rules=self._rules)
            except WorkflowInvalid as error:
                self._note("\n".join(f"{path}: {line}" for line in str(error).splitlines()))
                continue
            self._plans.append((path, plan))
            self._tools[name] = WorkflowTool(plan, toolbox=self._toolbox, forms=self._forms, guards=self._guards)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing is held open."""

    async def tools(self) -> Sequence[Tool]:
        """The workflows that loaded."""
        return list(self._tools.values())

    def needs(self) -> dict[str, list[str]]:
        """Return the tools that each file names as `source/tool`, agents and workflows too, by the file's path."""
        return {str(path): list(dict.fromkeys(plan.patterns.values())) for path, plan in self._plans}

    def subscribe(self, on_change: OnChange) -> None:
        """Files are read once, so nothing is ever announced."""

    def _refuse_circles(self, found: dict[str, tuple[Path, WorkflowFile]]) -> None:
        """Leave out workflows that call each other in a circle: such a run could only end by failing."""
        pairs = [(name, other) for name, (_, file) in found.items() for other in workflows_in(file)]
        circle = on_a_loop(pairs)
        for name in circle:
            path, _ = found.pop(name)
            self._note(f"{path}: workflow {name!r} calls itself through {', '.join(map(repr, circle))}.")

    def _note(self, text: str) -> None:
        """One problem per line; each line is `FILE: MISTAKE` or `FILE:LINE: MISTAKE`."""
        for line in text.splitlines():
            logger.warning("workflows: %s", line)
            where, _, message = line.partition(": ")
            self.problems.append(SourceProblem(where, message))


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Workflow files of the paths, each once, by file name; folders are not searched deeper."""
    files = [file for path in paths for file in _files_of(path)]
    return sorted(dict.fromkeys(files), key=lambda file: (file.name, str(file)))


def _files_of(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (item for item in path.iterdir() if item.name.endswith(SUFFIXES) and item.is_file())
    elif path.name.endswith(SUFFIXES):
        yield path
