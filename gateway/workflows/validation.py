"""Validates workflow graphs when they are built: duplicate edges, types of messages, reachability, output selections.

`builder` uses it. The raised exception contains the text of every problem, and has the class of the first problem.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from gateway.config.suggest import did_you_mean
from gateway.errors import WorkflowInvalid
from gateway.workflows.edges import EdgeGroup, FanInEdgeGroup, InternalEdgeGroup
from gateway.workflows.executor import Executor
from gateway.workflows.reachability import reachable, repeated
from gateway.workflows.type_hints import is_compatible, name_of

logger = logging.getLogger(__name__)


class ValidationTypeEnum(StrEnum):
    """Names of the checks that can reject a workflow graph."""

    EDGE_DUPLICATION = "EDGE_DUPLICATION"
    EXECUTOR_DUPLICATION = "EXECUTOR_DUPLICATION"
    TYPE_COMPATIBILITY = "TYPE_COMPATIBILITY"
    GRAPH_CONNECTIVITY = "GRAPH_CONNECTIVITY"
    OUTPUT_VALIDATION = "OUTPUT_VALIDATION"


class WorkflowValidationError(WorkflowInvalid):
    """Raised if a workflow graph is invalid. `validation_type` is the first check that failed, `message` has every problem."""

    def __init__(self, message: str, validation_type: ValidationTypeEnum) -> None:
        super().__init__(message)
        self.message = message
        self.validation_type = validation_type


class EdgeDuplicationError(WorkflowValidationError):
    """Raised if two edges of a workflow graph have the same source and target."""

    def __init__(self, edge_id: str) -> None:
        source, _, target = edge_id.partition("->")
        text = f"There are two edges from {source!r} to {target!r} (duplicate edge {edge_id}); join their conditions."
        super().__init__(text, ValidationTypeEnum.EDGE_DUPLICATION)
        self.edge_id = edge_id


class TypeCompatibilityError(WorkflowValidationError):
    """Raised if an edge of a workflow graph can never deliver a message: its target has no handler for any type that its source sends."""

    def __init__(
        self, source_executor_id: str, target_executor_id: str, source_types: Sequence[Any], target_types: Sequence[Any]
    ) -> None:
        """Create the error for one edge. Its source sends messages of `source_types`, its target handles messages of `target_types`."""
        gives, takes = ", ".join(map(name_of, source_types)), ", ".join(map(name_of, target_types))
        where = f"Type incompatibility on the edge {source_executor_id!r} -> {target_executor_id!r}"
        text = f"{where}: {source_executor_id!r} sends {gives}, and {target_executor_id!r} takes {takes}."
        super().__init__(text, ValidationTypeEnum.TYPE_COMPATIBILITY)
        self.source_executor_id = source_executor_id
        self.target_executor_id = target_executor_id
        self.source_types = list(source_types)
        self.target_types = list(target_types)


class GraphConnectivityError(WorkflowValidationError):
    """Raised if an executor of a workflow graph cannot be reached from the start executor, or if an edge names an unknown executor."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ValidationTypeEnum.GRAPH_CONNECTIVITY)


def check_graph(start_id: str, executors: Mapping[str, Executor], groups: Sequence[EdgeGroup]) -> list[WorkflowValidationError]:
    """Check the edges of a workflow graph. Return one problem per duplicate edge, edge of incompatible types, or unreachable executor."""
    groups = [group for group in groups if not isinstance(group, InternalEdgeGroup)]
    pairs = [(edge.source_id, edge.target_id) for group in groups for edge in group.edges]
    problems: list[WorkflowValidationError] = []
    for index in repeated(pairs):
        source, target = pairs[index]
        problems.append(EdgeDuplicationError(f"{source}->{target}"))
    problems += [problem for group in groups for problem in _check_types(group, executors)]
    reached = reachable(start_id, pairs)
    problems += [
        GraphConnectivityError(f"Executor {name!r} cannot be reached from {start_id!r}: it is unreachable, so add an edge to it.")
        for name in executors
        if name not in reached
    ]
    for source, target in pairs:
        if source == target:
            logger.debug("executor has an edge to itself executor=%s", source)
    return problems


def _check_types(group: EdgeGroup, executors: Mapping[str, Executor]) -> list[WorkflowValidationError]:
    found: list[WorkflowValidationError] = []
    for edge in group.edges:
        source, target = executors[edge.source_id], executors[edge.target_id]
        sent, taken = source.output_types, target.input_types
        if not sent or not taken or target.joins:
            continue
        kinds: list[Any] = [list[kind] for kind in sent] if isinstance(group, FanInEdgeGroup) else sent
        if not any(is_compatible(one, two) or is_compatible(two, one) for one in kinds for two in taken):
            found.append(TypeCompatibilityError(source.id, target.id, kinds, taken))
    return found


def check_outputs(
    executors: Mapping[str, Executor], outputs: list[str] | None, intermediates: list[str] | None
) -> list[WorkflowValidationError]:
    """Check the selection of output executors and intermediate output executors, and return the problems.

    `None` means that the caller made no selection.
    """
    if outputs is None and intermediates is None:
        return []
    problems: list[str] = []
    if not outputs and not intermediates:
        problems.append("output_from is empty: select at least one output or intermediate executor, or leave it out to output everything.")
    for word, names in (("output_from", outputs or []), ("intermediate_output_from", intermediates or [])):
        unknown = [name for name in dict.fromkeys(names) if name not in executors]
        problems += [f"{word}: {unknown_id(name, executors)}" for name in unknown]
        problems += [f"{word} names {name!r} twice (duplicate)." for name in dict.fromkeys(names) if names.count(name) > 1]
    both = [name for name in dict.fromkeys(outputs or []) if name in (intermediates or [])]
    problems += [f"{name!r} is selected as both output and intermediate; name it in one of the two." for name in both]
    return [WorkflowValidationError(text, ValidationTypeEnum.OUTPUT_VALIDATION) for text in problems]


def check_yields(executors: Mapping[str, Executor], names: Sequence[str]) -> list[WorkflowValidationError]:
    """Return a problem for each executor in `names` whose handlers are not annotated to yield outputs.

    `names` are the ids of the executors whose outputs are selected as outputs or intermediate outputs of the workflow.
    """
    mute = [name for name in dict.fromkeys(names) if name in executors and not executors[name].workflow_output_types]
    return [
        WorkflowValidationError(
            f"Executor {name!r} is selected for its outputs, and no handler of it yields any: say what it yields, WorkflowContext[…, T].",
            ValidationTypeEnum.OUTPUT_VALIDATION,
        )
        for name in mute
    ]


def validate_workflow_graph(
    edge_groups: Sequence[EdgeGroup],
    executors: Mapping[str, Executor],
    start_executor: Executor,
    output_executors: Sequence[str],
    intermediate_executors: Sequence[str] | None = None,
) -> None:
    """Check a workflow graph that was built without `WorkflowBuilder`, which checks its graphs itself.

    If no output executor and no intermediate executor is given, the outputs of all executors are outputs of the workflow.

    Raises:
        WorkflowValidationError: The graph is invalid. The text has every problem, one per line; the class is that of the first problem.
    """
    outputs, others = list(output_executors), list(intermediate_executors or ())
    named = [start_executor.id, *(name for group in edge_groups for edge in group.edges for name in (edge.source_id, edge.target_id))]
    raise_all([GraphConnectivityError(unknown_id(name, executors)) for name in dict.fromkeys(named) if name not in executors])
    problems = check_graph(start_executor.id, executors, edge_groups)
    if outputs or others:
        problems += [*check_outputs(executors, outputs, others), *check_yields(executors, [*outputs, *others])]
    raise_all(problems)


def unknown_id(name: str, executors: Mapping[str, Executor]) -> str:
    """Return the error text for an executor id that the graph does not contain, with the most similar id, if any, as a suggestion."""
    return f"No executor has the id {name!r}; it is not present in the workflow graph. {did_you_mean(name, executors)}".rstrip()


def raise_all(problems: Sequence[WorkflowValidationError]) -> None:
    """Raise the first problem of the list, with the texts of all problems. Do nothing if the list is empty.

    Raises:
        WorkflowValidationError: The list is not empty.
    """
    if not problems:
        return
    first = problems[0]
    first.message = "\n".join(problem.message for problem in problems)
    first.args = (first.message,)
    raise first
