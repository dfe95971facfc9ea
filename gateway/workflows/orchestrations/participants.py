"""Base classes and functions that all orchestrations share: participants, output selection, and answers that a person reviews."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from gateway.sessions.session import SupportsAgentRun
from gateway.types.content import Content
from gateway.types.messages import Message, to_messages
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.workflows.agent_executor import AgentContextOf, AgentExecutor, AgentExecutorResponse, ContextMode, is_agent, resolve_agent_id
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.executor import Executor, response_handler
from gateway.workflows.workflow import Workflow
from gateway.workflows.workflow_context import WorkflowContext

Participant = Executor | SupportsAgentRun
Named = str | Executor | SupportsAgentRun
OutputFrom = Literal["all"] | Sequence[Named]
IntermediateFrom = Literal["all", "all_other"] | Sequence[Named]


@dataclass
class AgentRequestInfoResponse:
    """A person's review of an agent's answer. With an empty list of messages, the answer is accepted.

    Otherwise the messages are the person's remarks, and the agent answers again.
    """

    messages: list[Message]

    @staticmethod
    def from_messages(messages: list[Message]) -> AgentRequestInfoResponse:
        """Return a review that asks the agent for another answer, with these messages as remarks."""
        return AgentRequestInfoResponse(messages)

    @staticmethod
    def from_strings(texts: list[str]) -> AgentRequestInfoResponse:
        """Return a review that asks the agent for another answer, with these texts as remarks of the user."""
        return AgentRequestInfoResponse([Message("user", [text]) for text in texts])

    @staticmethod
    def approve() -> AgentRequestInfoResponse:
        """Return a review that accepts the agent's answer."""
        return AgentRequestInfoResponse([])


class ReviewedAgentExecutor(AgentExecutor):
    """An executor that runs an agent, and has a person review each answer before it is sent to other executors."""

    shows_parts: ClassVar[bool] = False

    async def publish_answer(self, answer: AgentExecutorResponse, ctx: AgentContextOf, *, is_shown: bool) -> None:
        """Request a person's review of the agent's answer, instead of publishing it. The method `reviewed` handles the response."""
        await ctx.request_info(answer, AgentRequestInfoResponse)

    @response_handler
    async def reviewed(self, original_request: AgentExecutorResponse, response: AgentRequestInfoResponse, ctx: AgentContextOf) -> None:
        """Handle a person's review: publish the accepted answer (`original_request`), or run the agent again with the remarks."""
        if response.messages:
            await self.from_messages([*response.messages], ctx)
        else:
            await AgentExecutor.publish_answer(self, original_request, ctx, is_shown=False)


class ParticipantBuilder:
    """Base class of the builders of orchestrations. It checks the participants, and selects those whose outputs the workflow yields."""

    def __init__(
        self,
        participants: Sequence[Participant] | None,
        output_from: OutputFrom | None,
        intermediate_output_from: IntermediateFrom | None,
        *,
        name: str,
        storage: CheckpointStorage | None,
    ) -> None:
        """Begin an orchestration. `participants` is `None` if a method of the subclass sets the participants later.

        `output_from` and `intermediate_output_from` select the participants whose outputs are outputs or intermediate outputs of the
        workflow. `storage` gets the checkpoints of runs.

        Raises:
            ValueError: The list of participants is empty, or two participants have the same id.
            TypeError: A participant is neither an agent nor an executor.
        """
        self._name = name
        self._description: str | None = None
        self._storage = storage
        self._given: dict[str, Participant] = {}
        if participants is not None:
            self._take(participants)
        self._output_from = output_from
        self._intermediate_output_from = intermediate_output_from
        self._reviewed: set[str] | None = None

    def _take(self, participants: Sequence[Participant]) -> None:
        if not participants:
            raise ValueError("participants cannot be empty")
        for item in participants:
            name = participant_id(item)
            if name in self._given:
                raise ValueError(f"Duplicate participant name {name!r}: participants need different names.")
            self._given[name] = item

    def _executors(
        self, make: Callable[[SupportsAgentRun], Executor] | None = None, *, context_mode: ContextMode | None = None
    ) -> dict[str, Executor]:
        """Return an executor for each participant, by id.

        A participant that is an executor is returned itself. An agent whose answers a person reviews gets a `ReviewedAgentExecutor`. `make`
        creates the executors of other agents; the default is `AgentExecutor`.
        """
        made: dict[str, Executor] = {}
        for name, item in self._given.items():
            if isinstance(item, Executor):
                made[name] = item
            elif self._reviewed is not None and name in self._reviewed:
                made[name] = ReviewedAgentExecutor(item, context_mode=context_mode)
            else:
                made[name] = make(item) if make is not None else AgentExecutor(item, context_mode=context_mode)
        return made

    def _graph(
        self, start: Executor, executors: dict[str, Executor], *, default: Sequence[str] = (), always: Sequence[str] = ()
    ) -> WorkflowBuilder:
        """Return a `WorkflowBuilder` with the start executor and the selected outputs. The caller adds the edges to the builder.

        `always` are ids of executors whose outputs are always outputs of the workflow. `default` are ids of further output executors if
        the user selected none (`_outputs`).
        """
        outputs, intermediates = self._outputs(executors, default=default, always=always)
        return WorkflowBuilder(
            name=self._name,
            description=self._description,
            start_executor=start,
            checkpoint_storage=self._storage,
            output_from=outputs,
            intermediate_output_from=intermediates,
        )

    def _star(self, center: Executor, executors: dict[str, Executor]) -> Workflow:
        """Build a workflow that begins with `center` and has edges from `center` to each participant and back.

        The outputs of `center` are always outputs of the workflow.
        """
        builder = self._graph(center, executors, always=[center.id])
        for executor in executors.values():
            builder.add_edge(center, executor).add_edge(executor, center)
        return builder.build()

    def _outputs(
        self, executors: dict[str, Executor], *, default: Sequence[str], always: Sequence[str] = ()
    ) -> tuple[list[str], list[str]]:
        """Return two lists of executor ids: of those that yield outputs of the workflow, and of those that yield intermediate outputs.

        `always` are ids that are in the first list in any case. `default` are ids for the first list if the user set no `output_from`; they
        are not used if `intermediate_output_from` is `all` or `all_other`.

        Raises:
            ValueError: The user's selection is invalid.
        """
        chosen, other = self._output_from, self._intermediate_output_from
        if isinstance(chosen, str) and chosen != "all":
            raise ValueError(f"output_from={chosen!r} is not a selection: give a list of participants, or 'all'.")
        if isinstance(other, str) and other not in ("all", "all_other"):
            raise ValueError(f"intermediate_output_from={other!r} is not a selection: give a list of participants, 'all' or 'all_other'.")
        if chosen is not None and other is not None and not chosen and not other:
            raise ValueError("output_from and intermediate_output_from cannot both be empty: the workflow would have no output.")
        names = list(executors)
        intermediate = self._ids(other, names, "intermediate") if other is not None and not isinstance(other, str) else []
        if chosen == "all":
            outputs = names
        elif chosen is not None:
            outputs = self._ids(chosen, names, "output")
        else:
            outputs = [] if isinstance(other, str) else [name for name in default if name not in intermediate]
        if other == "all":
            intermediate = names
        elif other == "all_other":
            intermediate = [name for name in names if name not in outputs]
        both = sorted(set(outputs) & set(intermediate))
        if both:
            raise ValueError(f"Participants cannot be both output and intermediate designated: {both}")
        return [*always, *outputs], intermediate

    def _ids(self, chosen: Sequence[Named], names: list[str], word: str) -> list[str]:
        ids = [item if isinstance(item, str) else participant_id(item) for item in chosen]
        for name in ids:
            if name not in names:
                raise ValueError(f"Unknown {word} participant {name!r}. Known participants: {sorted(names)}")
            if ids.count(name) > 1:
                raise ValueError(f"Duplicate {word} participant {name!r}: name each once.")
        return ids


class StoredBuilder(ParticipantBuilder):
    """Base class of builders of orchestrations (agents that work together by a pattern) with a method that sets the checkpoint storage."""

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage) -> Self:
        """Set the storage that gets a checkpoint of a run after each superstep (handling of all waiting messages)."""
        self._storage = checkpoint_storage
        return self


class ReviewBuilder(ParticipantBuilder):
    """Base class of builders of orchestrations (agents that work together by a pattern) in which a person can review answers of agents."""

    def with_request_info(self, *, agents: Sequence[str | SupportsAgentRun] | None = None) -> Self:
        """Have a person review each answer of these agents (by default of all agents) before other participants get it.

        Raises:
            ValueError: A given agent is not a participant.
        """
        names = {item if isinstance(item, str) else resolve_agent_id(item) for item in agents or ()}
        known = {name for name, item in self._given.items() if not isinstance(item, Executor)}
        if names - known:
            raise ValueError(
                f"with_request_info() names {sorted(names - known)}, which are not agents of this orchestration. Agents: {sorted(known)}."
            )
        self._reviewed = names or known
        return self


def participant_id(item: Any) -> str:
    """Return the id of a participant in the graph of an orchestration: the executor's id, or the agent's name or id.

    Raises:
        TypeError: The participant is neither an agent nor an executor.
    """
    if isinstance(item, Executor):
        return item.id
    if is_agent(item):
        return resolve_agent_id(item)
    raise TypeError(f"Participants must be agents or Executor instances. Got {type(item).__name__}.")


def describe(executor: Executor) -> str:
    """Return the description of a participant, which an orchestrator uses to choose the next speaker; by default the participant's id."""
    return (executor.description if isinstance(executor, AgentExecutor) else None) or executor.id


def spoken(messages: Sequence[Message]) -> list[Message]:
    """Return the user and assistant messages with only their text, URI and data contents, for other participants.

    Tool calls and their results, which only the calling agent needs, are left out, and so are messages without other contents.
    """
    kept: list[Message] = []
    for message in messages:
        contents: list[Content] = [content for content in message.contents if content.type in ("text", "uri", "data")]
        if message.role in ("user", "assistant") and contents:
            kept.append(Message(message.role, contents, author_name=message.author_name, message_id=message.message_id))
    return kept


async def finish(ctx: WorkflowContext[Any, Any], message: Message) -> None:
    """Yield the final message of an orchestration as an output: an `AgentResponse`, or an `AgentResponseUpdate` if the run is streamed."""
    if ctx.is_streaming():
        await ctx.yield_output(AgentResponseUpdate(list(message.contents), message.role, message.author_name, message.message_id))
    else:
        await ctx.yield_output(AgentResponse([message]))


def as_messages(given: str | Message | Sequence[str | Message]) -> list[Message]:
    """Convert the input of an orchestration's run to a list of messages. A text becomes a user message.

    Raises:
        ValueError: `given` contains no message.
    """
    messages = to_messages(given)
    if not messages:
        raise ValueError("At least one message is required to start.")
    return messages
