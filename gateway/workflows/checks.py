"""What a workflow file may say: every name known, every template resolvable, every loop bounded.

Pure judgement over a `WorkflowFile` of the right shape; reports all mistakes, each with the path of its key. Only
`loader` calls it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from gateway.config.problems import Problem
from gateway.config.suggest import did_you_mean
from gateway.errors import WorkflowInvalid
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.checking import SchemaCheck, measure
from gateway.workflows.definition import NAME_PATTERN, AgentStep, EdgeEntry, Step, WorkflowFile
from gateway.workflows.graph import Pair, on_a_loop, reachable, repeated, runs_before
from gateway.workflows.templates import Reference, Template, texts

_GRAPH_KEYS = ("executors", "start", "edges", "output")


def check_workflow(file: WorkflowFile) -> list[Problem]:
    """All mistakes; an empty list means that the file can be built."""
    problems = [*_check_names("input", file.input), *_check_schemas("input", file.input)]
    if file.python is not None:
        extra = [key for key in _GRAPH_KEYS if key in file.model_fields_set]
        return [*problems, *(Problem(key, "cannot stand beside `python`: the graph is in code") for key in extra)]
    if not file.steps:
        return [*problems, Problem("executors", "is required: a workflow has at least one executor (or `python`)")]
    problems += _check_names("executors", file.steps)
    clashes = [name for name in file.steps if name in file.input]
    problems += [Problem(f"executors.{name}", "an input has the same name, so a template could mean either") for name in clashes]
    for name, step in file.steps.items():
        problems += _check_schemas(f"executors.{name}.output", step.output or {})
    shape = _check_shape(file)
    problems += shape
    if not shape:
        problems += _check_output(file)
        problems += [problem for index, edge in enumerate(file.edges) for problem in _check_when(file, index, edge)]
        problems += _check_references(file)
    return problems


def _check_names(path: str, names: dict[str, JsonObject] | dict[str, Step]) -> Iterator[Problem]:
    for name in names:
        if not NAME_PATTERN.match(name):
            yield Problem(f"{path}.{name}", "is not a name: use up to 50 letters, digits, '_' and '-', not a digit first")


def _check_schemas(path: str, fields: dict[str, JsonObject]) -> Iterator[Problem]:
    for name, schema in fields.items():
        problem = SchemaCheck(schema).problem
        if problem is not None:
            yield Problem(f"{path}.{name}", problem)
        elif "default" in schema:
            mismatch = SchemaCheck(schema).find(schema["default"], measure(schema["default"]), root=name)
            if mismatch is not None:
                yield Problem(f"{path}.{name}.default", f"does not fit its own schema: {mismatch}")


def _check_shape(file: WorkflowFile) -> list[Problem]:
    """Names in `start` and `edges`, doubled edges, unreachable executors, endless loops."""
    problems: list[Problem] = []
    if file.start is None:
        return [Problem("start", "is required: the executor that runs first")]
    for path, name in _named(file):
        if name not in file.steps:
            problems.append(Problem(path, f"there is no executor {name!r}. {did_you_mean(name, file.steps)}".rstrip()))
    if problems:
        return problems
    pairs = _pairs(file.edges)
    for index in repeated(pairs):
        source, target = pairs[index]
        problems += [Problem(f"edges[{index}]", f"there already is an edge from {source!r} to {target!r}")]
    lost = f"cannot be reached from `start: {file.start}`; add an edge to it or remove it"
    reached = reachable(file.start, pairs)
    problems += [Problem(f"executors.{name}", lost) for name in file.steps if name not in reached]
    endless = on_a_loop(_pairs([edge for edge in file.edges if edge.when is None and edge.max is None]))
    if endless:
        loop = ", ".join(map(repr, endless))
        problems.append(Problem("edges", f"the loop of {loop} would never end: give one of its edges `when` or `max`"))
    return problems


def _named(file: WorkflowFile) -> Iterator[tuple[str, str]]:
    yield "start", file.start or ""
    if file.output is not None:
        yield "output", file.output
    for index, edge in enumerate(file.edges):
        yield f"edges[{index}].from", edge.source
        yield f"edges[{index}].to", edge.target


def _pairs(edges: list[EdgeEntry]) -> list[Pair]:
    return [(edge.source, edge.target) for edge in edges]


def _check_output(file: WorkflowFile) -> Iterator[Problem]:
    if file.output is None and len(file.last_ids) != 1:
        ends = ", ".join(file.last_ids) or "none"
        yield Problem("output", f"is required: name the executor whose output is the result (without an outgoing edge: {ends})")


def _check_when(file: WorkflowFile, index: int, edge: EdgeEntry) -> Iterator[Problem]:
    step = file.steps[edge.source]
    for field, value in (edge.when or {}).items():
        path = f"edges[{index}].when.{field}"
        if isinstance(value, dict | list):
            yield Problem(path, "must be one value (text, a number, true, false or null)")
        elif step.output is None:
            if isinstance(step, AgentStep):
                yield Problem(path, f"agent {edge.source!r} answers in text; give it `output` with a field {field!r}")
        elif field not in step.output:
            yield Problem(path, f"{edge.source!r} has no output field {field!r}. {did_you_mean(field, step.output)}".rstrip())
        else:
            mismatch = SchemaCheck(step.output[field]).find(value, measure(value), root=field)
            if mismatch is not None:
                yield Problem(path, f"can never be true: {mismatch}")


def _check_references(file: WorkflowFile) -> Iterator[Problem]:
    pairs = _pairs(file.edges)
    for name, step in file.steps.items():
        for key, value in _templates(step):
            for inner, text in texts(value):
                path = f"executors.{name}.{key}" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in inner)
                try:
                    found = Template.parse(text).references
                except WorkflowInvalid as error:
                    yield Problem(path, str(error))
                    continue
                problems = [_check_reference(file, name, reference, pairs) for reference in found]
                yield from (Problem(path, problem) for problem in problems if problem)


def _templates(step: Step) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(step, AgentStep):
        yield "prompt", step.prompt
    else:
        yield "arguments", step.arguments


def _check_reference(file: WorkflowFile, user: str, reference: Reference, pairs: list[Pair]) -> str | None:
    name, path = reference.name, reference.path
    if name in file.input:
        fields = cast("JsonObject", file.input[name].get("properties") or {})
        if path and fields and path[0] not in fields:
            return f"{reference}: input {name!r} has no field {path[0]!r}. {did_you_mean(path[0], fields)}".rstrip()
        return None
    if name not in file.steps:
        known = [*file.input, *file.steps]
        hint = did_you_mean(name, known) or f"Known: {', '.join(known)}."
        return f"{reference}: there is no input or executor {name!r}. {hint}"
    if not runs_before(name, user, pairs):
        return f"{reference}: {name!r} never runs before {user!r}; no edges lead from it to here"
    step = file.steps[name]
    if path and step.output is not None and path[0] not in step.output:
        return f"{reference}: {name!r} has no output field {path[0]!r}. {did_you_mean(path[0], step.output)}".rstrip()
    if path and step.output is None and isinstance(step, AgentStep):
        return f"{reference}: agent {name!r} answers in text; give it `output` with a field {path[0]!r}"
    return None
