"""`WorkflowContext`: how an executor sends, yields, asks and shares state while it handles one message.

`superstep_runner` makes a context for each message that is delivered to an executor. Sent messages are delivered in the next round, in
an order that does not depend on the speed of the executors. Outputs, requests and events are reported at once.
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
    """State and functions of a run that all its `WorkflowContext` objects share."""

    state: State
    pending: dict[str, WorkflowEvent[Any]]
    """Requests without a response, by id."""
    executor_ids: Set[str]
    call: CallContext
    _: dataclasses.KW_ONLY
    is_streaming: bool
    emit: OnEvent
    yield_output: Callable[[str, Any], Awaitable[None]]
    """Reports an output of the executor with this id, if the workflow selects it."""


class WorkflowContext(Generic[OutT, W_OutT]):
    """What an executor uses while it handles one message. `OutT` is the type of sent messages, `W_OutT` the type of yielded outputs."""

    def __init__(
        self, executor_id: str, source_executor_ids: list[str], scope: RunScope, *, label: str = "", request_id: str | None = None
    ) -> None:
        """`label` names this delivery of a message within the run. The label is the same at every attempt of a durable task."""
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
        """The id of the executor that handles the message."""
        return self._executor_id

    @property
    def request_id(self) -> str | None:
        """In a response handler, the id of the request that the message answers."""
        return self._request_id

    @property
    def call(self) -> CallContext:
        """The tool call that this run serves. Use `call.child()` for calls of tools."""
        return self._call

    @property
    def state(self) -> State:
        """The state that all executors of the workflow share."""
        return self._scope.state

    @property
    def source_executor_ids(self) -> list[str]:
        """Ids of the executors that sent the message; `["Workflow"]` for the run's first message."""
        return self._source_executor_ids

    def get_source_executor_id(self) -> str:
        """Return the id of the executor that sent the message.

        Raises:
            RuntimeError: Several executors sent it.
        """
        if len(self._source_executor_ids) > 1:
            raise RuntimeError("The message has several sources; read source_executor_ids.")
        return self._source_executor_ids[0]

    async def send_message(self, message: OutT, target_id: str | None = None) -> None:
        """Send a message along every outgoing edge, or only to the executor `target_id`. The message is delivered in the next round."""
        sent = WorkflowMessage(message, self._executor_id, target_id)
        if OBSERVABILITY_SETTINGS.enable_instrumentation:
            sent.sent_in = traced_send(message, target_id)
        self._sent.append(sent)

    async def yield_output(self, output: W_OutT) -> None:
        """Yield an output of the workflow. The caller gets it if the workflow selects this executor's outputs."""
        self._yielded.append(copied(output))
        await self._scope.yield_output(self._executor_id, output)

    async def add_event(self, event: WorkflowEvent[Any]) -> None:
        """Report an event. A type that only the engine may report becomes a warning."""
        if event.type in RESERVED_TYPES and event.origin is WorkflowEventSource.EXECUTOR:
            text = f"Executor {self._executor_id!r} reported {event.type!r}, which only the engine may report; the event was dropped."
            event = WorkflowEvent.warning(text)
        await self._scope.emit(event)

    async def report_intermediate(self, output: Any) -> None:
        """Report an intermediate output, even if the workflow does not select this executor. For executors that run another workflow."""
        await self._scope.emit(WorkflowEvent[Any]("intermediate", output, self._executor_id, origin=WorkflowEventSource.FRAMEWORK))

    async def request_info(self, request_data: Any, response_type: Any, *, request_id: str | None = None) -> None:
        """Ask the caller of the workflow. A method marked `@response_handler` gets the response in a later round.

        `request_id` must be new in this run.
        """
        self._request_count += 1
        question = f"{self._label}.{self._request_count}"
        await self._add_request(request_id or str(uuid.uuid4()), request_data, response_type, question)

    def free_request_id(self, request_id: str) -> str:
        """Return `request_id`, or another id if a request of another executor with this id is pending.

        Ids of an agent's requests are unique only in its conversation, and ids of an inner workflow's requests only in that workflow.
        """
        event = self._scope.pending.get(request_id)
        is_free = event is None or event.source_executor_id == self._executor_id
        return request_id if is_free else f"{self._executor_id}:{request_id}"

    async def pass_request(self, event: WorkflowEvent[Any], *, request_id: str, data: Any) -> None:
        """Make a request of a workflow that runs inside this executor a request of this run.

        The name of its question in a durable task starts with the label of this delivery.
        """
        await self._add_request(request_id, data, event.response_type, f"{self._label}/{event.question}")

    async def _add_request(self, request_id: str, request_data: Any, response_type: Any, question: str) -> None:
        event = WorkflowEvent[Any].request_info(request_id, self._executor_id, request_data, response_type, question=question)
        self._scope.pending[event.request_id] = event
        await self._scope.emit(event)

    def get_state(self, key: str, default: Any = None) -> Any:
        """Return the shared value that was last written under the key, also in this round."""
        return self._scope.state.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        """Write a shared value. The write is undone if the round fails; checkpoints contain it."""
        self._scope.state.set(key, value)

    def get_sent_messages(self) -> list[Any]:
        """Return the data of the messages that were sent so far."""
        return [message.data for message in self._sent]

    def get_yielded_outputs(self) -> list[Any]:
        """Return the outputs that were yielded so far."""
        return list(self._yielded)

    def are_by_executor(self, values: Mapping[str, Any]) -> bool:
        """Return whether keyword arguments for agents are given by executor id: some key is the id of an executor."""
        return bool(self._scope.executor_ids & values.keys())

    def is_streaming(self) -> bool:
        """Return whether the caller reads events while the run continues, so that partial outputs are useful."""
        return self._scope.is_streaming

    @property
    def sent(self) -> list[WorkflowMessage]:
        """Messages that were sent, for delivery in the next round. `superstep_runner` reads them."""
        return self._sent


def copied(value: Any) -> Any:
    """Return a copy for an event, so that later changes of the value do not change the event."""
    if isinstance(value, _SIMPLE):
        return value
    try:
        return deepcopy(value)
    except Exception:  # a value that cannot be copied is reported itself
        return value
