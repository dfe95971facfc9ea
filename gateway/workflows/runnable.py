"""`Runnable`: the common interface of graph workflows (`workflow`) and functional workflows (`functional`).

Used by the modules that run a workflow for a tool call or as an agent: `info_requests`, `tool`, `workflow_schemas` and the two agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.workflows.encoding import TypeBook
from gateway.workflows.events import EventLog, WorkflowEvent, WorkflowRunState
from gateway.workflows.run_lock import RunSlot
from gateway.workflows.run_request import RunRequest


class Runnable(Protocol):
    """A graph workflow or a functional workflow. A workflow keeps its state between runs, so it does one run at a time."""

    name: str
    description: str | None

    @property
    def status(self) -> WorkflowRunState:
        """The state of the current run, or of the last run."""
        ...

    @property
    def entry_id(self) -> str:
        """Id of the executor that receives the message of a run, or the name of the function."""
        ...

    @property
    def input_types(self) -> list[Any]:
        """Types of messages that can begin a run."""
        ...

    @property
    def result_types(self) -> list[Any]:
        """Types of the outputs, according to the annotations; empty if these do not say."""
        ...

    @property
    def pending(self) -> Mapping[str, WorkflowEvent[Any]]:
        """Requests without a response, by id."""
        ...

    def takes(self, message: object) -> bool:
        """Return whether a run may begin with this message."""
        ...

    def book(self) -> TypeBook:
        """Return the classes that checkpoints of this workflow may contain."""
        ...

    def reset(self) -> None:
        """Forget the state of earlier runs."""
        ...

    async def perform(self, request: RunRequest, log: EventLog, *, is_streaming: bool = False, slot: RunSlot | None = None) -> None:
        """Do one run, and add every event to `log`. `slot` is the permission for the run, if the caller already has one."""
        ...
