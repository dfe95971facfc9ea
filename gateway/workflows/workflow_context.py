"""`WorkflowContext`: the object through which an executor sends messages, yields outputs, makes requests and shares state.

`superstep_runner` creates a context for each message that is delivered to an executor. Sent messages are delivered in the next superstep,
in an order that does not depend on the speed of the executors. Outputs, requests and events are reported immediately.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Awaitable, Callable, Mapping, Set
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Generic, Never

from typing_extensions import TypeVar

from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.context import CallContext
from gateway.workflows.events import RESERVED_TYPES, OnEvent, WorkflowEvent, WorkflowEventSource
from gateway.workflows.messages import WorkflowMessage
from gateway.workflows.run_state import State
from gateway.workflows.tracing import traced_send

OutT = TypeVar("OutT", default=Any)
W_OutT = TypeVar("W_OutT", default=Never)

_SIMPLE = (str, int, float, bool, bytes, type(None))


@dataclass(frozen=True, slots=True, eq=False)
class RunScope:
    """State and functions of a workflow run that the `WorkflowContext` objects of all its executors share."""

    state: State
    pending: dict[str, WorkflowEvent[Any]]
    """Requests of the workflow to its caller that have no response yet, by request id."""
    executor_ids: Set[str]
    call: CallContext
    _: dataclasses.KW_ONLY
    is_streaming: bool
    emit: OnEvent
    yield_output: Callable[[str, Any], Awaitable[None]]
    """Async function (executor id, output) that reports an output to the caller, if the workflow selects outputs of this executor."""


class WorkflowContext(Generic[OutT, W_OutT]):
    """The context in which an executor handles one message: it sends messages, yields outputs, makes requests and shares state.

    `OutT` is the type of sent messages, `W_OutT` the type of yielded outputs.
    """

    def __init__(
        self, executor_id: str, source_executor_ids: list[str], scope: RunScope, *, label: str = "", request_id: str | None = None
    ) -> None:
        """Create the context for one message that is delivered to the executor `executor_id`.

        `label` is the name of this delivery within the run. If the run is part of a durable task, which resumes after a restart, the label
        is the same when the delivery is repeated. If the message is a response, `request_id` is the id of the request that it answers.
        """
        self._executor_id = executor_id
        self._source_executor_ids = source_executor_ids
        self._scope = scope
        self._request_id = request_id
        self._label = label
        self._request_count = 0
        durable = scope.call.ports.durable
        self._call = scope.call if durable is None else scope.call.with_durable(durable.scoped(label))
        self._sent: list[WorkflowMessage] = []
        self._yielded: list[Any] = []

    @property
    def executor_id(self) -> str:
        """Id of the executor that handles the message."""
        return self._executor_id

    @property
    def request_id(self) -> str | None:
        """In a response handler, the id of the request that the response answers; otherwise `None`."""
        return self._request_id

    @property
    def call(self) -> CallContext:
        """The context of the tool call that this run serves. Use `call.child()` for calls of other tools."""
        return self._call

    @property
    def state(self) -> State:
        """The key-value store that all executors of the workflow share. `get_state` and `set_state` access it, too."""
        return self._scope.state

    @property
    def source_executor_ids(self) -> list[str]:
        """Ids of the executors that sent the message; `["Workflow"]` for the run's first message.

        In a response handler, it is `["internal:ID"]` with the id of this executor, which made the request.
        """
        return self._source_executor_ids

    def get_source_executor_id(self) -> str:
        """Return the id of the executor that sent the message.

        Raises:
            RuntimeError: The message is a list that the engine combined from several messages.
        """
        if len(self._source_executor_ids) > 1:
            raise RuntimeError("The message has several sources; read source_executor_ids.")
        return self._source_executor_ids[0]

    async def send_message(self, message: OutT, target_id: str | None = None) -> None:
        """Send a message along every outgoing edge of this executor, or only to the executor `target_id`.

        The message is delivered in the next superstep, which begins when all executors have handled their current messages.
        """
        sent = WorkflowMessage(message, self._executor_id, target_id)
        if OBSERVABILITY_SETTINGS.enable_instrumentation:
            sent.sent_in = traced_send(message, target_id)
        self._sent.append(sent)

    async def yield_output(self, output: W_OutT) -> None:
        """Yield an output of the workflow. The caller of the workflow gets the output if the workflow selects outputs of this executor."""
        self._yielded.append(copied(output))
        await self._scope.yield_output(self._executor_id, output)

    async def add_event(self, event: WorkflowEvent[Any]) -> None:
        """Report an event to the caller of the run.

        An event with `origin` `EXECUTOR` whose type only the engine may report (`RESERVED_TYPES`) is replaced by a `warning` event.
        """
        if event.type in RESERVED_TYPES and event.origin is WorkflowEventSource.EXECUTOR:
            text = f"Executor {self._executor_id!r} reported {event.type!r}, which only the engine may report; the event was dropped."
            event = WorkflowEvent.warning(text)
        await self._scope.emit(event)

    async def report_intermediate(self, output: Any) -> None:
        """Report an intermediate output: a value that the caller gets during the run and that is not part of the workflow's result.

        The value is reported even if the workflow does not select outputs of this executor. Executors that run another workflow call this
        method.
        """
        await self._scope.emit(WorkflowEvent[Any]("intermediate", output, self._executor_id, origin=WorkflowEventSource.FRAMEWORK))

    async def request_info(self, request_data: Any, response_type: Any, *, request_id: str | None = None) -> None:
        """Request a response of type `response_type` from the caller of the workflow. Return without waiting for the response.

        When the caller continues the workflow with the response, the executor's method marked `@response_handler` gets the response. If
        several methods are marked, the types of `request_data` and the response decide. `request_id` must be unique in this run; by default
        it is random.
        """
        self._request_count += 1
        question = f"{self._label}.{self._request_count}"
        await self._add_request(request_id or str(uuid.uuid4()), request_data, response_type, question)

    def free_request_id(self, request_id: str) -> str:
        """Return an id for a new request: `request_id`, or a longer id if another executor has an open request with this id.

        Use it for requests of agents, whose ids are unique only in the agent's conversation, and of inner workflows, whose ids are unique
        only in that workflow.
        """
        event = self._scope.pending.get(request_id)
        is_free = event is None or event.source_executor_id == self._executor_id
        return request_id if is_free else f"{self._executor_id}:{request_id}"

    async def pass_request(self, event: WorkflowEvent[Any], *, request_id: str, data: Any) -> None:
        """Forward a request of an inner workflow, which this executor runs, to the caller of this workflow.

        `event` is the event of the inner workflow. `request_id` and `data` are the id and the data of the request in this workflow. A
        durable task (background call that resumes after a restart) records the request under the label of this delivery and the request's
        name in the inner workflow.
        """
        await self._add_request(request_id, data, event.response_type, f"{self._label}/{event.question}")

    async def _add_request(self, request_id: str, request_data: Any, response_type: Any, question: str) -> None:
        event = WorkflowEvent[Any].request_info(request_id, self._executor_id, request_data, response_type, question=question)
        self._scope.pending[event.request_id] = event
        await self._scope.emit(event)

    def get_state(self, key: str, default: Any = None) -> Any:
        """Return the value that was last written under the key by any executor, or `default`. Writes are visible immediately."""
        return self._scope.state.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        """Write a value that all executors of the workflow can read. Checkpoints contain it.

        The write is undone if the current superstep (round of the run) fails.
        """
        self._scope.state.set(key, value)

    def get_sent_messages(self) -> list[Any]:
        """Return the data of the messages that the executor has sent through this context so far."""
        return [message.data for message in self._sent]

    def get_yielded_outputs(self) -> list[Any]:
        """Return copies of the outputs that the executor has yielded through this context so far."""
        return list(self._yielded)

    def are_by_executor(self, values: Mapping[str, Any]) -> bool:
        """Return whether `values`, keyword arguments for agents, are grouped by executor: at least one key is an executor's id."""
        return bool(self._scope.executor_ids & values.keys())

    def is_streaming(self) -> bool:
        """Return whether the caller reads the run's events as a stream, so that partial outputs are useful."""
        return self._scope.is_streaming

    @property
    def sent(self) -> list[WorkflowMessage]:
        """The messages that the executor has sent through this context. The engine delivers them in the next superstep of the run."""
        return self._sent


def copied(value: Any) -> Any:
    """Return a deep copy of a value for an event, so that later changes of the value do not change the event.

    A value that cannot be copied is returned itself.
    """
    if isinstance(value, _SIMPLE):
        return value
    try:
        return deepcopy(value)
    except Exception:  # `deepcopy` calls methods of user classes, which may raise any exception
        return value
