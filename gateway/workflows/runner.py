"""`Runner`: one run of a graph, advanced one round (superstep) at a time.

All messages ready in a round are handled concurrently; what they did counts when the round ends, in message
order. Does not decide who sees events or results (`workflow`), and keeps nothing between rounds outside
`RunState`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

from gateway.errors import GatewayError, WorkflowError, WorkflowFailed
from gateway.json_types import JsonObject
from gateway.tools.context import CallContext
from gateway.workflows.events import WorkflowErrorDetails, WorkflowEvent, WorkflowRunResult, WorkflowRunState
from gateway.workflows.executor import Effects, WorkflowContext
from gateway.workflows.graph import Edge, Graph

MAX_ITERATIONS = 100
"""Rounds of one run; a graph that is still busy then is taken for an endless loop (WF2)."""

OnEvent = Callable[[WorkflowEvent], Awaitable[None]]
"""Hears each event as it happens, inside the executor that caused it; must not raise."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Messages for one executor in one round: one, or several for an executor that joins."""

    target_id: str
    messages: tuple[Any, ...]
    source_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class RunState:
    """Everything a run carries from one round to the next."""

    ready: list[Delivery]
    iteration: int = 0
    shared: JsonObject = field(default_factory=dict[str, Any])
    traversals: dict[int, int] = field(default_factory=dict[int, int])
    """Messages carried so far, by edge index; only of edges with a limit."""
    outputs: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])


class Runner:
    """One run. Call `advance` until it returns false."""

    def __init__(self, graph: Graph, message: object, *, max_iterations: int, call: CallContext, on_event: OnEvent | None) -> None:
        self.state = RunState([Delivery(graph.start_id, (message,))])
        self.events: list[WorkflowEvent] = []
        """All events so far."""
        self._graph = graph
        self._max_iterations = max_iterations
        self._call = call
        self._on_event = on_event
        self._is_started = False
        self._failure: tuple[str, Exception] | None = None

    @property
    def result(self) -> WorkflowRunResult:
        """What the run gave so far; final once `advance` returned false."""
        return WorkflowRunResult(tuple(self.events), tuple(self.state.outputs), dict(self.state.shared))

    async def advance(self) -> bool:
        """Run the next round; the first call also reports the start. False when nothing is left to do.

        Raises:
            WorkflowFailed: An executor failed, or the run did not come to rest. Events tell the same.
        """
        if not self._is_started:
            self._is_started = True
            await self._emit(WorkflowEvent("started"))
            await self._report(WorkflowRunState.IN_PROGRESS)
        if not self.state.ready:
            await self._report(WorkflowRunState.IDLE)
            return False
        if self.state.iteration >= self._max_iterations:
            await self._fail(self.state.ready[0].target_id, self._endless())
        await self._superstep()
        return True

    def cancelled(self) -> None:
        """Note that the run was cancelled; the last entry of its timeline."""
        self.events.append(WorkflowEvent("status", state=WorkflowRunState.CANCELLED))

    async def _superstep(self) -> None:
        state = self.state
        state.iteration += 1
        await self._emit(WorkflowEvent("superstep_started", iteration=state.iteration))
        done = [(delivery, Effects()) for delivery in state.ready]
        async with anyio.create_task_group() as tasks:
            for delivery, effects in done:
                tasks.start_soon(self._deliver, delivery, effects, tasks.cancel_scope)
        if self._failure is not None:
            await self._fail(*self._failure)
        ready = await self._route(done)
        for delivery, effects in done:
            state.shared.update(effects.writes)
            if self._selects(delivery.target_id):
                state.outputs += [(delivery.target_id, payload) for payload in effects.outputs]
        state.ready = ready
        await self._emit(WorkflowEvent("superstep_completed", iteration=state.iteration))

    async def _deliver(self, delivery: Delivery, effects: Effects, round_scope: anyio.CancelScope) -> None:
        """Run one executor. Any exception of its code ends the round, as an event and a failure, not a crash."""
        target = self._graph.executors[delivery.target_id]
        message = list(delivery.messages) if target.joins else delivery.messages[0]
        ctx = WorkflowContext[Any, Any](target.id, delivery.source_ids, self.state.shared, effects, self._emit, self._call)
        await self._emit(WorkflowEvent("executor_invoked", message, target.id))
        try:
            await target.execute(message, ctx)
        except Exception as error:
            self._failure = self._failure or (target.id, error)
            details = WorkflowErrorDetails.from_exception(error, executor_id=target.id)
            await self._emit(WorkflowEvent("executor_failed", executor_id=target.id, details=details))
            round_scope.cancel()
            return
        await self._emit(WorkflowEvent("executor_completed", executor_id=target.id))

    async def _route(self, done: list[tuple[Delivery, Effects]]) -> list[Delivery]:
        """The next round's deliveries: by order of the messages handled, then of sending, then of edges."""
        ready: list[Delivery] = []
        joined: dict[str, int] = {}
        for delivery, effects in done:
            for message, target_id in effects.sent:
                for target in await self._targets(delivery.target_id, message, target_id):
                    if not self._graph.executors[target].joins:
                        ready.append(Delivery(target, (message,), (delivery.target_id,)))
                    elif target in joined:
                        first = ready[joined[target]]
                        merged = Delivery(target, (*first.messages, message), (*first.source_ids, delivery.target_id))
                        ready[joined[target]] = merged
                    else:
                        joined[target] = len(ready)
                        ready.append(Delivery(target, (message,), (delivery.target_id,)))
        return ready

    async def _targets(self, source_id: str, message: object, target_id: str | None) -> list[str]:
        targets: list[str] = []
        edges = [(index, edge) for index, edge in self._graph.outgoing[source_id] if target_id in (None, edge.target_id)]
        if target_id is not None and not edges:
            await self._fail(source_id, WorkflowError(f"It sends to {target_id!r}, but no edge leads there."))
        for index, edge in edges:
            if await self._carries(index, edge, message):
                targets.append(edge.target_id)
        return targets

    async def _carries(self, index: int, edge: Edge, message: object) -> bool:
        used = self.state.traversals.get(index, 0)
        if edge.max_traversals is not None and used >= edge.max_traversals:
            return False
        if edge.condition is not None:
            try:
                verdict = edge.condition(message)
                if inspect.isawaitable(verdict):
                    verdict = await verdict
            except Exception as error:
                await self._fail(edge.source_id, error)
                raise
            if not verdict:
                return False
        if edge.max_traversals is not None:
            self.state.traversals[index] = used + 1
        return True

    async def _fail(self, executor_id: str, error: Exception) -> None:
        """Report the failure and raise it; what the failed round wrote was never committed."""
        details = WorkflowErrorDetails.from_exception(error, executor_id=executor_id)
        await self._emit(WorkflowEvent("failed", details=details))
        await self._report(WorkflowRunState.FAILED)
        if isinstance(error, WorkflowFailed):
            reason = str(error)
        elif isinstance(error, GatewayError):
            reason = f"Executor {executor_id!r} failed: {error}"
        else:
            reason = f"Executor {executor_id!r} failed unexpectedly ({type(error).__name__})."
        raise WorkflowFailed(reason, executor=executor_id) from error

    def _endless(self) -> WorkflowFailed:
        waiting = list(dict.fromkeys(delivery.target_id for delivery in self.state.ready))
        text = f"The workflow did not come to rest within {self._max_iterations} rounds; still to run: {', '.join(map(repr, waiting))}."
        return WorkflowFailed(f"{text} Limit a loop with `max` (max_traversals) or raise max_iterations.", executor=waiting[0])

    def _selects(self, executor_id: str) -> bool:
        return self._graph.output_ids is None or executor_id in self._graph.output_ids

    async def _report(self, state: WorkflowRunState) -> None:
        await self._emit(WorkflowEvent("status", state=state))

    async def _emit(self, event: WorkflowEvent) -> None:
        if event.type == "output" and not self._selects(event.executor_id or ""):
            return
        self.events.append(event)
        if self._on_event is not None:
            await self._on_event(event)
