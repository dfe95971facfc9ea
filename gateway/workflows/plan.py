"""`WorkflowPlan`: a workflow file with its Python parts imported, ready to be built once per call.

Knows which tools a file needs, but not where tools come from. Made by `source`, used by `WorkflowTool`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from gateway.config.suggest import did_you_mean
from gateway.errors import ConfigError, ToolFailed, WorkflowInvalid
from gateway.json_types import JsonMapping, JsonValue
from gateway.tools.base import Tool
from gateway.tools.function import FunctionTool, run_function
from gateway.tools.functions_source import import_object
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.definition import AgentStep, EdgeEntry, PythonStep, ToolStep, WorkflowFile
from gateway.workflows.edges import EdgeCondition
from gateway.workflows.executor import Executor
from gateway.workflows.steps import AskAgent, CallFunction, CallTool
from gateway.workflows.workflow import Workflow


@dataclass(frozen=True, slots=True)
class WorkflowPlan:
    """What a file means. Shared by concurrent calls."""

    file: WorkflowFile
    functions: Mapping[str, FunctionTool[..., Any]] = field(default_factory=dict[str, FunctionTool[..., Any]])
    """Of Python executors, by id."""
    code: Workflow | Callable[[], Any] | None = None
    """The graph in code: one object, or a function that makes one per call."""

    @classmethod
    async def prepare(cls, file: WorkflowFile, *, base_dir: Path) -> WorkflowPlan:
        """Import what the file names, looking in `base_dir` first.

        Raises:
            WorkflowInvalid: Something cannot be imported or is not what it should be; one line each.
        """
        if file.python is not None:
            return cls(file, code=await _import_graph(file.python, base_dir))
        functions: dict[str, FunctionTool[..., Any]] = {}
        problems: list[str] = []
        for name, step in file.steps.items():
            if isinstance(step, PythonStep):
                try:
                    functions[name] = await _import_function(step, base_dir)
                except (ConfigError, WorkflowInvalid, TypeError) as error:
                    problems.append(f"executors.{name}.python: {error}")
        if problems:
            raise WorkflowInvalid("\n".join(problems))
        return cls(file, functions)

    @property
    def patterns(self) -> dict[str, str]:
        """The tool each executor needs, as `source/tool`, by executor id."""
        needed: dict[str, str] = {}
        for name, step in self.file.steps.items():
            if isinstance(step, AgentStep):
                needed[name] = f"agent/{step.agent}"
            elif isinstance(step, ToolStep):
                needed[name] = step.tool
        return needed

    async def build(self, tools: Mapping[str, Tool]) -> Workflow:
        """A workflow for one run; `tools` by executor id, as `patterns` asks.

        Raises:
            WorkflowInvalid: A function that should make the graph in code did not.
            ToolFailed: An agent takes no text.
        """
        if self.code is not None:
            if isinstance(self.code, Workflow):
                return self.code
            made = await run_function(self.code, [], {})
            if not isinstance(made, Workflow):
                raise WorkflowInvalid(f"{self.file.python} returned {type(made).__name__}; return a Workflow: WorkflowBuilder(…).build().")
            return made
        nodes = {name: self._executor(name, tools) for name in self.file.steps}
        builder = WorkflowBuilder(
            start_executor=nodes[cast("str", self.file.start)],
            name=self.file.name,
            description=self.file.description,
            output_from=[self.file.output_id],
        )
        for edge in self.file.edges:
            builder.add_edge(nodes[edge.source], nodes[edge.target], condition_of(edge), max_traversals=edge.max)
        return builder.build()

    def _executor(self, name: str, tools: Mapping[str, Tool]) -> Executor:
        step, names = self.file.steps[name], list(self.file.steps)
        if isinstance(step, AgentStep):
            return AskAgent(name, step, tools[name], names)
        if isinstance(step, ToolStep):
            return CallTool(name, step, tools[name], names)
        return CallFunction(name, step, self.functions[name], names)


def condition_of(edge: EdgeEntry) -> EdgeCondition | None:
    """The edge's `when` as a condition: every field equal, types included (`true` is not 1)."""
    wanted = edge.when
    if wanted is None:
        return None

    def holds(value: JsonValue) -> bool:
        if not isinstance(value, dict):
            raise ToolFailed(f"The edge to {edge.target!r} asks for the field {next(iter(wanted))!r}, but the output is no object.")
        fields = cast("JsonMapping", value)
        return all(name in fields and _same(fields[name], expected) for name, expected in wanted.items())

    return holds


def _same(value: JsonValue, expected: JsonValue) -> bool:
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


async def _import_graph(reference: str, base_dir: Path) -> Workflow | Callable[[], Any]:
    try:
        found = await import_object(reference, base_dir=base_dir)
    except ConfigError as error:
        raise WorkflowInvalid(f"python: {error}") from error
    if isinstance(found, Workflow):
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
