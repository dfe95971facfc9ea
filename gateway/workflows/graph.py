"""`WorkflowGraph`: the executors and edges of a workflow, and the state of its runs. Base class of `Workflow`, which adds `run`.

`superstep_runner`, which does the runs, and `snapshots`, which makes checkpoints, depend on this class and not on `Workflow`.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.edges import EdgeGroup, InternalEdgeGroup
from gateway.workflows.events import WorkflowEvent, WorkflowRunState
from gateway.workflows.executor import Executor
from gateway.workflows.messages import START_SOURCE, WorkflowMessage
from gateway.workflows.run_lock import RunLock
from gateway.workflows.run_state import RunState

DEFAULT_MAX_ITERATIONS = 100
"""Default maximum of supersteps (rounds that handle all waiting messages) in one run. A run with more is considered an endless loop."""

OutputKind = Literal["output", "intermediate"]


@dataclass(frozen=True, slots=True)
class OutputDesignation:
    """Selects the executors, by id, whose outputs the caller of the workflow gets.

    Outputs of the executors in `outputs` are outputs of the workflow; with `None`, those of all executors. Outputs of the executors in
    `intermediates` are reported during the run, but are not part of the result. Outputs of other executors are not reported.
    """

    outputs: frozenset[str] | None = None
    intermediates: frozenset[str] = frozenset()

    def classify(self, executor_id: str) -> OutputKind | None:
        """Return the event type that reports outputs of this executor: `output`, `intermediate`, or `None` if they are not reported."""
        if self.outputs is None or executor_id in self.outputs:
            return "output"
        return "intermediate" if executor_id in self.intermediates else None


class WorkflowGraph:
    """The executors and edges of a workflow, and its state. Executors and shared state persist from one run to the next."""

    status: WorkflowRunState
    """The state of the current run, or of the last run if no run is in progress."""

    def __init__(
        self,
        edge_groups: Sequence[EdgeGroup],
        executors: Mapping[str, Executor],
        start_executor: Executor,
        *,
        name: str = "",
        description: str | None = None,
        max_iterations: int = DEFAULT_MAX_ITERATIONS,
        designation: OutputDesignation | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
    ) -> None:
        """Create a graph without validation. User code should use `WorkflowBuilder`, which validates graphs.

        `designation` selects the executors whose outputs are reported; by default all. Runs store checkpoints in `checkpoint_storage`
        unless they name another storage.
        """
        self.id = name or str(uuid.uuid4())
        """Id of the workflow: its name, so that each build of the same workflow has the same id, or a random id without a name."""
        self.name = name
        self.description = description
        self.max_iterations = max_iterations
        self.executors = dict(executors)
        self.edge_groups = [*edge_groups, *(InternalEdgeGroup(name) for name in executors)]
        self.start_executor_id = start_executor.id
        self.run_state = RunState()
        self.status = WorkflowRunState.IDLE
        self._storage = checkpoint_storage
        self._run_lock = RunLock()
        self._designation = designation or OutputDesignation()
        self._outgoing: dict[str, list[tuple[int, EdgeGroup]]] = {}
        for index, group in enumerate(self.edge_groups):
            for source in group.source_executor_ids:
                self._outgoing.setdefault(source, []).append((index, group))
        signature = json.dumps(self._signature(), sort_keys=True, ensure_ascii=False)
        self.graph_signature_hash = hashlib.sha256(signature.encode()).hexdigest()
        """Digest of executors and edges, equal for each build of the same graph.

        Checkpoints contain it, so that a workflow restores only checkpoints of the same graph."""

    @property
    def input_types(self) -> list[Any]:
        """Types of messages with which a run can begin: those that the start executor handles."""
        return self.get_start_executor().input_types

    @property
    def output_types(self) -> list[Any]:
        """Types of outputs that any executor of the graph may yield, according to the annotations of its handlers."""
        return list(dict.fromkeys(kind for item in self.executors.values() for kind in item.workflow_output_types))

    @property
    def result_types(self) -> list[Any]:
        """Types of the workflow's outputs: those that its output executors are annotated to yield."""
        return list(dict.fromkeys(kind for item in self.get_output_executors() for kind in item.workflow_output_types))

    @property
    def entry_id(self) -> str:
        """Id of the start executor, which receives the message of a run."""
        return self.start_executor_id

    @property
    def pending(self) -> Mapping[str, WorkflowEvent[Any]]:
        """Requests of the workflow to its caller that have no response yet, by request id."""
        return self.run_state.pending

    def takes(self, message: object) -> bool:
        """Return whether a run may begin with this message: the start executor has a handler for it."""
        return self.get_start_executor().can_handle(WorkflowMessage(message, START_SOURCE))

    def get_start_executor(self) -> Executor:
        """Return the start executor, which receives the message of a run."""
        return self.executors[self.start_executor_id]

    def get_executors_list(self) -> list[Executor]:
        """Return all executors of the graph, in the order in which they were added."""
        return list(self.executors.values())

    def get_output_executors(self) -> list[Executor]:
        """Return the output executors: those whose outputs are outputs of the workflow."""
        return [item for item in self.executors.values() if self.is_terminal_executor(item.id)]

    def get_intermediate_executors(self) -> list[Executor]:
        """Return the executors whose outputs are intermediate outputs: reported during the run, but not part of the workflow's result."""
        return [item for item in self.executors.values() if self.is_intermediate_executor(item.id)]

    def is_terminal_executor(self, executor_id: str) -> bool:
        """Return whether the outputs of this executor are outputs of the workflow."""
        return self.classify(executor_id) == "output"

    def is_intermediate_executor(self, executor_id: str) -> bool:
        """Return whether outputs of this executor are intermediate: reported during the run, but not part of the workflow's result."""
        return self.classify(executor_id) == "intermediate"

    def classify(self, executor_id: str) -> OutputKind | None:
        """Return the event type that reports outputs of this executor: `output`, `intermediate`, or `None` if they are not reported."""
        return self._designation.classify(executor_id)

    def groups_of(self, source_id: str) -> list[tuple[int, EdgeGroup]]:
        """Return the edge groups that carry messages of this executor, each with its index in `edge_groups`."""
        return self._outgoing.get(source_id, [])

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as JSON-compatible data: name, limits, executors, edge groups and selected outputs."""
        data: dict[str, Any] = {"name": self.name, "id": self.id, "start_executor_id": self.start_executor_id}
        if self.description is not None:
            data["description"] = self.description
        data["max_iterations"] = self.max_iterations
        data["executors"] = {name: item.to_dict() for name, item in self.executors.items()}
        data["edge_groups"] = [group.to_dict() for group in self.edge_groups]
        outputs, others = self._designation.outputs, self._designation.intermediates
        data["output_executors"] = sorted(outputs) if outputs is not None else None
        data["intermediate_executors"] = sorted(others) if outputs is not None else None
        return data

    def to_json(self) -> str:
        """Return the result of `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def _signature(self) -> dict[str, Any]:
        executors = {name: f"{type(item).__module__}.{type(item).__qualname__}" for name, item in self.executors.items()}
        groups = [group.describe() for group in self.edge_groups if not isinstance(group, InternalEdgeGroup)]
        inner = {
            name: child.graph_signature_hash
            for name, item in self.executors.items()
            if (child := getattr(item, "workflow", None)) is not None
        }
        return {"start": self.start_executor_id, "executors": executors, "groups": groups, "inner": inner}
