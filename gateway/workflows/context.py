"""`WorkflowContext`: how an executor acts while it handles one message.

Made by `runner` for each delivery. Messages are sent when the round ends, in the order of deliveries, whatever executor
was faster; outputs, requests and events are heard at once.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Awaitable, Callable, Mapping, Set
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Generic, Never

from typing_extensions import TypeVar

from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.context import CallContext
from gateway.workflows.events import RESERVED_TYPES, WorkflowEvent, WorkflowEventSource
from gateway.workflows.messages import State, WorkflowMessage
from gateway.workflows.tracing import traced_send

if TYPE_CHECKING:
    from gateway.workflows.executor import Executor

OutT = TypeVar("OutT", default=Any)
W_OutT = TypeVar("W_OutT", default=Never)

_SIMPLE = (str, int, float, bool, bytes, type(None))


class Board:
    """What every context of a run shares with its runner."""

    def __init__(
        self, state: State, emit: Callable[[WorkflowEvent[Any]], Awaitable[None]], call: CallContext, *, is_streaming: bool
    ) -> None:
        self.state = state
        self.emit = emit
        self.call = call
        self.is_streaming = is_streaming
        self.executor_ids: Set[str] = frozenset()
        self.pending: dict[str, WorkflowEvent[Any]] = {}
        """Requests without a response, by id."""

    async def yielded(self, executor_id: str, output: Any) -> None:
        """Replaced by the runner, which knows which outputs count."""


class WorkflowContext(Generic[OutT, W_OutT]):
    """One delivery's way to act on its run: `OutT` is what it sends on, `W_OutT` what it yields."""

    def __init__(
        self, executor: Executor, source_executor_ids: list[str], board: Board, *, label: str = "", request_id: str | None = None
    ) -> None:
        """Made by the runner. `label` is the delivery's own name within the run, the same at every attempt of a durable task."""
        self._executor = executor
        self._source_executor_ids = source_executor_ids
        self._board = board
        self._request_id = request_id
        self._label = label
        self._asked = 0
        durable = board.call.durable
        self._call = board.call if durable is None else dataclasses.replace(board.call, durable=durable.scoped(label))
        self._sent: list[WorkflowMessage] = []
        self._yielded: list[Any] = []

    @property
    def executor_id(self) -> str:
        """The executor that handles the message."""
        return self._executor.id

    @property
    def request_id(self) -> str | None:
        """Which request the message answers, in a response handler."""
        return self._request_id

    @property
    def call(self) -> CallContext:
        """The call this run serves: the way to ask and tell the caller. Derive with `child` for calls of tools."""
        return self._call

    @property
    def state(self) -> State:
        """The values that executors share."""
        return self._board.state

    @property
    def source_executor_ids(self) -> list[str]:
        """Who sent the message; `["Workflow"]` for the first one."""
        return self._source_executor_ids

    def get_source_executor_id(self) -> str:
        """Who sent the message.

        Raises:
            RuntimeError: Several did.
        """
        if len(self._source_executor_ids) > 1:
            raise RuntimeError("The message has several sources; read source_executor_ids.")
        return self._source_executor_ids[0]

    async def send_message(self, message: OutT, target_id: str | None = None) -> None:
        """Send along every outgoing edge, or only to `target_id`; delivered in the next round."""
        sent = WorkflowMessage(message, self._executor.id, target_id)
        if OBSERVABILITY_SETTINGS.enable_instrumentation:
            sent.sent_in = traced_send(message, target_id)
        self._sent.append(sent)

    async def yield_output(self, output: W_OutT) -> None:
        """Give an output of the workflow. It reaches the caller where the workflow selects this executor."""
        self._yielded.append(copied(output))
        await self._board.yielded(self._executor.id, output)

    async def add_event(self, event: WorkflowEvent[Any]) -> None:
        """Report a `warning`, `error` or other event of one's own; kinds that the engine reports become a warning."""
        if event.type in RESERVED_TYPES and event.origin is WorkflowEventSource.EXECUTOR:
            text = f"Executor {self._executor.id!r} reported {event.type!r} itself, which is the engine's to report; it was ignored."
            event = WorkflowEvent.warning(text)
        await self._board.emit(event)

    async def report_intermediate(self, output: Any) -> None:
        """Report an output on the way, whatever the workflow selects; for executors that run something themselves."""
        await self._board.emit(WorkflowEvent[Any]("intermediate", output, self._executor.id, origin=WorkflowEventSource.FRAMEWORK))

    async def request_info(self, request_data: Any, response_type: Any, *, request_id: str | None = None) -> None:
        """Ask whoever runs the workflow; a method marked `@response_handler` gets the answer in a later round.

        `request_id` names the request; unknown to the run so far.
        """
        self._asked += 1
        await self._put_request(request_id or str(uuid.uuid4()), request_data, response_type, f"{self._label}.{self._asked}")

    def free_request_id(self, request_id: str) -> str:
        """Return this id, or another one if a request of this id by another executor waits for an answer.

        The ids of an agent's calls are unique in its own conversation only, and those of an inner workflow's requests in that workflow.
        """
        event = self._board.pending.get(request_id)
        is_free = event is None or event.source_executor_id == self._executor.id
        return request_id if is_free else f"{self._executor.id}:{request_id}"

    async def pass_request(self, event: WorkflowEvent[Any], *, request_id: str, data: Any) -> None:
        """Pass on a request of a workflow inside this executor. The question's name starts with this delivery's label."""
        await self._put_request(request_id, data, event.response_type, f"{self._label}/{event.question}")

    async def _put_request(self, request_id: str, request_data: Any, response_type: Any, question: str) -> None:
        """Add a pending request and report it. `question` is its name in a durable task."""
        executor_id = self._executor.id
        event = WorkflowEvent[Any].request_info(request_id, executor_id, request_data, response_type, question=question)
        self._board.pending[event.request_id] = event
        await self._board.emit(event)

    def get_state(self, key: str, default: Any = None) -> Any:
        """A shared value, as last written."""
        return self._board.state.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        """Write a shared value. Undone when the round fails; goes into checkpoints."""
        self._board.state.set(key, value)

    def get_sent_messages(self) -> list[Any]:
        """What was sent so far."""
        return [message.data for message in self._sent]

    def get_yielded_outputs(self) -> list[Any]:
        """What was yielded so far."""
        return list(self._yielded)

    def are_by_executor(self, values: Mapping[str, Any]) -> bool:
        """Whether keyword arguments for agents are given by executor id, rather than for all of them."""
        return bool(self._board.executor_ids & values.keys())

    def is_streaming(self) -> bool:
        """Whether the run is seen event by event, so that parts are worth yielding."""
        return self._board.is_streaming

    @property
    def sent(self) -> list[WorkflowMessage]:
        """The messages for the next round; the runner's."""
        return self._sent


def copied(value: Any) -> Any:
    """A copy for events, so that what an executor does to a value later does not change what was reported."""
    if isinstance(value, _SIMPLE):
        return value
    try:
        return deepcopy(value)
    except Exception:  # what cannot be copied is reported as it is
        return value
