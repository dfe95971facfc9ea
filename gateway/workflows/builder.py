"""`WorkflowBuilder`: puts executors and edges together and refuses graphs that cannot work.

Names are agent-framework's. Used by people's code and by `steps`, which compiles workflow files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from gateway.config.suggest import did_you_mean
from gateway.errors import WorkflowInvalid
from gateway.workflows.executor import Executor
from gateway.workflows.graph import Edge, EdgeCondition, Graph, reachable, repeated
from gateway.workflows.runner import MAX_ITERATIONS
from gateway.workflows.workflow import Workflow

Selection = Literal["all"] | Sequence[Executor | str]


class WorkflowBuilder:
    """Collects a graph; everything is checked in `build`."""

    def __init__(
        self,
        *,
        start_executor: Executor | str | None = None,
        name: str = "",
        description: str = "",
        max_iterations: int = MAX_ITERATIONS,
        output_from: Selection | None = None,
    ) -> None:
        """`start_executor` gets the run's message. `output_from` selects whose outputs count; left out, all do."""
        self._name = name
        self._description = description
        self._max_iterations = max_iterations
        self._executors: dict[str, Executor] = {}
        self._edges: list[Edge] = []
        self._clashes: list[str] = []
        self._start = self._note(start_executor) if start_executor is not None else None
        self._output_from = output_from

    def add_edge(
        self, source: Executor | str, target: Executor | str, condition: EdgeCondition | None = None, *, max_traversals: int | None = None
    ) -> Self:
        """Carry messages of `source` to `target`, where `condition` holds and at most `max_traversals` times a run.

        A string names an executor given as an object elsewhere. The order of calls is the order of messages.
        """
        self._edges.append(Edge(self._note(source), self._note(target), condition, max_traversals))
        return self

    def build(self) -> Workflow:
        """The workflow.

        Raises:
            WorkflowInvalid: All that is wrong, one line each.
        """
        problems = [f"Two executors have the id {name!r}; ids must be unique." for name in dict.fromkeys(self._clashes)]
        if self._start is None:
            raise WorkflowInvalid("\n".join([*problems, "There is no start: give WorkflowBuilder a start_executor."]))
        pairs = [(edge.source_id, edge.target_id) for edge in self._edges]
        named = [self._start, *(name for pair in pairs for name in pair)]
        problems += [self._unknown(name) for name in dict.fromkeys(named) if name not in self._executors]
        for index in repeated(pairs):
            problems.append(f"There are two edges from {pairs[index][0]!r} to {pairs[index][1]!r}; join their conditions.")
        problems += [
            f"Edge {e.source_id!r} → {e.target_id!r}: max_traversals must be at least 1."
            for e in self._edges
            if e.max_traversals is not None and e.max_traversals < 1
        ]
        reached = reachable(self._start, pairs)
        problems += [f"Executor {name!r} cannot be reached from {self._start!r}." for name in self._executors if name not in reached]
        outputs = self._outputs(problems)
        if problems:
            raise WorkflowInvalid("\n".join(problems))
        graph = Graph(self._start, dict(self._executors), tuple(self._edges), outputs)
        return Workflow(graph, name=self._name, description=self._description, max_iterations=self._max_iterations)

    def _outputs(self, problems: list[str]) -> frozenset[str] | None:
        if self._output_from is None or self._output_from == "all":
            return None
        if isinstance(self._output_from, str):
            problems.append(f"output_from is {self._output_from!r}; give a list of executors, or 'all'.")
            return None
        ids = [item if isinstance(item, str) else item.id for item in self._output_from]
        problems += [f"output_from: {self._unknown(name)}" for name in dict.fromkeys(ids) if name not in self._executors]
        problems += [f"output_from names {name!r} twice." for name in dict.fromkeys(ids) if ids.count(name) > 1]
        if not ids:
            problems.append("output_from is empty, so nothing would be output; leave it out to output everything.")
        return frozenset(ids)

    def _note(self, item: Executor | str) -> str:
        if isinstance(item, str):
            return item
        if self._executors.setdefault(item.id, item) is not item:
            self._clashes.append(item.id)
        return item.id

    def _unknown(self, name: str) -> str:
        return f"No executor has the id {name!r}. {did_you_mean(name, self._executors)}".rstrip()
