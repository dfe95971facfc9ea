"""Events of a workflow run: states, events, error details and the run's result.

Plain values. The engine creates them; streams, the tool and checkpoints read them. Checkpoints on disk name the classes and fields of
this module, so they must not be renamed. Public names and state values are agent-framework's.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Literal

from typing_extensions import TypeVar

from gateway.json_types import JsonObject

DataT = TypeVar("DataT", default=Any)


class WorkflowRunState(str, Enum):  # noqa: UP042  # prints as agent-framework's does
    """The state of a run. `IDLE` means that it succeeded."""

    STARTED = "STARTED"
    IN_PROGRESS = "IN_PROGRESS"
    IN_PROGRESS_PENDING_REQUESTS = "IN_PROGRESS_PENDING_REQUESTS"
    IDLE = "IDLE"
    IDLE_WITH_PENDING_REQUESTS = "IDLE_WITH_PENDING_REQUESTS"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class WorkflowEventSource(str, Enum):  # noqa: UP042  # as above
    """Whether the engine or an executor's code created an event."""

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
"""Types of events. Code of executors emits `warning` and `error`, orchestrations emit the last three types, and the deprecated method
`emit` emits `data`. The engine emits all others."""

RESERVED_TYPES = frozenset({"started", "status", "failed", "output", "intermediate", "request_info"})
"""Types that only the engine may emit. Executors use `yield_output` and `request_info` instead."""

CROSSING_TYPES = frozenset({"output", "intermediate", "request_info"})
"""Types that the caller sees when a workflow is used as an agent."""


@dataclass(frozen=True, slots=True)
class WorkflowErrorDetails:
    """A failure as data, for consoles and logs. It contains a traceback, so it must not be sent to clients."""

    error_type: str
    message: str
    traceback: str | None = None
    executor_id: str | None = None
    extra: JsonObject | None = None

    @classmethod
    def from_exception(cls, exc: BaseException, *, executor_id: str | None = None, extra: JsonObject | None = None) -> WorkflowErrorDetails:
        """Return class name, message and traceback of an exception."""
        return cls(type(exc).__name__, str(exc), "".join(traceback.format_exception(exc)), executor_id, extra)


@dataclass(slots=True, eq=False, repr=False)
class WorkflowEvent(Generic[DataT]):
    """One event of a run. `type` decides which fields are set."""

    type: WorkflowEventType
    data: DataT = None  # pyright: ignore[reportAssignmentType]  # None stands for "no payload" whatever the type
    """Payload of `output`, `intermediate`, `warning` and `error`. For `request_info` the request, for `executor_invoked` the message, for
    `executor_completed` the values that the executor sent and yielded."""
    executor_id: str | None = None
    state: WorkflowRunState | None = None
    """New state of a `status` event."""
    details: WorkflowErrorDetails | None = None
    """Details of a `failed` or `executor_failed` event."""
    iteration: int | None = None
    """Round of a superstep event, from 1."""
    origin: WorkflowEventSource = WorkflowEventSource.EXECUTOR
    asked: RequestFacts | None = None
    """Ids and types of the request of a `request_info` event; read them through the properties of this class."""

    def __repr__(self) -> str:
        """Return the type and the fields that are set."""
        request_id = self.asked.request_id if self.asked is not None else None
        found = {"executor_id": self.executor_id, "iteration": self.iteration, "request_id": request_id, "data": self.data}
        parts = [f"{name}={value!r}" for name, value in found.items() if value is not None]
        state = [f"state={self.state.value}"] if self.state is not None else []
        return f"WorkflowEvent({', '.join([f'type={self.type!r}', *state, *parts])})"

    @classmethod
    def started(cls, data: DataT = None) -> WorkflowEvent[DataT]:
        """Report that a run began."""
        return cls("started", data, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def status(cls, state: WorkflowRunState) -> WorkflowEvent[Any]:
        """Report the run's new state."""
        return WorkflowEvent("status", state=state, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def failed(cls, details: WorkflowErrorDetails) -> WorkflowEvent[Any]:
        """Report that the run ended with an error."""
        return WorkflowEvent("failed", details=details, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def emit(cls, executor_id: str, data: DataT) -> WorkflowEvent[DataT]:
        """Report an intermediate output as the first versions of agent-framework did. Deprecated: use `ctx.yield_output`."""
        text = "WorkflowEvent.emit() is deprecated: use ctx.yield_output() and intermediate_output_from"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return cls("data", data, executor_id)

    @classmethod
    def warning(cls, message: str) -> WorkflowEvent[str]:
        """Report a warning of an executor."""
        return WorkflowEvent("warning", message)

    @classmethod
    def error(cls, exception: Exception) -> WorkflowEvent[Exception]:
        """Report an error of an executor that does not end the run."""
        return WorkflowEvent("error", exception)

    @classmethod
    def request_info(
        cls, request_id: str, source_executor_id: str, request_data: DataT, response_type: Any, *, question: str = ""
    ) -> WorkflowEvent[DataT]:
        """Report that an executor waits for a response of the run's caller."""
        facts = RequestFacts(request_id, source_executor_id, type(request_data), response_type, question or request_id)
        return cls("request_info", request_data, origin=WorkflowEventSource.FRAMEWORK, asked=facts)

    @classmethod
    def superstep_started(cls, iteration: int) -> WorkflowEvent[Any]:
        """Report that a round began."""
        return WorkflowEvent("superstep_started", iteration=iteration, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def superstep_completed(cls, iteration: int) -> WorkflowEvent[Any]:
        """Report that a round ended."""
        return WorkflowEvent("superstep_completed", iteration=iteration, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def executor_invoked(cls, executor_id: str, data: Any = None) -> WorkflowEvent[Any]:
        """Report that an executor received a message."""
        return WorkflowEvent("executor_invoked", data, executor_id, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def executor_completed(cls, executor_id: str, data: Any = None) -> WorkflowEvent[Any]:
        """Report that an executor finished with a message."""
        return WorkflowEvent("executor_completed", data, executor_id, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def executor_failed(cls, executor_id: str, details: WorkflowErrorDetails) -> WorkflowEvent[WorkflowErrorDetails]:
        """Report that an executor raised an exception."""
        return WorkflowEvent("executor_failed", details, executor_id, details=details, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def executor_bypassed(cls, executor_id: str, data: Any = None) -> WorkflowEvent[Any]:
        """Report that a step did not run, because its result was recorded earlier."""
        return WorkflowEvent("executor_bypassed", data, executor_id, origin=WorkflowEventSource.FRAMEWORK)

    @property
    def request_id(self) -> str:
        """Id of a `request_info` event's request."""
        return self._facts.request_id

    @property
    def source_executor_id(self) -> str:
        """The executor that made the request of a `request_info` event."""
        return self._facts.source_executor_id

    @property
    def question(self) -> str:
        """The name that identifies the question of a `request_info` event in a durable task (`CallContext.question`)."""
        return self._facts.question or self._facts.request_id

    @property
    def request_type(self) -> Any:
        """The type of a `request_info` event's request."""
        return self._facts.request_type

    @property
    def response_type(self) -> Any:
        """The type of a `request_info` event's response."""
        return self._facts.response_type

    @property
    def _facts(self) -> RequestFacts:
        if self.asked is None:
            raise RuntimeError(f"Only request_info events have this, and the event is {self.type!r}.")
        return self.asked


OnEvent = Callable[[WorkflowEvent[Any]], Awaitable[None]]
"""Function that receives each event of a run. The executor that caused the event waits for it; the function must not raise."""


@dataclass(slots=True)
class EventLog:
    """The events of a run, oldest first, and the function that receives each of them."""

    events: list[WorkflowEvent[Any]] = field(default_factory=list[WorkflowEvent[Any]])
    emit: OnEvent | None = None

    async def add(self, event: WorkflowEvent[Any]) -> None:
        """Append an event, and pass it to `emit`."""
        self.events.append(event)
        if self.emit is not None:
            await self.emit(event)


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """Id, sender and types of the request of a `request_info` event. The request itself is the event's `data`."""

    request_id: str
    source_executor_id: str
    request_type: Any
    response_type: Any
    question: str = ""
    """Name of the question in a durable task, the same at every attempt. Empty in checkpoints of earlier versions."""


class WorkflowRunResult(list[WorkflowEvent[Any]]):
    """The events of a finished run. The list has no `started` event, and `status` events only if the caller requested them."""

    def __init__(self, events: Sequence[WorkflowEvent[Any]], status_events: Sequence[WorkflowEvent[Any]] = ()) -> None:
        """`status_events` are the state changes, oldest first."""
        super().__init__(events)
        self._status_events = list(status_events)

    @classmethod
    def of(cls, events: Sequence[WorkflowEvent[Any]], *, include_status_events: bool = False) -> WorkflowRunResult:
        """Return the result of a run with these events."""
        hidden = ("started",) if include_status_events else ("started", "status")
        return cls([e for e in events if e.type not in hidden], [e for e in events if e.type == "status"])

    def get_outputs(self) -> list[Any]:
        """Return the values of the outputs."""
        return [event.data for event in self if event.type == "output"]

    def get_intermediate_outputs(self) -> list[Any]:
        """Return the values of the intermediate outputs."""
        return [event.data for event in self if event.type == "intermediate"]

    def get_request_info_events(self) -> list[WorkflowEvent[Any]]:
        """Return the requests that the run made."""
        return [event for event in self if event.type == "request_info"]

    def get_final_state(self) -> WorkflowRunState:
        """Return the last reported state.

        Raises:
            RuntimeError: The run reported no state.
        """
        if not self._status_events or self._status_events[-1].state is None:
            raise RuntimeError("The run reported no state.")
        return self._status_events[-1].state

    def status_timeline(self) -> list[WorkflowEvent[Any]]:
        """Return all `status` events, oldest first."""
        return list(self._status_events)
