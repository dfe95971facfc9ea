"""`ConcurrentBuilder`: all participants at once on the same message, then their answers together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Never, Self

from gateway.sessions.session import SupportsAgentRun
from gateway.tools.function import run_function
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse
from gateway.workflows.agent_executor import AgentExecutorRequest, AgentExecutorResponse
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.context import WorkflowContext
from gateway.workflows.executor import Executor, handler
from gateway.workflows.orchestrations.participants import IntermediateFrom, OutputFrom, Participant, ParticipantBuilder, as_messages
from gateway.workflows.workflow import Workflow

Aggregator = Executor | Callable[..., Any]
"""An executor that takes `list[AgentExecutorResponse]`, or a function of that list (and of the context)."""


class Dispatcher(Executor):
    """Hands the run's message to everybody."""

    @handler
    async def from_request(self, request: AgentExecutorRequest, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """A request for agents."""
        await ctx.send_message(request)

    @handler
    async def from_str(self, prompt: str, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """A user's text."""
        await ctx.send_message(AgentExecutorRequest(as_messages(prompt)))

    @handler
    async def from_message(self, message: Message, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """A message."""
        await ctx.send_message(AgentExecutorRequest(as_messages(message)))

    @handler
    async def from_messages(self, messages: list[str | Message], ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Messages; texts are the user's."""
        await ctx.send_message(AgentExecutorRequest(as_messages(messages)))


class JoinAnswers(Executor):
    """The last answer of each agent, in the order of the participants."""

    @handler
    async def aggregate(self, results: list[AgentExecutorResponse], ctx: WorkflowContext[Never, AgentResponse]) -> None:
        """Yield them as one response."""
        answers = [next((m for m in reversed(item.agent_response.messages) if m.role == "assistant"), None) for item in results]
        await ctx.yield_output(AgentResponse([answer for answer in answers if answer is not None]))


class CallAggregator(Executor):
    """Yields what a function makes of the answers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        name = getattr(function, "__name__", "")
        super().__init__(name if name and name != "<lambda>" else "aggregator")
        self._function = function
        self._wants_context = len(inspect.signature(function).parameters) > 1

    @handler
    async def aggregate(self, results: list[AgentExecutorResponse], ctx: WorkflowContext[Any, Any]) -> None:
        """Call it; what it returns, unless nothing, is the output."""
        value = await run_function(self._function, [results, ctx] if self._wants_context else [results], {})
        if value is not None:
            await ctx.yield_output(value)


class ConcurrentBuilder(ParticipantBuilder):
    """Fans out to all participants and in again to an aggregator, whose output is the workflow's."""

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
        super().__init__(participants, output_from, intermediate_output_from)
        self._name = name or "Concurrent"
        self._storage = checkpoint_storage
        self._aggregator: Executor | None = None

    def with_aggregator(self, aggregator: Aggregator) -> Self:
        """Join the answers in another way.

        Raises:
            ValueError: There already is one.
            TypeError: It is neither an executor nor a function.
        """
        if self._aggregator is not None:
            raise ValueError("with_aggregator() has already been called.")
        if not isinstance(aggregator, Executor) and not callable(aggregator):
            raise TypeError("aggregator must be an Executor or a callable")
        self._aggregator = aggregator if isinstance(aggregator, Executor) else CallAggregator(aggregator)
        return self

    def with_request_info(self, *, agents: Sequence[str | SupportsAgentRun] | None = None) -> Self:
        """Show the answers of these agents, or of all, to a person before they are joined."""
        self._review(agents)
        return self

    def build(self) -> Workflow:
        """The workflow."""
        start, aggregator = Dispatcher("dispatcher"), self._aggregator or JoinAnswers("aggregator")
        executors = self._executors()
        outputs, intermediates = self._outputs(executors, default=(), always=[aggregator.id])
        builder = WorkflowBuilder(
            name=self._name,
            start_executor=start,
            checkpoint_storage=self._storage,
            output_from=outputs,
            intermediate_output_from=intermediates,
        )
        if len(executors) == 1:
            (only,) = executors.values()
            return builder.add_edge(start, only).add_edge(only, ToList("to-list")).add_edge("to-list", aggregator).build()
        return builder.add_fan_out_edges(start, [*executors.values()]).add_fan_in_edges([*executors.values()], aggregator).build()


class ToList(Executor):
    """Makes a list of one answer, which a fan-in makes of several."""

    @handler
    async def wrap(self, message: AgentExecutorResponse, ctx: WorkflowContext[list[AgentExecutorResponse]]) -> None:
        """The list."""
        await ctx.send_message([message])
