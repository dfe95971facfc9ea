"""`RunState`: the state of a workflow between rounds and runs, which checkpoints contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.workflows.events import WorkflowEvent
from gateway.workflows.messages import WorkflowMessage

RUN_KWARGS_KEY = "_workflow_run_kwargs"
"""Key in the shared state of the keyword arguments that a run passes to its agents."""


class State:
    """Values that the executors of a workflow share.

    A write is visible to all executors at once, and is undone if the round in which it was made fails.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._committed: dict[str, Any] = dict(values or {})
        self._pending: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value that was last written under the key, also in this round."""
        return self._pending[key] if key in self._pending else self._committed.get(key, default)

    def get_committed(self, key: str) -> Any:
        """Return the value that the key had at the start of the round; `None` if it had none."""
        return self._committed.get(key)

    def set(self, key: str, value: Any) -> None:
        """Write a value. The write is undone if the round fails."""
        self._pending[key] = value

    def has(self, key: str) -> bool:
        """Return whether the key has a value."""
        return key in self._pending or key in self._committed

    def delete(self, key: str) -> None:
        """Remove a value if there is one. Unlike `set`, this is not undone if the round fails."""
        self._pending.pop(key, None)
        self._committed.pop(key, None)

    def commit(self) -> None:
        """Make the writes since the last commit permanent."""
        self._committed.update(self._pending)
        self._pending.clear()

    def discard(self) -> None:
        """Undo the writes since the last commit."""
        self._pending.clear()

    def export_state(self) -> dict[str, Any]:
        """Return a copy of the committed values."""
        return dict(self._committed)


@dataclass(slots=True)
class RunState:
    """The state of one workflow: everything that it carries from round to round."""

    shared: State = field(default_factory=State)
    messages: list[WorkflowMessage] = field(default_factory=list[WorkflowMessage])
    """Messages for the next round, in the order in which they were sent."""
    pending: dict[str, WorkflowEvent[Any]] = field(default_factory=dict[str, WorkflowEvent[Any]])
    """Requests without a response, by id."""
    waiting: dict[int, dict[str, list[Any]]] = field(default_factory=dict[int, dict[str, list[Any]]])
    """Messages that fan-ins have collected so far: index of the edge group → source → data of its messages."""
    traversals: dict[int, int] = field(default_factory=dict[int, int])
    """Index of the edge group → number of messages that its edge has carried. Only for edges with `max_traversals`."""
    iteration: int = 0

    def discard_round(self) -> None:
        """Undo the writes of a failed or cancelled round, and drop its messages."""
        self.shared.discard()
        self.messages.clear()
