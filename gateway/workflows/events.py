"""What a workflow run says about itself: states, events, error details and the result.

Plain values, made by `runner` and read by streams, the console and the tool. Names and state values are
agent-framework's.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, cast

from gateway.json_types import JsonMapping, JsonObject


class WorkflowRunState(StrEnum):
    """Where a run stands. `IDLE` is the good end."""

    STARTED = "STARTED"
    IN_PROGRESS = "IN_PROGRESS"
    IN_PROGRESS_PENDING_REQUESTS = "IN_PROGRESS_PENDING_REQUESTS"
    IDLE = "IDLE"
    IDLE_WITH_PENDING_REQUESTS = "IDLE_WITH_PENDING_REQUESTS"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


WorkflowEventType = Literal[
    "started",
    "status",
    "failed",
    "output",
    "warning",
    "error",
    "superstep_started",
    "superstep_completed",
    "executor_invoked",
    "executor_completed",
    "executor_failed",
]
"""Kinds of events. `warning` and `error` come from executors through `WorkflowContext.add_event`."""


@dataclass(frozen=True, slots=True)
class WorkflowErrorDetails:
    """A failure as data: for consoles and logs, never for the wire (it has a traceback)."""

    error_type: str
    message: str
    traceback: str | None = None
    executor_id: str | None = None
    extra: JsonObject | None = None

    @classmethod
    def from_exception(cls, exc: BaseException, *, executor_id: str | None = None, extra: JsonObject | None = None) -> WorkflowErrorDetails:
        """Class name, message and traceback of an exception."""
        return cls(type(exc).__name__, str(exc), "".join(traceback.format_exception(exc)), executor_id, extra)


@dataclass(frozen=True, slots=True)
class WorkflowEvent:
    """One thing that happened in a run. Which fields are set depends on `type`."""

    type: WorkflowEventType
    data: Any = None
    """Payload of `output`, `warning` and `error`; the message of `executor_invoked`."""
    executor_id: str | None = None
    state: WorkflowRunState | None = None
    """New state, of `status`."""
    details: WorkflowErrorDetails | None = None
    """Of `failed` and `executor_failed`."""
    iteration: int | None = None
    """1-based round, of the superstep events."""


@dataclass(frozen=True, slots=True)
class WorkflowRunResult:
    """A finished run."""

    events: tuple[WorkflowEvent, ...]
    """In the order in which they happened."""
    outputs: tuple[tuple[str, Any], ...]
    """Executor id and payload of each selected output, in message order whatever finished first."""
    state: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """Shared state as committed by the last completed round."""

    def get_outputs(self) -> list[Any]:
        """Payloads of the selected outputs, in message order."""
        return [payload for _, payload in self.outputs]

    def get_final_state(self) -> WorkflowRunState:
        """The last state reported."""
        return self.status_timeline()[-1]

    def status_timeline(self) -> list[WorkflowRunState]:
        """All states reported, oldest first."""
        return [event.state for event in self.events if event.state is not None]
