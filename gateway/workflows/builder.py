"""`WorkflowBuilder`: collects executors and edges, and builds a validated `Workflow`. Names are those of Microsoft's agent-framework.

User code, the builders in `orchestrations`, and `file_graph` (for workflow files) use it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, Self

from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS, Operation
from gateway.workflows.agent_executor import AgentExecutor, is_agent
from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.edges import (
    Case,
    Default,
    EdgeCondition,
    EdgeGroup,
    FanInEdgeGroup,
    FanOutEdgeGroup,
    Selection,
    SingleEdgeGroup,
    SwitchCaseEdgeGroup,
    SwitchCaseEdgeGroupCase,
    SwitchCaseEdgeGroupDefault,
)
from gateway.workflows.executor import Executor
from gateway.workflows.graph import DEFAULT_MAX_ITERATIONS, OutputDesignation
from gateway.workflows.validation import (
    GraphConnectivityError,
    ValidationTypeEnum,
    WorkflowValidationError,
    check_graph,
    check_outputs,
    check_yields,
    raise_all,
    unknown_id,
)
from gateway.workflows.workflow import Workflow

Node = Any
"""A node of a graph, as callers of `WorkflowBuilder` pass it: an executor, an agent, or the id of an executor that another call passes.

An agent is wrapped in one `AgentExecutor`, even if several edges name the agent.
"""

OutputSelection = Literal["all"] | Sequence[Node]
IntermediateSelection = Literal["all", "all_other"] | Sequence[Node]


class WorkflowBuilder:
    """Collects the executors and edges of a workflow graph. `build` validates the graph and returns the `Workflow`."""

    def __init__(
        self,
        max_iterations: int = DEFAULT_MAX_ITERATIONS,
        name: str | None = None,
        description: str | None = None,
        *,
        start_executor: Node,
        checkpoint_storage: CheckpointStorage | None = None,
        output_from: OutputSelection | None = None,
        intermediate_output_from: IntermediateSelection | None = None,
    ) -> None:
        """Begin a graph. `start_executor` receives the message with which a run begins.

        `max_iterations` limits the supersteps of a run (in each superstep, all waiting messages are handled concurrently).
        `checkpoint_storage` gets a checkpoint after every superstep.

        `output_from` selects the executors whose outputs are outputs of the workflow; `intermediate_output_from` selects the executors
        whose outputs are only reported during the run. If neither is given, every executor's outputs are outputs of the workflow;
        otherwise, outputs of executors that are not selected are hidden.

        Raises:
            ValueError: A selection is a text other than `all` (or, for `intermediate_output_from`, `all_other`).
            TypeError: `start_executor` is not an executor, an agent or an id.
        """
        self._name = name or f"WorkflowBuilder-{uuid.uuid4()}"
        self._description = description
        self._max_iterations = max_iterations
        self._storage = checkpoint_storage
        self._executors: dict[str, Executor] = {}
        self._groups: list[EdgeGroup] = []
        self._wrapped: dict[int, AgentExecutor] = {}
        for word, selection, texts in (
            ("output_from", output_from, ("all",)),
            ("intermediate_output_from", intermediate_output_from, ("all", "all_other")),
        ):
            if isinstance(selection, str) and selection not in texts:
                raise ValueError(f"{word} is {selection!r}; give a list of executors, or {' or '.join(map(repr, texts))}.")
        self._output_from = output_from
        self._intermediate_output_from = intermediate_output_from
        self._start = self._note(start_executor)

    def add_edge(self, source: Node, target: Node, condition: EdgeCondition | None = None, *, max_traversals: int | None = None) -> Self:
        """Add an edge that carries messages from `source` to `target`.

        With `condition`, the edge carries only messages for which `condition(message)` is true. With `max_traversals`, it carries at most
        this many messages per run.
        """
        self._groups.append(SingleEdgeGroup(self._note(source), self._note(target), condition, max_traversals=max_traversals))
        return self

    def add_fan_out_edges(self, source: Node, targets: Sequence[Node]) -> Self:
        """Add edges that carry every message from `source` to all `targets`."""
        self._groups.append(FanOutEdgeGroup(self._note(source), [self._note(target) for target in targets]))
        return self

    def add_switch_case_edge_group(self, source: Node, cases: Sequence[Case | Default]) -> Self:
        """Add edges that carry every message from `source` to one target: that of the first case whose condition is true.

        `cases` must contain exactly one `Default`, whose target gets the messages that match no case.
        """
        made = [
            SwitchCaseEdgeGroupDefault(self._note(case.target))
            if isinstance(case, Default)
            else SwitchCaseEdgeGroupCase(case.condition, self._note(case.target))
            for case in cases
        ]
        self._groups.append(SwitchCaseEdgeGroup(self._note(source), made))
        return self

    def add_multi_selection_edge_group(self, source: Node, targets: Sequence[Node], selection_func: Selection) -> Self:
        """Add edges that carry every message from `source` to the targets whose ids `selection_func(message, ids)` returns."""
        self._groups.append(FanOutEdgeGroup(self._note(source), [self._note(target) for target in targets], selection_func))
        return self

    def add_fan_in_edges(self, sources: Sequence[Node], target: Node) -> Self:
        """Add edges that collect messages until every source has sent at least one message.

        The edges then carry the collected messages to `target` as one list, in the order of `sources`.
        """
        self._groups.append(FanInEdgeGroup([self._note(source) for source in sources], self._note(target)))
        return self

    def add_chain(self, executors: Sequence[Node]) -> Self:
        """Add edges that connect the executors in a chain: from each executor in the list to the next.

        Raises:
            ValueError: The list has fewer than two executors.
        """
        if len(executors) < 2:
            raise ValueError("At least two executors are required to form a chain.")
        for source, target in pairwise(executors):
            self.add_edge(source, target)
        return self

    def build(self) -> Workflow:
        """Validate the graph and return the workflow.

        Raises:
            WorkflowValidationError: The graph is invalid. The text has every problem, one per line; the class is that of the first problem.
        """
        if OBSERVABILITY_SETTINGS.enable_instrumentation:
            return self._build_traced()
        return self._build(lambda: None)

    def _build_traced(self) -> Workflow:
        operation = Operation("workflow.build", {})
        operation.event("build.started")
        with operation.running():
            try:
                workflow = self._build(lambda: operation.event("build.validation_completed"))
            except Exception as error:
                operation.event("build.error", {"build.error.type": type(error).__name__, "build.error.message": str(error)})
                raise
            operation.add({"workflow_builder.name": self._name, "workflow.id": workflow.id, "workflow.definition": workflow.to_json()})
            if self._description:
                operation.add({"workflow_builder.description": self._description})
            operation.event("build.completed")
            return workflow

    def _build(self, on_valid: Callable[[], None]) -> Workflow:
        named = [self._start, *(name for group in self._groups for edge in group.edges for name in (edge.source_id, edge.target_id))]
        raise_all(
            [GraphConnectivityError(unknown_id(name, self._executors)) for name in dict.fromkeys(named) if name not in self._executors]
        )
        limits = [
            WorkflowValidationError(f"Edge {edge.id}: max_traversals must be at least 1.", ValidationTypeEnum.GRAPH_CONNECTIVITY)
            for group in self._groups
            for edge in group.edges
            if edge.max_traversals is not None and edge.max_traversals < 1
        ]
        outputs, intermediates = self._selections()
        problems = [
            *check_graph(self._start, self._executors, self._groups),
            *limits,
            *check_outputs(self._executors, outputs, intermediates),
            *check_yields(self._executors, [*self._named(self._output_from), *self._named(self._intermediate_output_from)]),
        ]
        raise_all(problems)
        on_valid()
        is_open = outputs is None and intermediates is None
        return Workflow(
            self._groups,
            self._executors,
            self._executors[self._start],
            name=self._name,
            description=self._description,
            max_iterations=self._max_iterations,
            designation=OutputDesignation(None if is_open else frozenset(outputs or ()), frozenset(intermediates or ())),
            checkpoint_storage=self._storage,
        )

    def _selections(self) -> tuple[list[str] | None, list[str] | None]:
        outputs = self._selected(self._output_from)
        if self._intermediate_output_from == "all_other":
            chosen = outputs or []
            return outputs, [name for name in self._executors if name not in chosen]
        return outputs, self._selected(self._intermediate_output_from)

    def _selected(self, selection: OutputSelection | IntermediateSelection | None) -> list[str] | None:
        if selection is None:
            return None
        if isinstance(selection, str):
            return [name for name, item in self._executors.items() if item.workflow_output_types] or list(self._executors)
        return self._named(selection)

    def _named(self, selection: OutputSelection | IntermediateSelection | None) -> list[str]:
        """Return the executor ids that an output selection lists; an empty list for `None` or a word such as `all`."""
        if selection is None or isinstance(selection, str):
            return []
        return [item if isinstance(item, str) else self._id_of(item) for item in selection]

    def _id_of(self, item: Node) -> str:
        if isinstance(item, Executor):
            return item.id
        wrapper = self._wrapped.get(id(item))
        return wrapper.id if wrapper is not None else str(getattr(item, "name", None) or getattr(item, "id", item))

    def _note(self, item: Node) -> str:
        if isinstance(item, str):
            return item
        if not isinstance(item, Executor):
            item = self._wrap(item)
        if self._executors.setdefault(item.id, item) is not item:
            raise ValueError(
                f"Duplicate executor ID {item.id!r} detected in workflow: two executors must not share an id. Pass another `id=`."
            )
        return item.id

    def _wrap(self, agent: Any) -> Executor:
        if not is_agent(agent):
            raise TypeError(f"WorkflowBuilder expected an Executor or an agent; got {type(agent).__name__}.")
        if id(agent) not in self._wrapped:
            self._wrapped[id(agent)] = AgentExecutor(agent)
        return self._wrapped[id(agent)]
