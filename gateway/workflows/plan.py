"""`WorkflowPlan`: a workflow file with its Python parts imported, ready to be built once per call.

Knows which tools a file needs, but not where tools come from. Made by `source`, used by `WorkflowTool`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gateway.config.suggest import did_you_mean
from gateway.errors import ConfigError, WorkflowInvalid
from gateway.json_types import JsonMapping
from gateway.tools.base import Tool
from gateway.tools.context import CallContext
from gateway.tools.function import FunctionTool
from gateway.tools.function_rules import FunctionRules
from gateway.tools.functions_source import import_object
from gateway.workflows.definition import AgentStep, PythonStep, ToolStep, WorkflowFile, WorkflowStep
from gateway.workflows.functions import admit
from gateway.workflows.templates import Template

if TYPE_CHECKING:  # the engine is imported when something needs it (`graphs`)
    from gateway.workflows.graphs import Code
    from gateway.workflows.runnable import Runnable
    from gateway.workflows.team import TeamPlan


@dataclass(frozen=True, slots=True)
class WorkflowPlan:
    """What a file means. Shared by concurrent calls."""

    file: WorkflowFile
    functions: Mapping[str, FunctionTool[..., Any]] = field(default_factory=dict[str, FunctionTool[..., Any]])
    """Of Python executors, by id."""
    code: Code | None = None
    """The workflow in code: one graph, a function with steps, or a function that makes one of these per call."""
    team: TeamPlan | None = None
    """The orchestration."""
    sample: Runnable | None = None
    """The workflow in code, to see what it takes and gives; never run where each call makes its own."""

    @classmethod
    async def prepare(cls, file: WorkflowFile, *, base_dir: Path, rules: FunctionRules | None = None) -> WorkflowPlan:
        """Import what the file names, looking in `base_dir` first. `rules` say which functions it may run.

        Raises:
            WorkflowInvalid: Something cannot be imported, may not run or is not what it should be; one line each.
        """
        if file.python is not None:
            from gateway.workflows.graphs import admit_graph, import_graph, made_by

            code = await import_graph(file.python, base_dir)
            admit_graph(code, file, rules)
            return cls(file, code=code, sample=await made_by(code, file.python))
        if file.team is not None:
            from gateway.workflows.team import TeamPlan

            return cls(file, team=await TeamPlan.prepare(file, file.team, base_dir=base_dir, rules=rules))
        functions: dict[str, FunctionTool[..., Any]] = {}
        problems: list[str] = []
        for name, step in file.steps.items():
            if isinstance(step, PythonStep):
                try:
                    functions[name] = await _import_function(step, base_dir)
                    admit(file, step.python, functions[name], rules)
                except (ConfigError, WorkflowInvalid, TypeError) as error:
                    problems.append(f"executors.{name}.python: {error}")
        if problems:
            raise WorkflowInvalid("\n".join(problems))
        return cls(file, functions)

    @classmethod
    def unloaded(cls, file: WorkflowFile) -> WorkflowPlan:
        """The plan of a file whose functions cannot be imported, for what else it names."""
        return cls(file, team=TeamPlan(file, file.team, {}) if file.team is not None else None)

    @property
    def patterns(self) -> dict[str, str]:
        """The tool each executor needs, as `source/tool`, by executor id."""
        needed: dict[str, str] = dict(self.team.patterns) if self.team is not None else {}
        for name, step in self.file.steps.items():
            if isinstance(step, AgentStep):
                needed[name] = f"agent/{step.agent}"
            elif isinstance(step, ToolStep):
                needed[name] = step.tool
            elif isinstance(step, WorkflowStep):
                needed[name] = f"workflow/{step.workflow}"
        return needed

    @property
    def is_one_graph(self) -> bool:
        """Whether all calls share one graph in code, which can run once at a time."""
        if self.code is None:
            return False
        from gateway.workflows.workflow import Workflow

        return isinstance(self.code, Workflow)

    def prompt(self, arguments: JsonMapping) -> str:
        """What an orchestration is asked."""
        if self.file.prompt is not None:
            return Template.parse(self.file.prompt).text(arguments)

        from gateway.workflows.steps import incoming_text

        return incoming_text([dict(arguments)])

    async def build(self, tools: Mapping[str, Tool], call: CallContext) -> Runnable:
        """A workflow for one run, which serves `call`; `tools` by executor id, as `patterns` asks.

        Raises:
            WorkflowInvalid: A function that should make the workflow in code did not.
            PolicyDenied: Policy does not let that function run.
            ToolFailed: An agent takes no text, or the function was refused.
        """
        if self.code is not None:
            from gateway.workflows.graphs import made_by

            return await made_by(self.code, self.file.python or "", call)
        if self.team is not None:
            return self.team.build(tools, call)
        from gateway.workflows.graphs import build_graph

        return build_graph(self.file, self.functions, tools)


async def _import_function(step: PythonStep, base_dir: Path) -> FunctionTool[..., Any]:
    found = await import_object(step.python, base_dir=base_dir)
    if isinstance(found, FunctionTool):
        function = cast("FunctionTool[..., Any]", found)
    elif callable(found):
        function = FunctionTool[..., Any](found, name=step.python.rpartition(":")[2])
    else:
        raise WorkflowInvalid(f"{step.python} is {type(found).__name__}, not a function.")
    schema = function.definition.input_schema
    known, required = list(schema.get("properties", {})), schema.get("required", [])
    if step.arguments is None:
        if len(known) > 1:
            raise WorkflowInvalid(f"{step.python} has several parameters ({', '.join(known)}); write `arguments`.")
        return function
    unknown = [name for name in step.arguments if name not in known]
    problems = [f"{step.python} has no parameter {name!r}. {did_you_mean(name, known)}".rstrip() for name in unknown]
    missing = [name for name in required if name not in step.arguments]
    if missing:
        problems.append(f"{step.python} also needs {', '.join(map(repr, missing))} in `arguments`.")
    if problems:
        raise WorkflowInvalid(" ".join(problems))
    return function
