"""Data classes of a workflow run: its states, events, error details and result.

The workflow engine creates them; streams, the workflow's MCP tool and checkpoints read them. Stored checkpoints contain the names of these
classes and fields, so they must not be renamed. Public names and state values are those of Microsoft's agent-framework.
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


class WorkflowRunState(str, Enum):  # noqa: UP042  # `str()` of a member must return the same text as in agent-framework
    """The state of a workflow run. `IDLE` means that the run has succeeded or that the workflow has not run yet."""

    STARTED = "STARTED"
    IN_PROGRESS = "IN_PROGRESS"
    IN_PROGRESS_PENDING_REQUESTS = "IN_PROGRESS_PENDING_REQUESTS"
    IDLE = "IDLE"
    IDLE_WITH_PENDING_REQUESTS = "IDLE_WITH_PENDING_REQUESTS"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class WorkflowEventSource(str, Enum):  # noqa: UP042  # `str()` of a member must return the same text as in agent-framework
    """The creator of a workflow event: the workflow engine (`FRAMEWORK`) or the code of an executor (`EXECUTOR`)."""

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
"""Types of workflow events.

Code of executors emits `warning` and `error`, orchestrations emit `group_chat`, `handoff_sent` and `magentic_orchestrator`, and the
deprecated method `emit` emits `data`. The workflow engine emits all other types, and also `warning`."""

RESERVED_TYPES = frozenset({"started", "status", "failed", "output", "intermediate", "request_info"})
"""Types of workflow events that only the engine may emit. Code of executors calls `yield_output` and `request_info` instead."""

CROSSING_TYPES = frozenset({"output", "intermediate", "request_info"})
"""Types of workflow events that become part of the response if the workflow runs as an agent. The response omits all other events."""


@dataclass(frozen=True, slots=True)
class WorkflowErrorDetails:
    """An exception of a workflow run as data, for consoles and logs. It contains a traceback, so it must not be sent to clients."""

    error_type: str
    message: str
    traceback: str | None = None
    executor_id: str | None = None
    extra: JsonObject | None = None

    @classmethod
    def from_exception(cls, exc: BaseException, *, executor_id: str | None = None, extra: JsonObject | None = None) -> WorkflowErrorDetails:
        """Create the details of an exception: its class name, message and traceback, and the id of the executor that raised it."""
        return cls(type(exc).__name__, str(exc), "".join(traceback.format_exception(exc)), executor_id, extra)


@dataclass(slots=True, eq=False, repr=False)
class WorkflowEvent(Generic[DataT]):
    """One event of a workflow run, such as an output, a request or a change of state. `type` determines which other fields are set."""

    type: WorkflowEventType
    data: DataT = None  # pyright: ignore[reportAssignmentType]  # `None` means "no payload" for every `DataT`
    """Payload of the event: the value of `output`, `intermediate`, `warning` and `error` events, the request of a `request_info` event.

    For `executor_invoked` it is the received message, for `executor_completed` the list of values that the executor sent and yielded. For a
    step of a functional workflow (an async function), it is the arguments or the result instead."""
    executor_id: str | None = None
    state: WorkflowRunState | None = None
    """For a `status` event: the new state of the run."""
    details: WorkflowErrorDetails | None = None
    """For a `failed` or `executor_failed` event: the exception."""
    iteration: int | None = None
    """For a `superstep_started` or `superstep_completed` event: the number of the superstep (round) within the run, from 1."""
    origin: WorkflowEventSource = WorkflowEventSource.EXECUTOR
    asked: RequestFacts | None = None
    """For a `request_info` event: ids and types of the request. Read them through properties such as `request_id`."""

    def __repr__(self) -> str:
        """Return a text with the event's type and with its state, executor, iteration, request id and data, as far as they are set."""
        request_id = self.asked.request_id if self.asked is not None else None
        found = {"executor_id": self.executor_id, "iteration": self.iteration, "request_id": request_id, "data": self.data}
        parts = [f"{name}={value!r}" for name, value in found.items() if value is not None]
        state = [f"state={self.state.value}"] if self.state is not None else []
        return f"WorkflowEvent({', '.join([f'type={self.type!r}', *state, *parts])})"

    @classmethod
    def started(cls, data: DataT = None) -> WorkflowEvent[DataT]:
        """Create the event that reports the start of a run."""
        return cls("started", data, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def status(cls, state: WorkflowRunState) -> WorkflowEvent[Any]:
        """Create the event that reports the run's new state."""
        return WorkflowEvent("status", state=state, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def failed(cls, details: WorkflowErrorDetails) -> WorkflowEvent[Any]:
        """Create the event that reports the end of a run by an exception."""
        return WorkflowEvent("failed", details=details, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def emit(cls, executor_id: str, data: DataT) -> WorkflowEvent[DataT]:
        """Create a `data` event, which reports an intermediate output. Deprecated: call `ctx.yield_output` in the executor instead."""
        text = "WorkflowEvent.emit() is deprecated: use ctx.yield_output() and intermediate_output_from"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return cls("data", data, executor_id)

    @classmethod
    def warning(cls, message: str) -> WorkflowEvent[str]:
        """Create the event with which an executor reports a warning."""
        return WorkflowEvent("warning", message)

    @classmethod
    def error(cls, exception: Exception) -> WorkflowEvent[Exception]:
        """Create the event with which an executor reports an error that does not end the run."""
        return WorkflowEvent("error", exception)

    @classmethod
    def request_info(
        cls, request_id: str, source_executor_id: str, request_data: DataT, response_type: Any, *, question: str = ""
    ) -> WorkflowEvent[DataT]:
        """Create the event with which an executor requests a response of type `response_type` from the caller of the run.

        `question` is the name that identifies the request if the run is a task that can be resumed; the default is `request_id`.
        """
        facts = RequestFacts(request_id, source_executor_id, type(request_data), response_type, question or request_id)
        return cls("request_info", request_data, origin=WorkflowEventSource.FRAMEWORK, asked=facts)

    @classmethod
    def superstep_started(cls, iteration: int) -> WorkflowEvent[Any]:
        """Create the event that reports the start of a superstep, in which all waiting messages are handled. `iteration` counts from 1."""
        return WorkflowEvent("superstep_started", iteration=iteration, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def superstep_completed(cls, iteration: int) -> WorkflowEvent[Any]:
        """Create the event that reports the end of a superstep, in which all waiting messages were handled. `iteration` counts from 1."""
        return WorkflowEvent("superstep_completed", iteration=iteration, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def executor_invoked(cls, executor_id: str, data: Any = None) -> WorkflowEvent[Any]:
        """Create the event that reports that an executor begins to handle a message. For `data`, see the field."""
        return WorkflowEvent("executor_invoked", data, executor_id, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def executor_completed(cls, executor_id: str, data: Any = None) -> WorkflowEvent[Any]:
        """Create the event that reports that an executor has handled a message. For `data`, see the field."""
        return WorkflowEvent("executor_completed", data, executor_id, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def executor_failed(cls, executor_id: str, details: WorkflowErrorDetails) -> WorkflowEvent[WorkflowErrorDetails]:
        """Create the event that reports that an executor raised an exception."""
        return WorkflowEvent("executor_failed", details, executor_id, details=details, origin=WorkflowEventSource.FRAMEWORK)

    @classmethod
    def executor_bypassed(cls, executor_id: str, data: Any = None) -> WorkflowEvent[Any]:
        """Create the event that reports a skipped step of a functional workflow (an async function), whose result `data` is recorded."""
        return WorkflowEvent("executor_bypassed", data, executor_id, origin=WorkflowEventSource.FRAMEWORK)

    @property
    def request_id(self) -> str:
        """Id of the request in a `request_info` event. Raises `RuntimeError` for other events."""
        return self._facts.request_id

    @property
    def source_executor_id(self) -> str:
        """Id of the executor that made the request in a `request_info` event. Raises `RuntimeError` for other events."""
        return self._facts.source_executor_id

    @property
    def question(self) -> str:
        """Name of the request in a `request_info` event, the same each time a resumed task makes the request again.

        Raises `RuntimeError` for other events.
        """
        return self._facts.question or self._facts.request_id

    @property
    def request_type(self) -> Any:
        """Type of the request data in a `request_info` event. Raises `RuntimeError` for other events."""
        return self._facts.request_type

    @property
    def response_type(self) -> Any:
        """Type that the response to a `request_info` event must have. Raises `RuntimeError` for other events."""
        return self._facts.response_type

    @property
    def _facts(self) -> RequestFacts:
        if self.asked is None:
            raise RuntimeError(f"Only request_info events have this, and the event is {self.type!r}.")
        return self.asked


OnEvent = Callable[[WorkflowEvent[Any]], Awaitable[None]]
"""Type of the async function that receives each event of a workflow run. It must not raise.

The executor that caused the event waits until the function returns."""


@dataclass(slots=True)
class EventLog:
    """Collects the events of a workflow run, oldest first, and passes each event to the function `emit` if it is set."""

    events: list[WorkflowEvent[Any]] = field(default_factory=list[WorkflowEvent[Any]])
    emit: OnEvent | None = None

    async def add(self, event: WorkflowEvent[Any]) -> None:
        """Append an event to the log. If the function `emit` of the log is set, pass the event to it, and wait until it returns."""
        self.events.append(event)
        if self.emit is not None:
            await self.emit(event)


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """Id, requesting executor and types of the request in a `request_info` event. The request data is in the event's `data`."""

    request_id: str
    source_executor_id: str
    request_type: Any
    response_type: Any
    question: str = ""
    """Name of the request, the same each time a resumed task makes the request again. Empty in checkpoints of earlier versions."""


class WorkflowRunResult(list[WorkflowEvent[Any]]):
    """The result of a workflow run: the list of its events.

    The list has no `started` event, and has `status` events only if the caller requested them.
    """

    def __init__(self, events: Sequence[WorkflowEvent[Any]], status_events: Sequence[WorkflowEvent[Any]] = ()) -> None:
        """Create a result with the list of `events`. `status_events` are all changes of the run's state, oldest first."""
        super().__init__(events)
        self._status_events = list(status_events)

    @classmethod
    def of(cls, events: Sequence[WorkflowEvent[Any]], *, include_status_events: bool = False) -> WorkflowRunResult:
        """Create the result of a run from all of its events. The `started` event is left out, `status` events by default too."""
        hidden = ("started",) if include_status_events else ("started", "status")
        return cls([e for e in events if e.type not in hidden], [e for e in events if e.type == "status"])

    def get_outputs(self) -> list[Any]:
        """Return the values that the run yielded as outputs, oldest first."""
        return [event.data for event in self if event.type == "output"]

    def get_intermediate_outputs(self) -> list[Any]:
        """Return the values of the intermediate outputs, oldest first: values that were reported during the run and are not its result."""
        return [event.data for event in self if event.type == "intermediate"]

    def get_request_info_events(self) -> list[WorkflowEvent[Any]]:
        """Return the `request_info` events of the run: its requests for a response of the caller, oldest first."""
        return [event for event in self if event.type == "request_info"]

    def get_final_state(self) -> WorkflowRunState:
        """Return the last state that the run reported.

        Raises:
            RuntimeError: The run reported no state.
        """
        if not self._status_events or self._status_events[-1].state is None:
            raise RuntimeError("The run reported no state.")
        return self._status_events[-1].state

    def status_timeline(self) -> list[WorkflowEvent[Any]]:
        """Return all `status` events of the run (changes of its state), oldest first."""
        return list(self._status_events)
