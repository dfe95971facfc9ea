"""`WorkflowPlan`: a workflow file with its imported Python objects. Each call builds a new graph from the plan.

A plan says which tools a file needs, but not where they come from. `source` makes plans, `WorkflowTool` uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gateway.config.suggest import did_you_mean
from gateway.errors import ConfigError, WorkflowInvalid
from gateway.gate.function_rules import FunctionRules
from gateway.json_types import JsonMapping
from gateway.tools.base import Tool
from gateway.tools.context import CallContext
from gateway.tools.function import FunctionTool
from gateway.tools.functions_source import import_object
from gateway.workflows.definition import AgentStep, PythonStep, ToolStep, WorkflowFile, WorkflowStep
from gateway.workflows.gated_functions import admit
from gateway.workflows.step_templates import Template

if TYPE_CHECKING:  # the engine is imported only when a workflow runs (`file_graph`)
    from gateway.workflows.file_graph import Code
    from gateway.workflows.runnable import Runnable
    from gateway.workflows.team import TeamPlan


@dataclass(frozen=True, slots=True)
class WorkflowPlan:
    """A workflow file with its imported objects, from which the graph of each call is built. Concurrent calls share the plan."""

    file: WorkflowFile
    functions: Mapping[str, FunctionTool[..., Any]] = field(default_factory=dict[str, FunctionTool[..., Any]])
    """Id of each executor that calls a Python function → that function."""
    code: Code | None = None
    """The workflow written in Python: a graph, a functional workflow, or a function that makes either for each call."""
    team: TeamPlan | None = None
    """The orchestration, if the file has one."""
    sample: Runnable | None = None
    """A workflow made by `code`, for its input and output types. It does not run if each call makes a workflow of its own."""

    @classmethod
    async def prepare(cls, file: WorkflowFile, *, base_dir: Path, rules: FunctionRules | None = None) -> WorkflowPlan:
        """Import the Python objects that the file names, first from `base_dir`. `rules` say which Python functions the file may run.

        Raises:
            WorkflowInvalid: An object cannot be imported, may not run or has the wrong type; one problem per line.
        """
        if file.python is not None:
            from gateway.workflows.file_graph import admit_graph, import_graph, made_by

            code = await import_graph(file.python, base_dir)
            admit_graph(code, file, rules)
            with rules.loading(f"workflow/{file.name}", file.python) if rules is not None else nullcontext():
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
        """Return the plan of a file whose functions cannot be imported, which still says what tools the file needs."""
        return cls(file, team=TeamPlan(file, file.team, {}) if file.team is not None else None)

    @property
    def patterns(self) -> dict[str, str]:
        """The tool that each executor needs, as `source/tool`, by executor id."""
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
        """Whether all calls share one graph object written in Python, so that the calls must run one after the other."""
        if self.code is None:
            return False
        from gateway.workflows.workflow import Workflow

        return isinstance(self.code, Workflow)

    def prompt(self, arguments: JsonMapping) -> str:
        """Return the message that begins an orchestration, for these arguments."""
        if self.file.prompt is not None:
            return Template.parse(self.file.prompt).text(arguments)

        from gateway.workflows.steps import incoming_text

        return incoming_text([dict(arguments)])

    async def build(self, tools: Mapping[str, Tool], call: CallContext) -> Runnable:
        """Build a workflow for one run that serves `call`. `tools` are the tools of `patterns`, by executor id.

        Raises:
            WorkflowInvalid: The function that makes the workflow in code failed.
            PolicyDenied: Policy does not allow that function.
            ToolFailed: An agent has no text argument, or the function was refused.
        """
        if self.code is not None:
            from gateway.workflows.file_graph import made_by

            return await made_by(self.code, self.file.python or "", call)
        if self.team is not None:
            return self.team.build(tools, call)
        from gateway.workflows.file_graph import build_graph

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
