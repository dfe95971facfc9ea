"""What a workflow run says about itself: states, events, error details and the result.

Plain values, made by `runner` and read by streams, the console and the tool. Names and state values are
agent-framework's.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Literal

from typing_extensions import TypeVar

from gateway.json_types import JsonObject

DataT = TypeVar("DataT", default=Any)


class WorkflowRunState(str, Enum):  # noqa: UP042  # prints as agent-framework's does
    """Where a run stands. `IDLE` is the good end."""

    STARTED = "STARTED"
    IN_PROGRESS = "IN_PROGRESS"
    IN_PROGRESS_PENDING_REQUESTS = "IN_PROGRESS_PENDING_REQUESTS"
    IDLE = "IDLE"
    IDLE_WITH_PENDING_REQUESTS = "IDLE_WITH_PENDING_REQUESTS"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class WorkflowEventSource(str, Enum):  # noqa: UP042  # as above
    """Whether the engine or an executor's code made an event."""

    FRAMEWORK = "FRAMEWORK"
    EXECUTOR = "EXECUTOR"


WorkflowEventType = Literal[
    "started",
    "status",
    "failed",
    "output",
    "intermediate",
    "data",
    "request_info",
    "warning",
    "error",
    "superstep_started",
    "superstep_completed",
    "executor_invoked",
    "executor_completed",
    "executor_failed",
    "executor_bypassed",
    "group_chat",
    "handoff_sent",
    "magentic_orchestrator",
]
"""Kinds of events. `warning` and `error` come from executors, the last three from orchestrations; `data` is `emit`'s."""

RESERVED_TYPES = frozenset({"started", "status", "failed", "output", "intermediate", "request_info"})
"""Kinds that only the engine makes; executors have `yield_output` and `request_info` instead."""

CROSSING_TYPES = frozenset({"output", "intermediate", "request_info"})
"""Kinds that leave a workflow which is used as an agent (WF14)."""


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


@dataclass(slots=True, eq=False, repr=False)
class WorkflowEvent(Generic[DataT]):
    """One thing that happened in a run. Which fields are set depends on `type`."""

    type: WorkflowEventType
    data: DataT = None  # pyright: ignore[reportAssignmentType]  # None stands for "no payload" whatever the type
    """Payload of `output`, `intermediate`, `warning` and `error`; the request of `request_info`; the message of
    `executor_invoked`; what was sent and yielded of `executor_completed`."""
    executor_id: str | None = None
    state: WorkflowRunState | None = None
    """New state, of `status`."""
    details: WorkflowErrorDetails | None = None
    """Of `failed` and `executor_failed`."""
    iteration: int | None = None
    """1-based round, of the superstep events."""
    origin: WorkflowEventSource = WorkflowEventSource.EXECUTOR
    asked: RequestFacts | None = None
    """Of `request_info`; read it through the properties."""

    def __repr__(self) -> str:
        """The type, and what this event has."""
        request_id = self.asked.request_id if self.asked is not None else None
        found = {"executor_id": self.executor_id, "iteration": self.iteration, "request_id": request_id, "data": self.data}
        parts = [f"{name}={value!r}" for name, value in found.items() if value is not None]
        state = [f"state={self.state.value}"] if self.state is not None else []
        return f"WorkflowEvent({', '.join([f'type={self.type!r}', *state, *parts])})"

    @classmethod
    def started(cls, data: DataT = None) -> WorkflowEvent[DataT]:
        """A run began."""
        return cls("started", data, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def status(cls, state: WorkflowRunState) -> WorkflowEvent[Any]:
        """The run's state changed."""
        return WorkflowEvent("status", state=state, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def failed(cls, details: WorkflowErrorDetails) -> WorkflowEvent[Any]:
        """The run ended with an error."""
        return WorkflowEvent("failed", details=details, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def emit(cls, executor_id: str, data: DataT) -> WorkflowEvent[DataT]:
        """An executor's output on the way, as agent-framework's first versions reported it; `ctx.yield_output` is today's."""
        text = "WorkflowEvent.emit() is deprecated: use ctx.yield_output() and intermediate_output_from"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return cls("data", data, executor_id)

    @classmethod
    def warning(cls, message: str) -> WorkflowEvent[str]:
        """A warning of an executor."""
        return WorkflowEvent("warning", message)

    @classmethod
    def error(cls, exception: Exception) -> WorkflowEvent[Exception]:
        """An error of an executor that does not end the run."""
        return WorkflowEvent("error", exception)

    @classmethod
    def request_info(
        cls, request_id: str, source_executor_id: str, request_data: DataT, response_type: Any, *, question: str = ""
    ) -> WorkflowEvent[DataT]:
        """An executor waits for information from outside."""
        facts = RequestFacts(request_id, source_executor_id, type(request_data), response_type, question or request_id)
        return cls("request_info", request_data, origin=WorkflowEventSource.FRAMEWORK, asked=facts)

    @classmethod
    def superstep_started(cls, iteration: int) -> WorkflowEvent[Any]:
        """A round began."""
        return WorkflowEvent("superstep_started", iteration=iteration, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def superstep_completed(cls, iteration: int) -> WorkflowEvent[Any]:
        """A round ended."""
        return WorkflowEvent("superstep_completed", iteration=iteration, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def executor_invoked(cls, executor_id: str, data: Any = None) -> WorkflowEvent[Any]:
        """An executor got a message."""
        return WorkflowEvent("executor_invoked", data, executor_id, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def executor_completed(cls, executor_id: str, data: Any = None) -> WorkflowEvent[Any]:
        """An executor is done with a message."""
        return WorkflowEvent("executor_completed", data, executor_id, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def executor_failed(cls, executor_id: str, details: WorkflowErrorDetails) -> WorkflowEvent[WorkflowErrorDetails]:
        """An executor raised."""
        return WorkflowEvent("executor_failed", details, executor_id, details=details, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def executor_bypassed(cls, executor_id: str, data: Any = None) -> WorkflowEvent[Any]:
        """A step did not run, because its result is known."""
        return WorkflowEvent("executor_bypassed", data, executor_id, origin=WorkflowEventSource.FRAMEWORK)

    @property
    def request_id(self) -> str:
        """Of a `request_info` event."""
        return self._facts.request_id

    @property
    def source_executor_id(self) -> str:
        """Which executor asks, of a `request_info` event."""
        return self._facts.source_executor_id

    @property
    def question(self) -> str:
        """The name of a `request_info` event's question in a durable task (`CallContext.question`)."""
        return self._facts.question or self._facts.request_id

    @property
    def request_type(self) -> Any:
        """The type of the request, of a `request_info` event."""
        return self._facts.request_type

    @property
    def response_type(self) -> Any:
        """The type of the response, of a `request_info` event."""
        return self._facts.response_type

    @property
    def _facts(self) -> RequestFacts:
        if self.asked is None:
            raise RuntimeError(f"Only request_info events have this, and the event is {self.type!r}.")
        return self.asked


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a `request_info` event says beside its data."""

    request_id: str
    source_executor_id: str
    request_type: Any
    response_type: Any
    question: str = ""
    """Name of the question in a durable task: the same at every attempt. Checkpoints of earlier versions have none."""


class WorkflowRunResult(list[WorkflowEvent[Any]]):
    """A run that ended, as the list of its events without `started` and (unless asked for) `status`."""

    def __init__(self, events: Sequence[WorkflowEvent[Any]], status_events: Sequence[WorkflowEvent[Any]] = ()) -> None:
        """`status_events` are the timeline, oldest first."""
        super().__init__(events)
        self._status_events = list(status_events)

    @classmethod
    def of(cls, events: Sequence[WorkflowEvent[Any]], *, include_status_events: bool = False) -> WorkflowRunResult:
        """The result of a run that said `events`."""
        hidden = ("started",) if include_status_events else ("started", "status")
        return cls([e for e in events if e.type not in hidden], [e for e in events if e.type == "status"])

    def get_outputs(self) -> list[Any]:
        """Payloads of the outputs."""
        return [event.data for event in self if event.type == "output"]

    def get_intermediate_outputs(self) -> list[Any]:
        """Payloads of the intermediate outputs."""
        return [event.data for event in self if event.type == "intermediate"]

    def get_request_info_events(self) -> list[WorkflowEvent[Any]]:
        """What was asked in this run."""
        return [event for event in self if event.type == "request_info"]

    def get_final_state(self) -> WorkflowRunState:
        """The last state reported.

        Raises:
            RuntimeError: None was.
        """
        if not self._status_events or self._status_events[-1].state is None:
            raise RuntimeError("The run reported no state.")
        return self._status_events[-1].state

    def status_timeline(self) -> list[WorkflowEvent[Any]]:
        """All `status` events, oldest first."""
        return list(self._status_events)
