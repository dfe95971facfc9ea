"""`WorkflowPlan`: a parsed workflow file with the imported Python objects that it names. Each call gets its graph from the plan.

A plan contains the names of the tools that the workflow needs, but not the tools. `source` creates plans when it loads files, and
`WorkflowTool` uses them for calls.
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
from gateway.workflows.definition import AgentStep, PythonStep, ToolStep, WorkflowFile, WorkflowStep
from gateway.workflows.gated_functions import admit, import_named
from gateway.workflows.step_templates import Template

if TYPE_CHECKING:  # at run time, these modules are imported only when a workflow runs, so that a gateway starts faster
    from gateway.workflows.file_graph import Code
    from gateway.workflows.runnable import Runnable
    from gateway.workflows.team import TeamPlan


@dataclass(frozen=True, slots=True)
class WorkflowPlan:
    """A parsed workflow file with the Python objects that it names, imported.

    Each call of the workflow builds a graph from the plan, unless the file names a graph in Python, which all calls share.
    """

    file: WorkflowFile
    functions: Mapping[str, FunctionTool[..., Any]] = field(default_factory=dict[str, FunctionTool[..., Any]])
    """Id of each executor that calls a Python function → this function."""
    code: Code | None = None
    """The object that the key `python` names: a graph, a `@workflow` function, or a function that returns one of these for each call.

    `None` if the file has no such key."""
    team: TeamPlan | None = None
    """The file's orchestration of agents with its imported functions, or `None` if the file has no orchestration."""
    sample: Runnable | None = None
    """A workflow from `code`, from which the input and output types of the workflow's tool are read; `None` without `code`.

    If `code` is a graph, it is this graph, which calls run; otherwise it never runs."""

    @classmethod
    async def prepare(cls, file: WorkflowFile, *, base_dir: Path, rules: FunctionRules | None = None) -> WorkflowPlan:
        """Import the Python objects that the file names, and return the plan. The folder `base_dir` is searched first for their modules.

        `rules` decide which Python functions the file may run.

        Raises:
            WorkflowInvalid: An object cannot be imported, may not run or has the wrong type; one problem per line.
        """
        if file.python is not None:
            from gateway.workflows.file_graph import admit_graph, import_graph, made_by

            code = await import_graph(file, base_dir, rules)
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
                    functions[name] = _as_function(step, await import_named(file, step.python, base_dir, rules))
                    admit(file, step.python, functions[name], rules)
                except (ConfigError, WorkflowInvalid, TypeError) as error:
                    problems.append(f"executors.{name}.python: {error}")
        if problems:
            raise WorkflowInvalid("\n".join(problems))
        return cls(file, functions)

    @classmethod
    def unloaded(cls, file: WorkflowFile) -> WorkflowPlan:
        """Return an incomplete plan for a file whose Python objects cannot be imported. The plan has only the names of the needed tools."""
        if file.team is None:
            return cls(file)
        from gateway.workflows.team import TeamPlan

        return cls(file, team=TeamPlan(file, file.team, {}))

    @property
    def patterns(self) -> dict[str, str]:
        """Id of each executor that needs a tool → the tool's name as `source/tool`. Agents and other workflows are also tools."""
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
        """Whether all calls share one graph object, because the file names a graph in Python. These calls must run one after the other."""
        if self.code is None:
            return False
        from gateway.workflows.workflow import Workflow

        return isinstance(self.code, Workflow)

    def prompt(self, arguments: JsonMapping) -> str:
        """Return the message with which an orchestration begins: the file's `prompt` filled in with the tool call's arguments.

        Without a `prompt`, the message is the arguments as text.
        """
        if self.file.prompt is not None:
            return Template.parse(self.file.prompt).text(arguments)

        from gateway.workflows.steps import incoming_text

        return incoming_text([dict(arguments)])

    async def build(self, tools: Mapping[str, Tool], call: CallContext) -> Runnable:
        """Build a workflow for one run that serves the tool call `call`. `tools` are the tools that `patterns` names, by executor id.

        Raises:
            WorkflowInvalid: The Python function that should return the workflow failed, or returned another object.
            ToolFailed: A tool that is used as an agent has no text argument. Or: policy refused the call of the function, no person
                approved it, or it exceeded its time limit.
        """
        if self.code is not None:
            from gateway.workflows.file_graph import made_by

            return await made_by(self.code, self.file.python or "", call)
        if self.team is not None:
            return self.team.build(tools, call)
        from gateway.workflows.file_graph import build_graph

        return build_graph(self.file, self.functions, tools)


def _as_function(step: PythonStep, found: object) -> FunctionTool[..., Any]:
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
