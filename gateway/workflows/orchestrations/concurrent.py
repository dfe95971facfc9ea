"""`ConcurrentBuilder`: builds workflows in which participants run concurrently with the same message, and their answers are combined."""

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
"""Type of an aggregator, which combines the answers of the participants.

It is an executor that handles `list[AgentExecutorResponse]`, or a function of this list and optionally a `WorkflowContext`."""


class Dispatcher(Executor):
    """The start executor of a concurrent orchestration: sends the message of the run to every participant."""

    @handler
    async def from_request(self, request: AgentExecutorRequest, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Send an `AgentExecutorRequest` (messages for an agent) to every participant unchanged."""
        await ctx.send_message(request)

    @handler
    async def from_messages(self, given: str | Message | list[str | Message], ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Send the message or messages of the run to every participant. A text becomes a user message."""
        await ctx.send_message(AgentExecutorRequest(as_messages(given)))


class JoinAnswers(Executor):
    """The default aggregator of a concurrent orchestration: yields one response with the last answer of each agent.

    The answers have the order of the participants.
    """

    @handler
    async def aggregate(self, results: list[AgentExecutorResponse], ctx: WorkflowContext[Never, AgentResponse]) -> None:
        """Yield one response with the last assistant message of each participant as an output of the workflow."""
        answers = [next((m for m in reversed(item.agent_response.messages) if m.role == "assistant"), None) for item in results]
        await ctx.yield_output(AgentResponse([answer for answer in answers if answer is not None]))


class CallAggregator(Executor):
    """An aggregator of a concurrent orchestration that passes the participants' answers to a function, and yields the function's result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        name = getattr(function, "__name__", "")
        super().__init__(name if name and name != "<lambda>" else "aggregator")
        self._function = function
        self._wants_context = len(inspect.signature(function).parameters) > 1

    @handler
    async def aggregate(self, results: list[AgentExecutorResponse], ctx: WorkflowContext[Any, Any]) -> None:
        """Call the function with the list of answers. Yield the function's result as an output of the workflow, unless it is `None`."""
        value = await run_function(self._function, [results, ctx] if self._wants_context else [results], {})
        if value is not None:
            await ctx.yield_output(value)


class ConcurrentBuilder(ReviewBuilder):
    """Builds a workflow that sends its message to all participants, which run concurrently. An aggregator combines their answers."""

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        name: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        output_from: OutputFrom | None = None,
        intermediate_output_from: IntermediateFrom | None = None,
    ) -> None:
        """Begin a workflow with these participants, which are agents or executors. A run stores checkpoints in `checkpoint_storage`.

        The output is one response with the last answer of each agent, unless `with_aggregator` is called. `output_from` and
        `intermediate_output_from` select participants whose answers are also outputs or intermediate outputs.
        """
        super().__init__(participants, output_from, intermediate_output_from, name=name or "Concurrent", storage=checkpoint_storage)
        self._aggregator: Executor | None = None

    def with_aggregator(self, aggregator: Aggregator) -> Self:
        """Set the executor or function that combines the answers of the participants.

        Raises:
            ValueError: An aggregator has been set already.
            TypeError: The aggregator is neither an executor nor a function.
        """
        if self._aggregator is not None:
            raise ValueError("with_aggregator() has already been called.")
        if not isinstance(aggregator, Executor) and not callable(aggregator):
            raise TypeError("aggregator must be an Executor or a callable")
        self._aggregator = aggregator if isinstance(aggregator, Executor) else CallAggregator(aggregator)
        return self

    def build(self) -> Workflow:
        """Build the graph with the participants and the aggregator, and return the workflow."""
        start, aggregator = Dispatcher("dispatcher"), self._aggregator or JoinAnswers("aggregator")
        executors = self._executors()
        builder = self._graph(start, executors, always=[aggregator.id])
        if len(executors) == 1:
            (only,) = executors.values()
            return builder.add_edge(start, only).add_edge(only, ToList("to-list")).add_edge("to-list", aggregator).build()
        return builder.add_fan_out_edges(start, [*executors.values()]).add_fan_in_edges([*executors.values()], aggregator).build()


class ToList(Executor):
    """An executor between a single participant and the aggregator: puts the answer into a list, which the aggregator expects."""

    @handler
    async def wrap(self, message: AgentExecutorResponse, ctx: WorkflowContext[list[AgentExecutorResponse]]) -> None:
        """Send the aggregator a list that contains only this answer, because there is only one participant."""
        await ctx.send_message([message])
