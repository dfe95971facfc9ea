"""`ConcurrentBuilder`: participants get the same message at once, and their answers are combined."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Never, Self

from gateway.tools.function import run_function
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse
from gateway.workflows.agent_executor import AgentExecutorRequest, AgentExecutorResponse
from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.executor import Executor, handler
from gateway.workflows.orchestrations.participants import IntermediateFrom, OutputFrom, Participant, ReviewBuilder, as_messages
from gateway.workflows.workflow import Workflow
from gateway.workflows.workflow_context import WorkflowContext

Aggregator = Executor | Callable[..., Any]
"""Combines the answers: an executor that accepts `list[AgentExecutorResponse]`, or a function of this list (and optionally of the
context)."""


class Dispatcher(Executor):
    """The start executor: sends the message of the run to every participant."""

    @handler
    async def from_request(self, request: AgentExecutorRequest, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Send a request for agents to every participant."""
        await ctx.send_message(request)

    @handler
    async def from_messages(self, given: str | Message | list[str | Message], ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Send messages to every participant; a text becomes a user message."""
        await ctx.send_message(AgentExecutorRequest(as_messages(given)))


class JoinAnswers(Executor):
    """The default aggregator: combines the last answer of each agent, in the order of the participants."""

    @handler
    async def aggregate(self, results: list[AgentExecutorResponse], ctx: WorkflowContext[Never, AgentResponse]) -> None:
        """Yield the answers as one response."""
        answers = [next((m for m in reversed(item.agent_response.messages) if m.role == "assistant"), None) for item in results]
        await ctx.yield_output(AgentResponse([answer for answer in answers if answer is not None]))


class CallAggregator(Executor):
    """An aggregator that calls a function with the list of answers, and yields the result as the output."""

    def __init__(self, function: Callable[..., Any]) -> None:
        name = getattr(function, "__name__", "")
        super().__init__(name if name and name != "<lambda>" else "aggregator")
        self._function = function
        self._wants_context = len(inspect.signature(function).parameters) > 1

    @handler
    async def aggregate(self, results: list[AgentExecutorResponse], ctx: WorkflowContext[Any, Any]) -> None:
        """Call the function, and yield its result unless it is `None`."""
        value = await run_function(self._function, [results, ctx] if self._wants_context else [results], {})
        if value is not None:
            await ctx.yield_output(value)


class ConcurrentBuilder(ReviewBuilder):
    """Builds a graph that sends the message to all participants and collects their answers. An aggregator makes the output of them."""

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        name: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        output_from: OutputFrom | None = None,
        intermediate_output_from: IntermediateFrom | None = None,
    ) -> None:
        """Without an aggregator the output is one response with the last answer of each agent."""
        super().__init__(participants, output_from, intermediate_output_from, name=name or "Concurrent", storage=checkpoint_storage)
        self._aggregator: Executor | None = None

    def with_aggregator(self, aggregator: Aggregator) -> Self:
        """Combine the answers of the participants with this executor or function.

        Raises:
            ValueError: There already is an aggregator.
            TypeError: The aggregator is neither an executor nor a function.
        """
        if self._aggregator is not None:
            raise ValueError("with_aggregator() has already been called.")
        if not isinstance(aggregator, Executor) and not callable(aggregator):
            raise TypeError("aggregator must be an Executor or a callable")
        self._aggregator = aggregator if isinstance(aggregator, Executor) else CallAggregator(aggregator)
        return self

    def build(self) -> Workflow:
        """Build the workflow."""
        start, aggregator = Dispatcher("dispatcher"), self._aggregator or JoinAnswers("aggregator")
        executors = self._executors()
        builder = self._graph(start, executors, always=[aggregator.id])
        if len(executors) == 1:
            (only,) = executors.values()
            return builder.add_edge(start, only).add_edge(only, ToList("to-list")).add_edge("to-list", aggregator).build()
        return builder.add_fan_out_edges(start, [*executors.values()]).add_fan_in_edges([*executors.values()], aggregator).build()


class ToList(Executor):
    """Used with a single participant: makes a list of its answer, because an aggregator expects a list of answers."""

    @handler
    async def wrap(self, message: AgentExecutorResponse, ctx: WorkflowContext[list[AgentExecutorResponse]]) -> None:
        """Send a list with only this answer to the aggregator."""
        await ctx.send_message([message])
