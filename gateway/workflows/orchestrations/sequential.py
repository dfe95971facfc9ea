"""`SequentialBuilder`: builds workflows in which participants run one after the other, each with the conversation so far."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.types.messages import Message
from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.executor import Executor, handler
from gateway.workflows.orchestrations.participants import IntermediateFrom, OutputFrom, Participant, ReviewBuilder, as_messages
from gateway.workflows.workflow import Workflow
from gateway.workflows.workflow_context import WorkflowContext


class InputToConversation(Executor):
    """The start executor of a sequential orchestration: converts the message of the run to a list of messages for the first participant."""

    @handler
    async def from_messages(self, given: str | Message | list[str | Message], ctx: WorkflowContext[list[Message]]) -> None:
        """Send the message or messages of the run to the first participant as a list. A text becomes a user message."""
        await ctx.send_message(as_messages(given))


class SequentialBuilder(ReviewBuilder):
    """Builds a workflow that runs agents and executors one after the other. By default, the last one's output is the workflow's output."""

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
        """Begin a workflow with these participants, in this order. A run stores checkpoints in `checkpoint_storage`.

        With `chain_only_agent_responses`, an agent gets only the answer of the previous agent instead of the whole conversation.
        `output_from` selects the participants whose outputs are outputs of the workflow (default: the last participant), and
        `intermediate_output_from` those whose outputs are intermediate outputs.
        """
        super().__init__(participants, output_from, intermediate_output_from, name=name or "Sequential", storage=checkpoint_storage)
        self._only_answers = chain_only_agent_responses

    def build(self) -> Workflow:
        """Build the chain of participants, and return the workflow."""
        start = InputToConversation("input-conversation")
        executors = self._executors(context_mode="last_agent" if self._only_answers else None)
        builder = self._graph(start, executors, default=[list(executors)[-1]])
        return builder.add_chain([start, *executors.values()]).build()
