"""Builds the graph of a workflow file for one run, and imports workflows that are written in Python. Used by `plan`.

These functions need the workflow engine. `plan` imports this module only for the first run, or when a file names a workflow in Python, so
that a gateway starts without loading the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from gateway.errors import CODE_ERRORS, ConfigError, GatewayError, ToolFailed, WorkflowInvalid
from gateway.gate.function_rules import FunctionRules
from gateway.json_types import JsonMapping, JsonValue, as_text, members_of
from gateway.tools.base import Tool
from gateway.tools.context import CallContext
from gateway.tools.function import FunctionTool, run_function
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.definition import AgentStep, AskStep, EdgeEntry, ToolStep, WorkflowFile, WorkflowStep
from gateway.workflows.edges import Case, Default
from gateway.workflows.executor import Executor
from gateway.workflows.field_types import as_selection
from gateway.workflows.functional import FunctionalWorkflow
from gateway.workflows.gated_functions import Reference, admit, gated_function, import_named
from gateway.workflows.graph import DEFAULT_MAX_ITERATIONS
from gateway.workflows.runnable import Runnable
from gateway.workflows.steps import AskAgent, AskPerson, CallFunction, CallTool
from gateway.workflows.workflow import Workflow

Functions = Mapping[str, FunctionTool[..., Any]]

Code = Workflow | FunctionalWorkflow | Callable[[], Any]
"""Objects that the key `python` of a workflow file may name: a graph, a `@workflow` function, or a function that returns one of these."""


def build_graph(file: WorkflowFile, functions: Functions, tools: Mapping[str, Tool]) -> Workflow:
    """Build the graph of a workflow file for one run.

    `functions` and `tools` are the Python functions and the tools that the executors call, by executor id. An agent or another workflow is
    also a tool.
    """
    nodes = {name: _executor(file, name, functions, tools) for name in file.steps}
    builder = WorkflowBuilder(
        start_executor=nodes[cast("str", file.start)],
        name=file.name,
        description=file.description,
        max_iterations=file.max_rounds or DEFAULT_MAX_ITERATIONS,
        output_from=as_selection(file.output_from) or [file.output_id],
        intermediate_output_from=as_selection(file.intermediate_output_from),
    )
    for edge in file.edges:
        _add_edge(builder, edge, nodes)
    return builder.build()


def _executor(file: WorkflowFile, name: str, functions: Functions, tools: Mapping[str, Tool]) -> Executor:
    step, names = file.steps[name], list(file.steps)
    if isinstance(step, AgentStep):
        return AskAgent(name, step, tools[name], names)
    if isinstance(step, ToolStep | WorkflowStep):
        return CallTool(name, step, tools[name], names)
    if isinstance(step, AskStep):
        return AskPerson(name, step, names)
    return CallFunction(name, step, functions[name], names)


def _add_edge(builder: WorkflowBuilder, edge: EdgeEntry, nodes: Mapping[str, Executor]) -> None:
    sources, targets = [nodes[name] for name in edge.sources], [nodes[name] for name in edge.targets]
    match edge.kind:
        case "fan-in":
            builder.add_fan_in_edges(sources, targets[0])
        case "fan-out":
            builder.add_fan_out_edges(sources[0], targets)
        case "switch":
            cases = [
                Case(_condition_of(case.when, case.to), nodes[case.to]) if case.when is not None else Default(nodes[case.to])
                for case in edge.switch or ()
            ]
            builder.add_switch_case_edge_group(sources[0], cases)
        case "select":
            builder.add_multi_selection_edge_group(sources[0], targets, _selection_of(edge))
        case "single":
            condition = _condition_of(edge.when, edge.target) if edge.when is not None else None
            builder.add_edge(sources[0], targets[0], condition, max_traversals=edge.max)


def _condition_of(wanted: JsonMapping, target: str) -> Callable[[Any], bool]:
    """Return the condition function of an edge to `target`, made from the edge's key `when` in the workflow file.

    A message fulfils the condition if each field in `wanted` has the given value and type (`true` is not 1). The function raises
    `ToolFailed` for a message that is not an object.
    """

    def holds(value: JsonValue) -> bool:
        if not isinstance(value, dict):
            raise ToolFailed(f"The edge to {target!r} asks for the field {next(iter(wanted))!r}, but the output is not an object.")
        fields = cast("JsonMapping", value)
        return all(name in fields and _same(fields[name], expected) for name, expected in wanted.items())

    holds.__name__ = ", ".join(f"{name}: {as_text(value)}" for name, value in wanted.items())
    return holds


def _selection_of(edge: EdgeEntry) -> Callable[[Any, list[str]], list[str]]:
    """Return the selection function of a fan-out, made from the key `select` of an edge in the workflow file.

    `select` names a field of the message, which contains the id, or a list of ids, of the executors that run next. The function raises
    `ToolFailed` for an id that is not a target of the edge.
    """

    def choose(value: JsonValue, targets: list[str]) -> list[str]:
        found = members_of(value).get(edge.select or "")
        names = [str(item) for item in (cast("list[JsonValue]", found) if isinstance(found, list) else [found])]
        unknown = [name for name in names if name not in targets]
        if unknown:
            known = ", ".join(map(repr, targets))
            raise ToolFailed(f"The field {edge.select!r} of {edge.source!r} chooses {unknown[0]!r}, but the edge leads to {known}.")
        return list(dict.fromkeys(names))

    return choose


def _same(value: JsonValue, expected: JsonValue) -> bool:
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


def admit_graph(code: Code, file: WorkflowFile, rules: FunctionRules | None) -> None:
    """Check whether the configured rules allow a workflow that is written in Python, before any of its functions runs.

    `code` is the object that the key `python` of `file` names.

    Raises:
        WorkflowInvalid: The rules forbid the object, or require an approval for a function that runs when the file is loaded.
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


async def made_by(code: Code, reference: str, call: CallContext | None = None) -> Runnable:
    """Return a workflow for one run from the Python object that a workflow file names.

    `code` is a graph (the result is this graph), a `@workflow` function (the result is a copy), or a function that returns one of these.
    `reference` is the name of `code` in the file. `call` is the tool call that runs the workflow. If it is given, `code` must first pass
    the gate (policy, approval, time limit).

    Raises:
        WorkflowInvalid: The function failed or returned another type of object, or a `@workflow` function takes no message.
    """
    make: Callable[[], Any] = partial(_itself, code) if isinstance(code, Workflow | FunctionalWorkflow) else code
    if call is not None:
        make = gated_function(Reference(reference, code), call, make)
    try:
        made = await run_function(make, [], {})
    except GatewayError:
        raise
    except CODE_ERRORS as error:  # the function is user code; one broken workflow must not stop the others
        raise WorkflowInvalid(f"python: {reference} failed: {type(error).__name__}: {error}") from error
    if isinstance(made, FunctionalWorkflow):
        return _fresh(made, reference)
    if not isinstance(made, Workflow):
        raise WorkflowInvalid(f"python: {reference} returned {type(made).__name__}; return a Workflow: WorkflowBuilder(…).build().")
    return made


async def _itself(code: Workflow | FunctionalWorkflow) -> Workflow | FunctionalWorkflow:
    return code  # this is a coroutine function because `run_function` calls an ordinary function in a worker thread


def _fresh(code: FunctionalWorkflow, reference: str) -> Runnable:
    if not code.input_types:
        raise WorkflowInvalid(f"python: {reference} takes no message, so nothing can start it; give its function one parameter.")
    return code.build()


async def import_graph(file: WorkflowFile, base_dir: Path, rules: FunctionRules | None) -> Code:
    """Import the Python object that the key `python` of a workflow file names. The folder `base_dir` is searched first.

    Raises:
        WorkflowInvalid: `rules` deny the name, or the object cannot be imported, or is neither a workflow nor a function.
    """
    reference = cast("str", file.python)
    try:
        found = await import_named(file, reference, base_dir, rules)
    except (ConfigError, WorkflowInvalid) as error:
        raise WorkflowInvalid(f"python: {error}") from error
    if isinstance(found, Workflow | FunctionalWorkflow):
        return found
    if not callable(found) or isinstance(found, type):
        raise WorkflowInvalid(f"python: {reference} is {type(found).__name__}, not a Workflow or a function that returns one.")
    return cast("Callable[[], Any]", found)
