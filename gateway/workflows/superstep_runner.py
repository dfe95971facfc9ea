"""`SuperstepRunner`: does one run of a graph workflow, in supersteps (rounds) until no messages are left.

A superstep delivers every waiting message. Messages with the same sender, edge group and target form a lane and are delivered one after the
other; the lanes run concurrently. Messages for an executor with `joins` form one lane, in which all but responses are delivered as one
list. At the end of the superstep, the state that executors share is committed and a checkpoint is saved.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from gateway.errors import CODE_ERRORS, WorkflowConvergenceException, only_cause
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.context import CallContext
from gateway.workflows.checkpoints import CheckpointID, CheckpointStorage
from gateway.workflows.edges import EdgeGroup, FanInEdgeGroup, internal_source
from gateway.workflows.events import OnEvent, WorkflowErrorDetails, WorkflowEvent, WorkflowRunState
from gateway.workflows.executor import Executor
from gateway.workflows.executor_failures import failed_executor, failing, first_failure
from gateway.workflows.graph import WorkflowGraph
from gateway.workflows.messages import START_SOURCE, MessageType, WorkflowMessage
from gateway.workflows.snapshots import take_snapshot
from gateway.workflows.tracing import BUFFERED, CONDITION_FALSE, WRONG_TARGET, WRONG_TYPE, traced_delivery, traced_start, traced_step
from gateway.workflows.workflow_context import RunScope, WorkflowContext, copied

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message to deliver to one executor in the current round of the run. `source_ids` are its senders.

    There are several senders if the message is a list that a fan-in (edges from several executors to one) has collected, or that contains
    the messages of a round for an executor with `joins`.
    """

    message: WorkflowMessage
    source_ids: list[str]


Lane = tuple[Executor, list[Delivery]]
"""A pair: an executor, and the messages that it receives one after the other in one superstep (round). Lanes run concurrently."""


class SuperstepRunner:
    """Does one run of a graph workflow. Create an object for each run, and call its method `run` once."""

    def __init__(
        self, graph: WorkflowGraph, emit: OnEvent, call: CallContext, *, is_streaming: bool, storage: CheckpointStorage | None
    ) -> None:
        self._graph = graph
        self._state = graph.run_state
        self._emit = emit
        self._storage = storage
        self._last_checkpoint: CheckpointID | None = None
        self._is_restored = False
        self._reported_pending = False
        self._sent_in: dict[int, tuple[SpanContext, ...]] = {}
        """OpenTelemetry contexts of the messages that each fan-in (edges from several executors) has collected, by index of its group."""
        self._scope = RunScope(
            self._state.shared,
            self._state.pending,
            graph.executors.keys(),
            call,
            is_streaming=is_streaming,
            emit=self._report,
            yield_output=self._yield_output,
        )

    async def run(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Do the run: await `begin`, which queues or delivers the first messages, then do supersteps (rounds) until no messages are left.

        Raises:
            WorkflowConvergenceException: Messages were left after the maximum number of supersteps.
            Exception: Any exception that an executor raised. It is raised after the events that report it.
        """
        await self._emit(WorkflowEvent[Any].started())
        await self._set_status(WorkflowRunState.IN_PROGRESS)
        try:
            await begin()
            await self._rounds()
        except Exception as error:  # executors are user code and may raise any exception
            cause = only_cause(error)
            self._state.discard_round()
            details = WorkflowErrorDetails.from_exception(cause, executor_id=failed_executor(cause))
            await self._emit(WorkflowEvent[Any].failed(details))
            await self._set_status(WorkflowRunState.FAILED)
            raise cause from cause.__cause__
        await self._set_status(WorkflowRunState.IDLE_WITH_PENDING_REQUESTS if self._state.pending else WorkflowRunState.IDLE)

    # -- start of a run ----------------------------------------------------------------------------------------

    async def deliver_first(self, message: Any) -> None:
        """Deliver the message of a new run to the start executor, before the first superstep (round).

        Call this method in the function `begin` that is passed to `run`.
        """
        self._state.iteration = 0
        self._state.traversals.clear()
        data = message.data if isinstance(message, WorkflowMessage) else message
        executor = self._graph.get_start_executor()
        first = WorkflowMessage([data] if executor.joins else data, START_SOURCE)
        if OBSERVABILITY_SETTINGS.enable_instrumentation:
            traced_start(internal_source(executor.id), executor.id)
        await self._deliver([(executor, [Delivery(first, [START_SOURCE])])], 0)
        self._state.shared.commit()
        if self._state.messages:
            await self._checkpoint()

    async def repeat_requests(self) -> None:
        """Emit the open requests of a restored checkpoint again, so that the caller gets the requests to answer."""
        self._is_restored = True
        for event in list(self._state.pending.values()):
            await self._report(event)

    def respond(self, responses: dict[str, Any]) -> None:
        """Queue responses to open requests, given by request id, for the next round of the run. Ids and types must have been checked."""
        for request_id, response in responses.items():
            event = self._state.pending.pop(request_id)
            source, target = internal_source(event.source_executor_id), event.source_executor_id
            self._state.messages.append(WorkflowMessage(response, source, target, MessageType.RESPONSE, event))

    # -- supersteps --------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        state, limit = self._state, self._graph.max_iterations
        if self._is_restored and not state.messages:
            return  # an empty superstep would change the numbers of later supersteps, which are part of the names of recorded steps
        while True:
            if state.iteration >= limit:
                if state.messages:
                    raise WorkflowConvergenceException(
                        f"The workflow still had messages after {limit} rounds. Check it for an endless loop, or raise max_iterations."
                    )
                return
            number = state.iteration + 1
            await self._emit(WorkflowEvent[Any].superstep_started(number))
            messages, state.messages = state.messages, []
            await self._deliver(await self._route(messages), number)
            state.iteration = number
            state.shared.commit()
            await self._checkpoint()
            await self._emit(WorkflowEvent[Any].superstep_completed(number))
            if not state.messages:
                return

    async def _route(self, messages: Sequence[WorkflowMessage]) -> list[Lane]:
        """Decide which executors receive the messages of a superstep (round). Return lanes: pairs of target executor and messages.

        An executor may have several lanes. Messages of a lane are delivered one after the other, lanes concurrently. The lanes have the
        order of the messages, then of the edges. A message that no edge can carry is dropped.
        """
        lanes: dict[tuple[Any, ...], Lane] = {}
        for message in messages:
            groups = self._graph.groups_of(message.source_id)
            if message.target_id is not None and not any(message.target_id in group.target_executor_ids for _, group in groups):
                text = f"Executor {message.source_id!r} sends to {message.target_id!r}, but no edge leads there; the message is dropped."
                logger.warning("workflow message dropped workflow=%s reason=%s", self._graph.name, text)
                await self._report(WorkflowEvent[Any].warning(text))
                continue
            count = 0
            for index, group in groups:
                for target_id, delivery in await self._traced_decision(index, group, message):
                    count += 1
                    target = self._graph.executors[target_id]
                    key = (target_id,) if target.joins else (message.source_id, index, target_id)
                    lanes.setdefault(key, (target, []))[1].append(delivery)
            if groups and not count:
                logger.debug("no edge accepts message executor=%s type=%s", message.source_id, type(message.data).__name__)
        return [(target, _joined(lane) if target.joins else lane) for target, lane in lanes.values()]

    async def _traced_decision(self, index: int, group: EdgeGroup, message: WorkflowMessage) -> Sequence[tuple[str, Delivery]]:
        decision = self._decide(index, group, message)
        if not OBSERVABILITY_SETTINGS.enable_instrumentation:
            return await decision
        return await traced_delivery(group.type, group.id, message, decision, lambda: self._why_not(group, message))

    def _why_not(self, group: EdgeGroup, message: WorkflowMessage) -> str:
        """Return the reason why an edge group did not deliver a message, as a delivery status for traces."""
        targets = [name for name in group.target_executor_ids if message.target_id in (None, name)]
        if not targets:
            return WRONG_TARGET
        if isinstance(group, FanInEdgeGroup):
            return BUFFERED if self._accepts_list(targets[0], message) else WRONG_TYPE
        return CONDITION_FALSE if any(self._accepts(name, message) for name in targets) else WRONG_TYPE

    async def _decide(self, index: int, group: EdgeGroup, message: WorkflowMessage) -> list[tuple[str, Delivery]]:
        """Decide to which executors one edge group delivers one message. Return pairs of an executor's id and the delivery to it."""
        if message.target_id is not None and message.target_id not in group.target_executor_ids:
            return []
        if isinstance(group, FanInEdgeGroup):
            return self._gather(index, group, message)
        try:
            edges = await group.select(message.data)
        except CODE_ERRORS as error:  # conditions and selections are user code
            raise failing(error, message.source_id) from error.__cause__
        found: list[tuple[str, Delivery]] = []
        for edge in edges:
            if message.target_id not in (None, edge.target_id) or not self._accepts(edge.target_id, message):
                continue
            if edge.max_traversals is not None:
                used = self._state.traversals.get(index, 0)
                if used >= edge.max_traversals:
                    continue
                self._state.traversals[index] = used + 1
            found.append((edge.target_id, Delivery(message, [message.source_id])))
        return found

    def _accepts(self, target_id: str, message: WorkflowMessage) -> bool:
        if message.type is MessageType.RESPONSE:
            return True
        target = self._graph.executors[target_id]
        return self._accepts_list(target_id, message) if target.joins else target.can_handle(message)

    def _accepts_list(self, target_id: str, message: WorkflowMessage) -> bool:
        return self._graph.executors[target_id].can_handle(WorkflowMessage([message.data], message.source_id))

    def _gather(self, index: int, group: FanInEdgeGroup, message: WorkflowMessage) -> list[tuple[str, Delivery]]:
        """Collect a message for a fan-in (edges from several executors to one target).

        The target receives the messages as one list when every source has sent a message. Return the delivery of this list, as a pair with
        the target's id, or an empty list if messages of some source are missing, or the target has no handler for a list of such messages.
        """
        target_id, sources = group.edges[0].target_id, group.source_executor_ids
        if not self._accepts_list(target_id, message):
            return []
        collected = self._state.waiting.setdefault(index, {})
        collected.setdefault(message.source_id, []).append(message.data)
        if message.sent_in:
            self._sent_in[index] = (*self._sent_in.get(index, ()), *message.sent_in)
        if any(source not in collected for source in sources):
            return []
        del self._state.waiting[index]
        data = [item for source in sources for item in collected[source]]
        joined = WorkflowMessage(data, group.type, sent_in=self._sent_in.pop(index, ()))
        return [(target_id, Delivery(joined, sources))]

    async def _deliver(self, lanes: list[Lane], number: int) -> None:
        """Deliver the messages of the superstep (round) `number`; 0 is the delivery to the start executor.

        All lanes (an executor with the messages that it receives one after the other) run concurrently.

        Messages that executors send are queued for the next superstep. The first failure cancels the other lanes and is raised.
        """
        contexts: list[list[WorkflowContext[Any, Any]]] = [[] for _ in lanes]
        labels = self._labels(lanes, number)
        if len(lanes) == 1:
            await self._deliver_lane(lanes[0], contexts[0], labels[0])
        elif lanes:
            try:
                async with anyio.create_task_group() as tasks:
                    for lane, made, label in zip(lanes, contexts, labels, strict=True):
                        tasks.start_soon(self._deliver_lane, lane, made, label)
            except ExceptionGroup as group:
                raise first_failure(group) from None
        for made in contexts:
            for ctx in made:
                self._state.messages += ctx.sent

    def _labels(self, lanes: list[Lane], number: int) -> list[list[str]]:
        """Return a name for each message that a superstep delivers, in one list per lane (executor with its messages).

        A name consists of the executor's id, the number of the superstep, and a running number. If the run is part of a durable task
        (background call that resumes after a restart) and repeats the superstep, the names are the same, so that recorded steps are found.
        """
        counts: dict[str, int] = {}
        if (durable := self._scope.call.ports.durable) is not None and durable.version == 1:
            number = self._state.iteration
        labels: list[list[str]] = []
        for target, lane in lanes:
            first = counts.get(target.id, 0)
            counts[target.id] = first + len(lane)
            labels.append([f"{target.id}@{number}.{first + order}" for order in range(len(lane))])
        return labels

    async def _deliver_lane(self, lane: Lane, made: list[WorkflowContext[Any, Any]], labels: list[str]) -> None:
        target, deliveries = lane
        for delivery, label in zip(deliveries, labels, strict=True):
            message = delivery.message
            event = message.original_request_info_event
            request_id = event.request_id if event else None
            ctx = WorkflowContext[Any, Any](target.id, delivery.source_ids, self._scope, label=label, request_id=request_id)
            await self._emit(WorkflowEvent[Any].executor_invoked(target.id, copied(message.data)))
            try:
                step = target.find(message)(message.data, ctx)
                if OBSERVABILITY_SETTINGS.enable_instrumentation:
                    step = traced_step(target.id, type(target).__name__, message, step)
                await step
            except CODE_ERRORS as error:  # executors are user code
                details = WorkflowErrorDetails.from_exception(error, executor_id=target.id)
                await self._emit(WorkflowEvent[Any].executor_failed(target.id, details))
                raise failing(error, target.id) from error.__cause__
            done = [*map(copied, ctx.get_sent_messages()), *ctx.get_yielded_outputs()]
            await self._emit(WorkflowEvent[Any].executor_completed(target.id, done or None))
            made.append(ctx)

    # -- events ------------------------------------------------------------------------------------------------

    async def _yield_output(self, executor_id: str, output: Any) -> None:
        kind = self._graph.classify(executor_id)
        if kind is not None:
            await self._emit(WorkflowEvent(kind, output, executor_id))

    async def _report(self, event: WorkflowEvent[Any]) -> None:
        await self._emit(event)
        if event.type == "request_info" and not self._reported_pending:
            self._reported_pending = True
            await self._set_status(WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS)

    async def _set_status(self, state: WorkflowRunState) -> None:
        self._graph.status = state
        await self._emit(WorkflowEvent[Any].status(state))

    async def _checkpoint(self) -> None:
        if self._storage is None:
            return
        checkpoint = await take_snapshot(self._graph, previous=self._last_checkpoint)
        self._last_checkpoint = await self._storage.save(checkpoint)


def _joined(lane: list[Delivery]) -> list[Delivery]:
    """Combine the messages that an executor gets in a superstep into one message with a list. Responses to requests follow it unchanged."""
    standard = [item for item in lane if item.message.type is MessageType.STANDARD]
    responses = [item for item in lane if item.message.type is not MessageType.STANDARD]
    if not standard:
        return responses
    sources = [source for item in standard for source in item.source_ids]
    data: list[Any] = []
    for item in standard:
        # A message of a fan-in, which has several sources, already contains a list.
        data += item.message.data if len(item.source_ids) > 1 else [item.message.data]
    sent_in = tuple(context for item in standard for context in item.message.sent_in)
    return [Delivery(WorkflowMessage(data, sources[0], sent_in=sent_in), sources), *responses]
