"""`WorkflowPlan`: a workflow file with its Python parts imported, ready to be built once per call.

Knows which tools a file needs, but not where tools come from. Made by `source`, used by `WorkflowTool`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from gateway.config.suggest import did_you_mean
from gateway.errors import ConfigError, GatewayError, ToolFailed, WorkflowInvalid
from gateway.json_types import JsonMapping, JsonValue, as_text
from gateway.tools.base import Tool
from gateway.tools.context import CallContext
from gateway.tools.function import FunctionTool, run_function
from gateway.tools.function_rules import FunctionRules
from gateway.tools.functions_source import import_object
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.definition import AgentStep, AskStep, EdgeEntry, PythonStep, ToolStep, WorkflowFile, WorkflowStep
from gateway.workflows.edges import Case, Default
from gateway.workflows.executor import Executor
from gateway.workflows.functional import FunctionalWorkflow
from gateway.workflows.functions import Reference, admit, gated_function
from gateway.workflows.runnable import Runnable
from gateway.workflows.runner import DEFAULT_MAX_ITERATIONS
from gateway.workflows.shapes import as_selection
from gateway.workflows.steps import AskAgent, AskPerson, CallFunction, CallTool, incoming_text
from gateway.workflows.team import TeamPlan
from gateway.workflows.templates import Template
from gateway.workflows.workflow import Workflow

Code = Workflow | FunctionalWorkflow | Callable[[], Any]
"""What `python:` may name."""


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
            code = await _import_graph(file.python, base_dir)
            _admit_graph(code, file, rules)
            return cls(file, code=code, sample=await _made(code, file.python))
        if file.team is not None:
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

    def prompt(self, arguments: JsonMapping) -> str:
        """What an orchestration is asked."""
        if self.file.prompt is not None:
            return Template.parse(self.file.prompt).text(arguments)
        return incoming_text([dict(arguments)])

    async def build(self, tools: Mapping[str, Tool], call: CallContext) -> Runnable:
        """A workflow for one run, which serves `call`; `tools` by executor id, as `patterns` asks.

        Raises:
            WorkflowInvalid: A function that should make the workflow in code did not.
            PolicyDenied: Policy does not let that function run.
            ToolFailed: An agent takes no text, or the function was refused.
        """
        if self.code is not None:
            return await _made(self.code, self.file.python or "", call)
        if self.team is not None:
            return self.team.build(tools, call)
        nodes = {name: self._executor(name, tools) for name in self.file.steps}
        builder = WorkflowBuilder(
            start_executor=nodes[cast("str", self.file.start)],
            name=self.file.name,
            description=self.file.description,
            max_iterations=self.file.max_rounds or DEFAULT_MAX_ITERATIONS,
            output_from=as_selection(self.file.output_from) or [self.file.output_id],
            intermediate_output_from=as_selection(self.file.intermediate_output_from),
        )
        for edge in self.file.edges:
            _add_edge(builder, edge, nodes)
        return builder.build()

    def _executor(self, name: str, tools: Mapping[str, Tool]) -> Executor:
        step, names = self.file.steps[name], list(self.file.steps)
        if isinstance(step, AgentStep):
            return AskAgent(name, step, tools[name], names)
        if isinstance(step, ToolStep | WorkflowStep):
            return CallTool(name, step, tools[name], names)
        if isinstance(step, AskStep):
            return AskPerson(name, step, names)
        return CallFunction(name, step, self.functions[name], names)


def _add_edge(builder: WorkflowBuilder, edge: EdgeEntry, nodes: Mapping[str, Executor]) -> None:
    sources, targets = [nodes[name] for name in edge.sources], [nodes[name] for name in edge.targets]
    match edge.kind:
        case "fan-in":
            builder.add_fan_in_edges(sources, targets[0])
        case "fan-out":
            builder.add_fan_out_edges(sources[0], targets)
        case "switch":
            cases = [
                Case(condition_of(case.when, case.to), nodes[case.to]) if case.when is not None else Default(nodes[case.to])
                for case in edge.switch or ()
            ]
            builder.add_switch_case_edge_group(sources[0], cases)
        case "select":
            builder.add_multi_selection_edge_group(sources[0], targets, selection_of(edge))
        case "single":
            condition = condition_of(edge.when, edge.target) if edge.when is not None else None
            builder.add_edge(sources[0], targets[0], condition, max_traversals=edge.max)


def condition_of(wanted: JsonMapping, target: str) -> Callable[[Any], bool]:
    """A `when` as a condition: every field equal, types included (`true` is not 1)."""

    def holds(value: JsonValue) -> bool:
        if not isinstance(value, dict):
            raise ToolFailed(f"The edge to {target!r} asks for the field {next(iter(wanted))!r}, but the output is no object.")
        fields = cast("JsonMapping", value)
        return all(name in fields and _same(fields[name], expected) for name, expected in wanted.items())

    holds.__name__ = ", ".join(f"{name}: {as_text(value)}" for name, value in wanted.items())
    return holds


def selection_of(edge: EdgeEntry) -> Callable[[Any, list[str]], list[str]]:
    """A `select` as a selection: the field's one id, or list of ids."""

    def choose(value: JsonValue, targets: list[str]) -> list[str]:
        found = cast("JsonMapping", value).get(edge.select or "") if isinstance(value, dict) else None
        names = [str(item) for item in (cast("list[JsonValue]", found) if isinstance(found, list) else [found])]
        unknown = [name for name in names if name not in targets]
        if unknown:
            known = ", ".join(map(repr, targets))
            raise ToolFailed(f"The field {edge.select!r} of {edge.source!r} chooses {unknown[0]!r}, and the edge leads to {known}.")
        return list(dict.fromkeys(names))

    return choose


def _same(value: JsonValue, expected: JsonValue) -> bool:
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


def _admit_graph(code: Code, file: WorkflowFile, rules: FunctionRules | None) -> None:
    """Judge a workflow in code before any function of it runs.

    Raises:
        WorkflowInvalid: It may not run.
    """
    reference = cast("str", file.python)
    try:
        admit(file, reference, code, rules)
    except WorkflowInvalid as error:
        raise WorkflowInvalid(f"python: {error}") from None
    is_made = not isinstance(code, Workflow | FunctionalWorkflow)
    if is_made and rules is not None and rules.needs_approval(f"workflow/{file.name}", reference, code):
        raise WorkflowInvalid(
            f"python: {reference} runs when the file is loaded, and nobody can approve it then; take it out of `approval`, "
            "or name the workflow that it makes."
        )


async def _made(code: Code, reference: str, call: CallContext | None = None) -> Runnable:
    """The graph itself, a function with steps for one run, or what the function makes: for `call` behind the gate."""
    if isinstance(code, Workflow):
        return code
    if isinstance(code, FunctionalWorkflow):
        return _fresh(code, reference)
    make = code if call is None else gated_function(Reference(reference, code), call)
    try:
        made = await run_function(make, [], {})
    except GatewayError:
        raise
    except Exception as error:  # the boundary to people's code: one broken workflow must not stop the others
        raise WorkflowInvalid(f"python: {reference} failed: {type(error).__name__}: {error}") from error
    if isinstance(made, FunctionalWorkflow):
        return _fresh(made, reference)
    if not isinstance(made, Workflow):
        raise WorkflowInvalid(f"python: {reference} returned {type(made).__name__}; return a Workflow: WorkflowBuilder(…).build().")
    return made


def _fresh(code: FunctionalWorkflow, reference: str) -> Runnable:
    if not code.input_types:
        raise WorkflowInvalid(f"python: {reference} takes no message, so nothing can start it; give its function one parameter.")
    return code.fresh()


async def _import_graph(reference: str, base_dir: Path) -> Code:
    try:
        found = await import_object(reference, base_dir=base_dir)
    except ConfigError as error:
        raise WorkflowInvalid(f"python: {error}") from error
    if isinstance(found, Workflow | FunctionalWorkflow):
        return found
    if not callable(found) or isinstance(found, type):
        raise WorkflowInvalid(f"python: {reference} is {type(found).__name__}, not a Workflow or a function that returns one.")
    return cast("Callable[[], Any]", found)


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
    if unknown:
        raise WorkflowInvalid(f"{step.python} has no parameter {unknown[0]!r}. {did_you_mean(unknown[0], known)}".rstrip())
    missing = [name for name in required if name not in step.arguments]
    if missing:
        raise WorkflowInvalid(f"{step.python} also needs {', '.join(map(repr, missing))} in `arguments`.")
    return function
