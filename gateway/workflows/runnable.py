"""`Runnable`: the common interface of graph workflows (`workflow`) and workflows written as async functions (`functional`).

The modules that run a workflow for a tool call (`info_requests`, `tool`, `workflow_schemas`) or as an agent (`workflow_agent`,
`functional_agent`) use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.workflows.encoding import TypeBook
from gateway.workflows.events import EventLog, WorkflowEvent, WorkflowRunState
from gateway.workflows.run_lock import RunSlot
from gateway.workflows.run_request import RunRequest


class Runnable(Protocol):
    """Interface of workflows: graphs of executors, and async functions. A workflow has state between runs, so it does one run at a time."""

    name: str
    description: str | None

    @property
    def status(self) -> WorkflowRunState:
        """The state of the current run, or of the last run if no run is in progress."""
        ...

    @property
    def entry_id(self) -> str:
        """Id of the executor that receives the message of a run; for a functional workflow, its name."""
        ...

    @property
    def input_types(self) -> list[Any]:
        """Types of messages with which a run can begin."""
        ...

    @property
    def result_types(self) -> list[Any]:
        """Types of the workflow's outputs, according to the annotations of its functions; empty without annotations."""
        ...

    @property
    def pending(self) -> Mapping[str, WorkflowEvent[Any]]:
        """Requests of the workflow to its caller that have no response yet, by request id."""
        ...

    def takes(self, message: object) -> bool:
        """Return whether a run may begin with this message."""
        ...

    def book(self) -> TypeBook:
        """Return the set of classes that may be decoded from checkpoints of this workflow."""
        ...

    def reset(self) -> None:
        """Drop the state of earlier runs, such as messages, requests and shared values."""
        ...

    async def perform(self, request: RunRequest, log: EventLog, *, is_streaming: bool = False, slot: RunSlot | None = None) -> None:
        """Do one run with the input `request`, and add every event to `log`.

        `is_streaming` means that the events are read while the run continues. `slot` is the permission for this run, if the caller already
        has it; a workflow permits one run at a time. Exceptions of the run are raised.
        """
        ...
