"""`WorkflowSource`: a source of tools that serves each `*.workflow.yaml` file of the configured folders as a tool.

The source reads the files when its context is entered. A file that cannot be loaded is listed in `problems`. When files change, the package
`app` creates a new source, which reuses the tools of unchanged files and the last good version of files that can no longer be loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio.to_thread

from gateway.config.executes import RunEntry
from gateway.config.watch import Signature, signature_of
from gateway.errors import WorkflowInvalid
from gateway.gate.function_rules import FunctionRules
from gateway.tools.base import OnChange, Tool
from gateway.tools.functions_source import SourceProblem, still_served
from gateway.tools.modules import current_generation
from gateway.tools.toolbox import ToolBox, ToolGuards
from gateway.workflows.callers import Forms
from gateway.workflows.definition import WorkflowFile
from gateway.workflows.file_report import workflows_in
from gateway.workflows.loader import SUFFIXES, load_workflow
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.reachability import on_a_loop
from gateway.workflows.tool import WorkflowTool

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedWorkflow:
    """A workflow file that is served as a tool: its content, the tool, and values that show whether the file or a module has changed."""

    plan: WorkflowPlan
    tool: WorkflowTool
    signature: Signature
    generation: int
    """Number of reloads of the user's Python modules before this file was loaded. If it is smaller than the current number
    (`OwnModules.generation`), the imported objects may be outdated."""

    @property
    def file(self) -> WorkflowFile:
        """The parsed content of the workflow file."""
        return self.plan.file


class WorkflowSource:
    """A source of tools: serves each workflow file in the given folders as a tool. The tools are sorted by file name."""

    def __init__(
        self,
        paths: Sequence[Path | str],
        *,
        toolbox: ToolBox,
        base_dir: Path,
        forms: Forms | None = None,
        rules: FunctionRules | None = None,
    ) -> None:
        """Create a source for workflow files in `paths`, which are folders and files. No file is read before the context is entered.

        Relative `paths`, and Python modules that files name, are resolved in `base_dir`. `toolbox` finds the tools that workflows call. If
        it is also a `ToolGuards`, calls of Python functions are subject to policy, approval and time limit like calls of tools. `forms`
        puts questions on a list that a person answers at the command line, for clients that cannot show them. `rules` decide which Python
        functions the files may run.
        """
        self._paths = [base_dir / path for path in paths]
        self._toolbox = toolbox
        self._forms = forms
        self._guards = toolbox if isinstance(toolbox, ToolGuards) else None
        self._rules = rules
        self._base_dir = base_dir
        self.loaded: dict[Path, LoadedWorkflow] = {}
        """Path of each workflow file that is served → the loaded workflow."""
        self._unloaded: dict[Path, WorkflowPlan] = {}
        """Incomplete plans of files whose Python objects cannot be imported, by file path. They have the names of the needed tools."""
        self._previous: dict[Path, LoadedWorkflow] = {}
        self._failed: list[Path] = []
        self._signatures: dict[Path, Signature] = {}
        self._refusal: Callable[[RunEntry], str | None] = lambda entry: None
        self.is_waiting = False
        """Whether some workflow is not served yet, because a person must first accept the Python objects that its file names."""
        self.modules: set[str] = set()
        """The Python functions and workflows that the files name, as `module:name`."""
        self.problems: list[SourceProblem] = []
        """Mistakes in the workflow files, which `moongate doctor` shows. Empty if all files could be loaded."""

    def judge_files(self, refusal: Callable[[RunEntry], str | None]) -> None:
        """Set the function that decides whether the Python objects of a workflow file may be imported.

        A file for which `refusal` returns a reason is not imported and not served. `refusal` may block. Call this method before the context
        is entered.
        """
        self._refusal = refusal

    @property
    def id(self) -> str:
        """The name of this source of tools, always `workflow`."""
        return "workflow"

    def go_on_from(self, previous: WorkflowSource) -> None:
        """Reuse the tools of an earlier source for unchanged files, and for files that can no longer be loaded.

        Call this method before the context is entered.
        """
        self._previous = dict(previous.loaded)

    async def __aenter__(self) -> WorkflowSource:
        """Read and check the new and changed workflow files, import the Python objects that they name, and create their tools."""
        found: dict[str, tuple[Path, WorkflowFile]] = {}
        paths = await anyio.to_thread.run_sync(partial(find_files, self._paths))
        for path in paths:
            self._signatures[path] = await anyio.to_thread.run_sync(signature_of, path)
            try:
                same = self._unchanged(path)
                file = same.file if same is not None else await anyio.to_thread.run_sync(partial(load_workflow, path))
            except WorkflowInvalid as error:
                self._fail(path, str(error))
                continue
            first = found.setdefault(file.name, (path, file))[0]
            if first != path:
                self._fail(path, f"{path}: workflow {file.name!r} is already defined in {first}; rename one.")
        self._refuse_circles(found)
        for path, file in found.values():
            await self._load(path, file)
        for path in self._failed:
            kept = self._previous[path]
            if kept.file.name not in {loaded.file.name for loaded in self.loaded.values()}:
                self.loaded[path] = kept
        self.loaded = {path: self.loaded[path] for path in paths if path in self.loaded}
        for loaded in self.loaded.values():
            self.modules |= loaded.file.python_references
        self._previous = {}
        return self

    async def _load(self, path: Path, file: WorkflowFile) -> None:
        """Add the new or reused tool of one workflow file to `loaded`, or the reason why the file cannot be loaded to `problems`."""
        if (same := self._unchanged(path)) is not None:
            self.loaded[path] = same
            return
        self.modules |= file.python_references
        entry = file.run_entry(path)
        if entry is not None and (refusal := await anyio.to_thread.run_sync(self._refusal, entry)) is not None:
            self.is_waiting = True
            self._fail(path, f"{path}: {refusal}")
            return
        try:
            plan = await WorkflowPlan.prepare(file, base_dir=self._base_dir, rules=self._rules)
        except WorkflowInvalid as error:
            self._unloaded[path] = WorkflowPlan.unloaded(file)
            self._fail(path, "\n".join(f"{path}: {line}" for line in str(error).splitlines()))
            return
        tool = WorkflowTool(plan, toolbox=self._toolbox, forms=self._forms, guards=self._guards)
        self.loaded[path] = LoadedWorkflow(plan, tool, self._signatures[path], current_generation())

    def _unchanged(self, path: Path) -> LoadedWorkflow | None:
        """Return the workflow that an earlier source loaded from this file, or `None` if it loaded none or the file has changed.

        The result is also `None` if the file names Python objects and the user's modules were reloaded since.
        """
        known = self._previous.get(path)
        if known is None or known.signature is None or known.signature != self._signatures[path]:
            return None
        return known if not known.file.python_references or known.generation == current_generation() else None

    def _fail(self, path: Path, text: str) -> None:
        """Log the reason why a file cannot be loaded, and add it to `problems`.

        The last good version of the file is still served, if there is one. Each line of `text` is one mistake, as `FILE: MISTAKE` or
        `FILE:LINE: MISTAKE`.
        """
        if path in self._previous:
            self._failed.append(path)
            text = still_served(text)
        for line in text.splitlines():
            logger.warning("workflow file problem reason=%s", line)
            where, _, message = line.partition(": ")
            self.problems.append(SourceProblem(where, message))

    async def __aexit__(self, *exc: object) -> None:
        """Do nothing: the source holds no resources."""

    async def tools(self) -> Sequence[Tool]:
        """Return the tools of the files that could be loaded, and of the last good versions of files that can no longer be loaded."""
        return [loaded.tool for loaded in self.loaded.values()]

    def needs(self) -> dict[str, list[str]]:
        """Return the names of the tools that each workflow file calls, as `source/tool`, by file path.

        Agents and other workflows are also tools. Files whose Python functions cannot be imported are included.
        """
        plans = {path: loaded.plan for path, loaded in self.loaded.items()} | self._unloaded
        return {str(path): list(dict.fromkeys(plan.patterns.values())) for path, plan in plans.items()}

    def subscribe(self, on_change: OnChange) -> None:
        """Do nothing: the list of tools never changes, because `app` creates a new source when files change."""

    def _refuse_circles(self, found: dict[str, tuple[Path, WorkflowFile]]) -> None:
        """Remove workflows that call each other in a circle from `found`, and add them to `problems`, because each run would fail.

        `found` is the path and content of each file, by workflow name.
        """
        pairs = [(name, other) for name, (_, file) in found.items() for other in workflows_in(file)]
        circle = on_a_loop(pairs)
        for name in circle:
            path, _ = found.pop(name)
            self._fail(path, f"{path}: workflow {name!r} calls itself through {', '.join(map(repr, circle))}.")


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Return the workflow files in `paths` (folders and files), each once, sorted by file name. Subfolders are not searched."""
    files = [file for path in paths for file in _files_of(path)]
    return sorted(dict.fromkeys(files), key=lambda file: (file.name, str(file)))


def _files_of(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (item for item in path.iterdir() if item.name.endswith(SUFFIXES) and item.is_file())
    elif path.name.endswith(SUFFIXES):
        yield path
