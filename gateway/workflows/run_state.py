"""`RunState` and `State`: the state of a workflow between supersteps and between runs. Checkpoints contain it.

A superstep is the step of a run in which all waiting messages are handled concurrently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.workflows.events import WorkflowEvent
from gateway.workflows.messages import WorkflowMessage

RUN_KWARGS_KEY = "_workflow_run_kwargs"
"""Key, in the state that executors share, of the keyword arguments that a run passes to its agents."""


class State:
    """Key-value store that the executors of a workflow share.

    A write is visible to all executors immediately. It is undone if the superstep (concurrent handling of all waiting messages) in which it
    was made fails.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._committed: dict[str, Any] = dict(values or {})
        self._pending: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value that was last written under the key, also in the current superstep (round of the run), or `default`."""
        return self._pending[key] if key in self._pending else self._committed.get(key, default)

    def get_committed(self, key: str) -> Any:
        """Return the value of the key without the writes of the current superstep (round of the run); `None` if it has no value."""
        return self._committed.get(key)

    def set(self, key: str, value: Any) -> None:
        """Write a value under the key. The write is undone if the current superstep (round of the run) fails."""
        self._pending[key] = value

    def has(self, key: str) -> bool:
        """Return whether the key has a value, including a value that was written in the current superstep (round of the run)."""
        return key in self._pending or key in self._committed

    def delete(self, key: str) -> None:
        """Remove the value of the key, if it has one. Unlike `set`, this is not undone if the current round of the run fails."""
        self._pending.pop(key, None)
        self._committed.pop(key, None)

    def commit(self) -> None:
        """Make all writes since the last commit permanent. The engine calls this at the end of each superstep (round of the run)."""
        self._committed.update(self._pending)
        self._pending.clear()

    def discard(self) -> None:
        """Undo all writes since the last commit. The engine calls this when a superstep (round of the run) failed or was cancelled."""
        self._pending.clear()

    def export_state(self) -> dict[str, Any]:
        """Return a shallow copy of the values at the end of the last superstep (round of the run) that succeeded, for a checkpoint."""
        return dict(self._committed)


@dataclass(slots=True)
class RunState:
    """The state that a workflow carries from one superstep (round of a run) to the next, and from run to run, outside of its executors."""

    shared: State = field(default_factory=State)
    messages: list[WorkflowMessage] = field(default_factory=list[WorkflowMessage])
    """Messages to deliver in the next superstep (round of the run), in the order of the deliveries during which they were sent."""
    pending: dict[str, WorkflowEvent[Any]] = field(default_factory=dict[str, WorkflowEvent[Any]])
    """Requests of the workflow to its caller that have no response yet, by request id."""
    waiting: dict[int, dict[str, list[Any]]] = field(default_factory=dict[int, dict[str, list[Any]]])
    """Messages that each fan-in (edges from several executors to one) has collected, until all its sources have sent one.

    Index of the fan-in in the graph's edge groups → id of the sender → data of its messages."""
    traversals: dict[int, int] = field(default_factory=dict[int, int])
    """Number of messages that each edge with a limit (`max_traversals`) has carried in this run, by index of its edge group."""
    iteration: int = 0

    def discard_round(self) -> None:
        """Undo the uncommitted writes of a failed or cancelled superstep (round of the run), and drop all undelivered messages."""
        self.shared.discard()
        self.messages.clear()
