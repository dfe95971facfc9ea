"""`Runner`: one run of a graph: start, rounds (supersteps) until no messages are left, end.

In a round everything that waits is delivered: lanes of one sender, edge group and target in order, lanes side by side.
Shared state is committed when the round ends, then a checkpoint is taken. Does not decide who hears events (`workflow`,
`stream`); what lives longer than one run is in `RunState`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from gateway.errors import CODE_ERRORS, WorkflowConvergenceException, WorkflowFailed, only_cause, without_exit
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.context import CallContext
from gateway.workflows.checkpoints import CheckpointID, CheckpointStorage
from gateway.workflows.context import Board, WorkflowContext, copied
from gateway.workflows.edges import EdgeGroup, FanInEdgeGroup, internal_source
from gateway.workflows.events import WorkflowErrorDetails, WorkflowEvent, WorkflowRunState
from gateway.workflows.executor import Executor
from gateway.workflows.messages import MessageType, State, WorkflowMessage
from gateway.workflows.snapshots import take
from gateway.workflows.tracing import BUFFERED, CONDITION_FALSE, WRONG_TARGET, WRONG_TYPE, traced_delivery, traced_start, traced_step

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from gateway.workflows.workflow import Workflow

logger = logging.getLogger(__name__)

DEFAULT_MAX_ITERATIONS = 100
"""Rounds of one run; a graph that is still busy then is taken for an endless loop (WF2)."""

START_SOURCE = "Workflow"
"""Who sends the first message."""

OnEvent = Callable[[WorkflowEvent[Any]], Awaitable[None]]
"""Hears each event as it happens, inside the executor that caused it; must not raise."""


@dataclass(slots=True)
class RunState:
    """What a workflow carries from round to round and from run to run."""

    shared: State = field(default_factory=State)
    messages: list[WorkflowMessage] = field(default_factory=list[WorkflowMessage])
    """For the next round, in order of sending."""
    pending: dict[str, WorkflowEvent[Any]] = field(default_factory=dict[str, WorkflowEvent[Any]])
    """Requests without a response."""
    waiting: dict[int, dict[str, list[Any]]] = field(default_factory=dict[int, dict[str, list[Any]]])
    """What fan-ins have got so far: by edge group, by source."""
    traversals: dict[int, int] = field(default_factory=dict[int, int])
    """Messages carried so far, by edge group; only of edges with a limit."""
    iteration: int = 0


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message for one executor in one round."""

    message: WorkflowMessage
    source_ids: list[str]


class Runner:
    """One run; call `run` once."""

    def __init__(
        self, workflow: Workflow, emit: OnEvent, call: CallContext, *, is_streaming: bool, storage: CheckpointStorage | None
    ) -> None:
        self._workflow = workflow
        self._state = workflow.run_state
        self._emit = emit
        self._storage = storage
        self._last_checkpoint: CheckpointID | None = None
        self._is_continued = False
        self._says_pending = False
        self._sent_in: dict[int, tuple[SpanContext, ...]] = {}
        """In which spans what fan-ins wait with was sent, where telemetry is on."""
        self._board = Board(self._state.shared, self._report, call, is_streaming=is_streaming)
        self._board.pending = self._state.pending
        self._board.yielded = self._yielded
        self._board.executor_ids = workflow.executors.keys()

    async def run(self, begin: Callable[[Runner], Awaitable[None]]) -> None:
        """Run `begin`, then rounds until nothing waits.

        Raises:
            WorkflowConvergenceException: There were too many rounds.
            Exception: Whatever an executor raised, after the events that tell of it.
        """
        await self._emit(WorkflowEvent[Any].started())
        await self._status(WorkflowRunState.IN_PROGRESS)
        try:
            await begin(self)
            await self._rounds()
        except Exception as error:  # the boundary to executors' code: told as events, then passed on as it is
            cause = only_cause(error)
            self._state.shared.discard()
            self._state.messages.clear()
            executor_id = failed_executor(cause)
            await self._emit(WorkflowEvent[Any].failed(WorkflowErrorDetails.from_exception(cause, executor_id=executor_id)))
            await self._status(WorkflowRunState.FAILED)
            raise cause from cause.__cause__
        await self._status(WorkflowRunState.IDLE_WITH_PENDING_REQUESTS if self._state.pending else WorkflowRunState.IDLE)

    # -- ways to begin -----------------------------------------------------------------------------------------

    async def deliver_first(self, message: Any) -> None:
        """Hand the run's message to the start executor, before the first round."""
        self._state.iteration = 0
        self._state.traversals.clear()
        first = WorkflowMessage(message.data if isinstance(message, WorkflowMessage) else message, START_SOURCE)
        executor = self._workflow.get_start_executor()
        if executor.joins:
            first = WorkflowMessage([first.data], START_SOURCE)
        if OBSERVABILITY_SETTINGS.enable_instrumentation:
            traced_start(executor.id)
        await self._lanes([(executor, [Delivery(first, [START_SOURCE])])], 0)
        self._state.shared.commit()
        if self._state.messages:
            await self._checkpoint()

    async def repeat_requests(self) -> None:
        """After a checkpoint was taken back: tell its requests again, so that the caller knows what to answer."""
        self._is_continued = True
        for event in list(self._state.pending.values()):
            await self._report(event)

    def respond(self, responses: dict[str, Any]) -> None:
        """Queue answers to requests; checked before."""
        for request_id, response in responses.items():
            event = self._state.pending.pop(request_id)
            source, target = internal_source(event.source_executor_id), event.source_executor_id
            self._state.messages.append(WorkflowMessage(response, source, target, MessageType.RESPONSE, event))

    # -- rounds ------------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        state, limit = self._state, self._workflow.max_iterations
        if self._is_continued and not state.messages:
            return  # an empty round would shift the numbers of later rounds, which are part of the names of recorded steps
        while True:
            if state.iteration >= limit:
                if state.messages:
                    raise WorkflowConvergenceException(f"The workflow did not come to rest within {limit} rounds (max_iterations).")
                return
            number = state.iteration + 1
            await self._emit(WorkflowEvent[Any].superstep_started(number))
            messages, state.messages = state.messages, []
            await self._lanes(await self._route(messages), number)
            state.iteration = number
            state.shared.commit()
            await self._checkpoint()
            await self._emit(WorkflowEvent[Any].superstep_completed(number))
            if not state.messages:
                return

    async def _route(self, messages: Sequence[WorkflowMessage]) -> list[tuple[Executor, list[Delivery]]]:
        """What each executor gets, in lanes that may run side by side; by order of messages, then of edges."""
        lanes: dict[tuple[Any, ...], tuple[Executor, list[Delivery]]] = {}
        for message in messages:
            groups = self._workflow.groups_of(message.source_id)
            if message.target_id is not None and not any(message.target_id in group.target_executor_ids for _, group in groups):
                text = f"Executor {message.source_id!r} sends to {message.target_id!r}, but no edge leads there; the message is lost."
                logger.warning("workflow %s: %s", self._workflow.name, text)
                await self._report(WorkflowEvent[Any].warning(text))
                continue
            taken = 0
            for index, group in groups:
                for target_id, delivery in await self._decided(index, group, message):
                    taken += 1
                    target = self._workflow.executors[target_id]
                    key = (target_id,) if target.joins else (message.source_id, index, target_id)
                    lanes.setdefault(key, (target, []))[1].append(delivery)
            if groups and not taken:
                logger.debug("no edge of %r takes a message of type %s", message.source_id, type(message.data).__name__)
        return [(target, _joined(lane) if target.joins else lane) for target, lane in lanes.values()]

    async def _decided(self, index: int, group: EdgeGroup, message: WorkflowMessage) -> Sequence[tuple[str, Delivery]]:
        decision = self._through(index, group, message)
        if not OBSERVABILITY_SETTINGS.enable_instrumentation:
            return await decision
        return await traced_delivery(group, message, decision, lambda: self._why_not(group, message))

    def _why_not(self, group: EdgeGroup, message: WorkflowMessage) -> str:
        """Why an edge group let a message go nowhere, for who reads traces."""
        targets = [name for name in group.target_executor_ids if message.target_id in (None, name)]
        if not targets:
            return WRONG_TARGET
        if isinstance(group, FanInEdgeGroup):
            return BUFFERED if self._joins(targets[0], message) else WRONG_TYPE
        return CONDITION_FALSE if any(self._takes(name, message) for name in targets) else WRONG_TYPE

    async def _through(self, index: int, group: EdgeGroup, message: WorkflowMessage) -> list[tuple[str, Delivery]]:
        """Where one edge group lets one message go."""
        if message.target_id is not None and message.target_id not in group.target_executor_ids:
            return []
        if isinstance(group, FanInEdgeGroup):
            return self._gather(index, group, message)
        try:
            edges = await group.select(message.data)
        except CODE_ERRORS as error:  # a condition or selection is the user's code
            raise failing(error, message.source_id) from error.__cause__
        found: list[tuple[str, Delivery]] = []
        for edge in edges:
            if message.target_id not in (None, edge.target_id) or not self._takes(edge.target_id, message):
                continue
            if edge.max_traversals is not None:
                used = self._state.traversals.get(index, 0)
                if used >= edge.max_traversals:
                    continue
                self._state.traversals[index] = used + 1
            found.append((edge.target_id, Delivery(message, [message.source_id])))
        return found

    def _takes(self, target_id: str, message: WorkflowMessage) -> bool:
        target = self._workflow.executors[target_id]
        if target.joins and message.type is MessageType.STANDARD:
            message = WorkflowMessage([message.data], message.source_id)
        return target.can_handle(message) or message.type is MessageType.RESPONSE

    def _gather(self, index: int, group: FanInEdgeGroup, message: WorkflowMessage) -> list[tuple[str, Delivery]]:
        target_id, sources = group.edges[0].target_id, group.source_executor_ids
        if not self._joins(target_id, message):
            return []
        box = self._state.waiting.setdefault(index, {})
        box.setdefault(message.source_id, []).append(message.data)
        if message.sent_in:
            self._sent_in[index] = (*self._sent_in.get(index, ()), *message.sent_in)
        if any(source not in box for source in sources):
            return []
        del self._state.waiting[index]
        data = [item for source in sources for item in box[source]]
        joined = WorkflowMessage(data, group.type, sent_in=self._sent_in.pop(index, ()))
        return [(target_id, Delivery(joined, sources))]

    def _joins(self, target_id: str, message: WorkflowMessage) -> bool:
        """Whether the target of a fan-in takes lists of such messages."""
        return self._workflow.executors[target_id].can_handle(WorkflowMessage([message.data], message.source_id))

    async def _lanes(self, lanes: list[tuple[Executor, list[Delivery]]], number: int) -> None:
        """Deliver everything in the round of this number (0: the start); the first failure cancels the rest and is raised."""
        contexts: list[list[WorkflowContext[Any, Any]]] = [[] for _ in lanes]
        labels = self._labels(lanes, number)
        if len(lanes) == 1:
            await self._lane(*lanes[0], contexts[0], labels[0])
        elif lanes:
            try:
                async with anyio.create_task_group() as tasks:
                    for (target, lane), made, label in zip(lanes, contexts, labels, strict=True):
                        tasks.start_soon(self._lane, target, lane, made, label)
            except ExceptionGroup as group:
                raise first_failure(group) from None
        for made in contexts:
            for ctx in made:
                self._state.messages += ctx.sent

    def _labels(self, lanes: list[tuple[Executor, list[Delivery]]], number: int) -> list[list[str]]:
        """A name for each delivery, by executor, round and order: the same whenever the round runs again."""
        counts: dict[str, int] = {}
        if (durable := self._board.call.durable) is not None and durable.version == 1:
            number = self._state.iteration
        labels: list[list[str]] = []
        for target, lane in lanes:
            first = counts.get(target.id, 0)
            counts[target.id] = first + len(lane)
            labels.append([f"{target.id}@{number}.{first + order}" for order in range(len(lane))])
        return labels

    async def _lane(self, target: Executor, lane: list[Delivery], made: list[WorkflowContext[Any, Any]], labels: list[str]) -> None:
        for delivery, label in zip(lane, labels, strict=True):
            message = delivery.message
            event = message.original_request_info_event
            request_id = event.request_id if event else None
            ctx = WorkflowContext[Any, Any](target, delivery.source_ids, self._board, label=label, request_id=request_id)
            await self._emit(WorkflowEvent[Any].executor_invoked(target.id, copied(message.data)))
            try:
                step = target.find(message)(message.data, ctx)
                if OBSERVABILITY_SETTINGS.enable_instrumentation:
                    step = traced_step(target.id, type(target).__name__, message, step)
                await step
            except CODE_ERRORS as error:  # the boundary to an executor's code
                details = WorkflowErrorDetails.from_exception(error, executor_id=target.id)
                await self._emit(WorkflowEvent[Any].executor_failed(target.id, details))
                raise failing(error, target.id) from error.__cause__
            done = [*map(copied, ctx.get_sent_messages()), *ctx.get_yielded_outputs()]
            await self._emit(WorkflowEvent[Any].executor_completed(target.id, done or None))
            made.append(ctx)

    # -- telling -----------------------------------------------------------------------------------------------

    async def _yielded(self, executor_id: str, output: Any) -> None:
        kind = self._workflow.classify(executor_id)
        if kind is not None:
            await self._emit(WorkflowEvent(kind, output, executor_id))

    async def _report(self, event: WorkflowEvent[Any]) -> None:
        await self._emit(event)
        if event.type == "request_info" and not self._says_pending:
            self._says_pending = True
            await self._status(WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS)

    async def _status(self, state: WorkflowRunState) -> None:
        self._workflow.note_status(state)
        await self._emit(WorkflowEvent[Any].status(state))

    async def _checkpoint(self) -> None:
        if self._storage is None:
            return
        checkpoint = await take(self._workflow, previous=self._last_checkpoint)
        self._last_checkpoint = await self._storage.save(checkpoint)


_EXECUTOR = "__workflow_executor__"


def failing(raised: BaseException, executor_id: str) -> Exception:
    """Return an error of `CODE_ERRORS` with the id of its executor. An `Exception` keeps its class, because callers of `run` catch it."""
    error = without_exit(raised, lambda text: WorkflowFailed(text, executor=executor_id))
    if failed_executor(error) is None:
        try:
            setattr(error, _EXECUTOR, executor_id)
        except AttributeError:
            logger.debug("%s cannot remember its executor", type(error).__name__)
    return error


def failed_executor(error: BaseException) -> str | None:
    """Whose error it is."""
    return getattr(error, _EXECUTOR, None)


def first_failure(group: ExceptionGroup[Exception]) -> Exception:
    """The first failure of a round: the others came from work that it was about to cancel."""
    first = group.exceptions[0]
    return first_failure(first) if isinstance(first, ExceptionGroup) else first  # pyright: ignore[reportUnknownArgumentType]


def _joined(lane: list[Delivery]) -> list[Delivery]:
    """One delivery of all messages of an executor that joins."""
    standard = [item for item in lane if item.message.type is MessageType.STANDARD]
    rest = [item for item in lane if item.message.type is not MessageType.STANDARD]
    if not standard:
        return rest
    sources = [source for item in standard for source in item.source_ids]
    data: list[Any] = []
    for item in standard:
        # A fan-in already made a list of what its sources sent.
        data += item.message.data if len(item.source_ids) > 1 else [item.message.data]
    sent_in = tuple(context for item in standard for context in item.message.sent_in)
    return [Delivery(WorkflowMessage(data, sources[0], sent_in=sent_in), sources), *rest]
