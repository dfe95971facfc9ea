"""Checks of the content of a parsed workflow file: names exist, templates can be resolved, loops can end. Used by `loader`.

The functions depend only on the `WorkflowFile`. They report each problem with the path of its key, such as `edges[2].to`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from gateway.config.problems import Problem
from gateway.config.suggest import did_you_mean
from gateway.errors import WorkflowInvalid
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.schema_check import SchemaCheck, measure
from gateway.workflows.definition import NAME_PATTERN, TEAM_KEYS, AgentStep, AskStep, EdgeEntry, Step, WorkflowFile
from gateway.workflows.reachability import Pair, on_a_loop, reachable, repeated, runs_before
from gateway.workflows.step_templates import Reference, Template, texts
from gateway.workflows.team_rules import check_team, selected_names

_GRAPH_KEYS = ("executors", "start", "edges", "output")
_SELECTIONS = ("output-from", "intermediate-output-from")
_ANSWER_KEYS = frozenset({"type", "enum", "const", "title", "description", "default", "minLength", "maxLength", "pattern", "format",
                          "minimum", "maximum"})  # fmt: skip
"""JSON Schema keys that are allowed for a field of a form for a person. MCP allows only fields with single values in forms."""


def check_workflow(file: WorkflowFile) -> list[Problem]:
    """Check a parsed workflow file and return its problems; an empty list if the graph can be built, given its tools and functions.

    Outputs, conditions and references are checked only if the edges of the graph have no problems.
    """
    problems = [*_check_names("input", file.input), *_check_schemas("input", file.input)]
    written = {field.alias or name for name, field in WorkflowFile.model_fields.items() if name in file.model_fields_set}
    if file.python is not None:
        extra = [key for key in (*_GRAPH_KEYS, *TEAM_KEYS, *_SELECTIONS, "prompt", "max-rounds") if key in written]
        return [*problems, *(Problem(key, "cannot be combined with `python`: the graph is in code") for key in extra)]
    if file.team is not None:
        problems += check_team(file, file.team, [key for key in (*_GRAPH_KEYS, *TEAM_KEYS, "max-rounds") if key in written])
        problems += check_selections(file)
        return [*problems, *references_in("prompt", file.prompt, partial(check_input_reference, file))]
    if "prompt" in written:
        problems.append(Problem("prompt", "is for orchestrations; give the executors of a graph prompts of their own"))
    if not file.steps:
        kinds = ", ".join(f"`{key}`" for key in ("python", *TEAM_KEYS))
        return [*problems, Problem("executors", f"is required: a workflow has at least one executor (or one of {kinds})")]
    problems += _check_names("executors", file.steps)
    clashes = [name for name in file.steps if name in file.input]
    problems += [Problem(f"executors.{name}", "an input has the same name, so a template could mean either") for name in clashes]
    for name, step in file.steps.items():
        problems += _check_schemas(f"executors.{name}.output", step.output or {})
        if isinstance(step, AskStep):
            problems += _check_form(f"executors.{name}.output", step.output or {})
    shape = [*_check_edges(file), *_check_shape(file)]
    problems += shape
    if not shape:
        problems += _check_output(file)
        problems += [problem for index, edge in enumerate(file.edges) for problem in _check_conditions(file, index, edge)]
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
    """Return the problems of the file's graph: repeated edges, unreachable executors, endless loops.

    If `start` is missing or a key names an unknown executor, only these problems are returned.
    """
    problems: list[Problem] = []
    if file.start is None:
        return [Problem("start", "is required: the executor that runs first")]
    for path, name in _names_in_graph(file):
        if name not in file.steps:
            problems.append(Problem(path, f"unknown executor {name!r}. {did_you_mean(name, file.steps)}".rstrip()))
    if problems:
        return problems
    pairs = _pairs(file.edges)
    owners = [index for index, edge in enumerate(file.edges) for _ in edge.pairs]
    for index in repeated(pairs):
        source, target = pairs[index]
        problems += [Problem(f"edges[{owners[index]}]", f"there already is an edge from {source!r} to {target!r}")]
    lost = f"cannot be reached from `start: {file.start}`; add an edge to it or remove it"
    reached = reachable(file.start, pairs)
    problems += [Problem(f"executors.{name}", lost) for name in file.steps if name not in reached]
    endless = on_a_loop(_pairs([edge for edge in file.edges if edge.is_always_taken]))
    if endless:
        loop = ", ".join(map(repr, endless))
        problems.append(Problem("edges", f"the loop of {loop} would never end: give one of its edges `when`, `max`, `switch` or `select`"))
    return problems


def _names_in_graph(file: WorkflowFile) -> Iterator[tuple[str, str]]:
    yield "start", file.start or ""
    if file.output is not None:
        yield "output", file.output
    yield from selected_names(file)
    for index, edge in enumerate(file.edges):
        for key, names in (("from", edge.sources), ("to", edge.targets)):
            for number, name in enumerate(names):
                yield f"edges[{index}].{key}" + (f"[{number}]" if len(names) > 1 else ""), name
        for number, case in enumerate(edge.switch or ()):
            yield f"edges[{index}].switch[{number}].to", case.to


def check_selections(file: WorkflowFile) -> Iterator[Problem]:
    """Yield the problems of the keys `output`, `output-from` and `intermediate-output-from`, which select the workflow's outputs."""
    outputs, others = file.output_from, file.intermediate_output_from
    if outputs == "all_other":
        yield Problem("output-from", "must be a list of names, or `all`")
    if file.output is not None and outputs is not None:
        yield Problem("output-from", "cannot be combined with `output`: either one executor's last output is the result, or all of some")
    if isinstance(outputs, tuple) and not outputs:
        yield Problem("output-from", "is empty, so the result would be empty; leave it out, or name an executor")
    if isinstance(outputs, tuple) and isinstance(others, tuple):
        for number, name in enumerate(others):
            if name in outputs:
                text = f"{name!r} is in `output-from` already; an output is either final or intermediate"
                yield Problem(f"intermediate-output-from[{number}]", text)


def _check_edges(file: WorkflowFile) -> Iterator[Problem]:
    """Yield the problems of edges with missing keys, or with keys that cannot be combined."""
    for index, edge in enumerate(file.edges):
        path = f"edges[{index}]"
        if edge.switch is not None:
            if edge.targets or edge.select is not None:
                key = "to" if edge.targets else "select"
                yield Problem(f"{path}.{key}", "cannot be combined with `switch`, whose cases have a `to` each")
            open_cases = [number for number, case in enumerate(edge.switch) if case.when is None]
            if open_cases != [len(edge.switch) - 1]:
                yield Problem(f"{path}.switch", "needs a last case without `when`, and only that one: what no other case takes")
        elif not edge.targets:
            yield Problem(path, "needs `to`, the executor that runs next (or `switch`)")
        elif edge.select is not None and len(edge.targets) < 2:
            yield Problem(f"{path}.select", "chooses among several; give `to` a list")
        if edge.kind != "single":
            for key, value in (("when", edge.when), ("max", edge.max)):
                if value is not None:
                    yield Problem(f"{path}.{key}", f"is for an edge from one executor to one, and this is a {edge.kind}")
        if len(edge.sources) > 1 and (edge.kind != "fan-in" or len(edge.targets) > 1):
            yield Problem(f"{path}.from", "several sources lead to one executor; write an edge for each target")


def _pairs(edges: list[EdgeEntry]) -> list[Pair]:
    return [pair for edge in edges for pair in edge.pairs]


def _check_output(file: WorkflowFile) -> Iterator[Problem]:
    yield from check_selections(file)
    if file.output is None and file.output_from is None and len(file.last_ids) != 1:
        ends = ", ".join(file.last_ids) or "none"
        yield Problem("output", f"is required: name the executor whose output is the result (without an outgoing edge: {ends})")


def _check_conditions(file: WorkflowFile, index: int, edge: EdgeEntry) -> Iterator[Problem]:
    yield from _check_when(file, f"edges[{index}].when", edge.source, edge.when or {})
    for number, case in enumerate(edge.switch or ()):
        yield from _check_when(file, f"edges[{index}].switch[{number}].when", edge.source, case.when or {})
    if edge.select is not None:
        yield from _check_field(file, f"edges[{index}].select", edge.source, edge.select)


def _check_when(file: WorkflowFile, path: str, source: str, when: JsonObject) -> Iterator[Problem]:
    for field, value in when.items():
        here = f"{path}.{field}"
        problems = list(_check_field(file, here, source, field))
        yield from problems
        fields = file.steps[source].output
        if isinstance(value, dict | list):
            yield Problem(here, "must be one value (text, a number, true, false or null)")
        elif not problems and fields is not None:
            mismatch = SchemaCheck(fields[field]).find(value, measure(value), root=field)
            if mismatch is not None:
                yield Problem(here, f"can never be true: {mismatch}")


def _check_field(file: WorkflowFile, path: str, source: str, field: str) -> Iterator[Problem]:
    step = file.steps[source]
    if step.output is None:
        if isinstance(step, AgentStep | AskStep):
            what = "agent" if isinstance(step, AgentStep) else "the person asked by"
            yield Problem(path, f"{what} {source!r} answers in text; give it `output` with a field {field!r}")
    elif field not in step.output:
        yield Problem(path, f"{source!r} has no output field {field!r}. {did_you_mean(field, step.output)}".rstrip())


def _check_form(path: str, fields: dict[str, JsonObject]) -> Iterator[Problem]:
    """Yield the problems of the form in which an `ask` executor asks a person. Each field must be a single value, not a list or object."""
    for name, schema in fields.items():
        kind = schema.get("type", "string" if "enum" in schema else None)
        extra = [key for key in schema if key not in _ANSWER_KEYS]
        if kind not in ("string", "number", "integer", "boolean") or extra:
            what = f"`{extra[0]}`" if extra else f"type {kind!r}"
            yield Problem(f"{path}.{name}", f"cannot be a field of a form ({what}): use text, a number, true or false, or `enum` of texts")


def _check_references(file: WorkflowFile) -> Iterator[Problem]:
    pairs = _pairs(file.edges)
    for name, step in file.steps.items():
        for key, value in _templates(step):
            yield from references_in(f"executors.{name}.{key}", value, partial(_check_reference, file, name, pairs))


def references_in(path: str, value: JsonValue, judge: Callable[[Reference], str | None]) -> Iterator[Problem]:
    """Yield the problems of the `{{…}}` references in the strings of the JSON value at `path` in a workflow file.

    `judge` returns the problem of one reference, or `None`.
    """
    for inner, text in texts(value):
        here = path + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in inner)
        try:
            found = Template.parse(text).references
        except WorkflowInvalid as error:
            yield Problem(here, str(error))
            continue
        yield from (Problem(here, problem) for problem in map(judge, found) if problem)


def _templates(step: Step) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(step, AgentStep):
        yield "prompt", step.prompt
    elif isinstance(step, AskStep):
        yield "ask", step.ask
    else:
        yield "arguments", step.arguments


def check_input_reference(file: WorkflowFile, reference: Reference) -> str | None:
    """Check a `{{…}}` reference that does not name an executor. Return its problem, or `None` if the input and its field exist."""
    name, path = reference.name, reference.path
    if name in file.input:
        fields = cast("JsonObject", file.input[name].get("properties") or {})
        if path and fields and path[0] not in fields:
            return f"{reference}: input {name!r} has no field {path[0]!r}. {did_you_mean(path[0], fields)}".rstrip()
        return None
    known = [*file.input, *file.steps]
    hint = did_you_mean(name, known) or (f"Known: {', '.join(known)}." if known else "The workflow has no `input`.")
    return f"{reference}: unknown input{' or executor' if file.steps else ''} {name!r}. {hint}"


def _check_reference(file: WorkflowFile, user: str, pairs: list[Pair], reference: Reference) -> str | None:
    name, path = reference.name, reference.path
    if name in file.input or name not in file.steps:
        return check_input_reference(file, reference)
    if not runs_before(name, user, pairs):
        return f"{reference}: {name!r} never runs before {user!r}; no edges lead from it to here"
    step = file.steps[name]
    if path and step.output is not None and path[0] not in step.output:
        return f"{reference}: {name!r} has no output field {path[0]!r}. {did_you_mean(path[0], step.output)}".rstrip()
    if path and step.output is None and isinstance(step, AgentStep | AskStep):
        return f"{reference}: {name!r} gives text; give it `output` with a field {path[0]!r}"
    return None
