"""`SequentialBuilder`: participants one after the other, each with what was said before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from gateway.sessions.session import SupportsAgentRun
from gateway.types.messages import Message
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.context import WorkflowContext
from gateway.workflows.executor import Executor, handler
from gateway.workflows.orchestrations.participants import IntermediateFrom, OutputFrom, Participant, ParticipantBuilder, as_messages
from gateway.workflows.workflow import Workflow


class InputToConversation(Executor):
    """Makes a conversation of whatever the run begins with."""

    @handler
    async def from_str(self, prompt: str, ctx: WorkflowContext[list[Message]]) -> None:
        """A user's text."""
        await ctx.send_message(as_messages(prompt))

    @handler
    async def from_message(self, message: Message, ctx: WorkflowContext[list[Message]]) -> None:
        """A message."""
        await ctx.send_message(as_messages(message))

    @handler
    async def from_messages(self, messages: list[str | Message], ctx: WorkflowContext[list[Message]]) -> None:
        """Messages; texts are the user's."""
        await ctx.send_message(as_messages(messages))


class SequentialBuilder(ParticipantBuilder):
    """Chains agents and executors; the last one's output is the workflow's."""

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        name: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        chain_only_agent_responses: bool = False,
        output_from: OutputFrom | None = None,
        intermediate_output_from: IntermediateFrom | None = None,
    ) -> None:
        """With `chain_only_agent_responses` an agent gets the answer before it instead of the whole conversation."""
        super().__init__(participants, output_from, intermediate_output_from)
        self._name = name or "Sequential"
        self._storage = checkpoint_storage
        self._only_answers = chain_only_agent_responses

    def with_request_info(self, *, agents: Sequence[str | SupportsAgentRun] | None = None) -> Self:
        """Show the answers of these agents, or of all, to a person before they go on."""
        self._review(agents)
        return self

    def build(self) -> Workflow:
        """The workflow."""
        start = InputToConversation("input-conversation")
        executors = self._executors(context_mode="last_agent" if self._only_answers else None)
        outputs, intermediates = self._outputs(executors, default=[list(executors)[-1]])
        builder = WorkflowBuilder(
            name=self._name,
            start_executor=start,
            checkpoint_storage=self._storage,
            output_from=outputs,
            intermediate_output_from=intermediates,
        )
        return builder.add_chain([start, *executors.values()]).build()
