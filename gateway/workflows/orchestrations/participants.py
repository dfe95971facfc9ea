"""What orchestrations share: who takes part, whose outputs count, and answers that a person looks at first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gateway.sessions.session import SupportsAgentRun
from gateway.types.content import Content
from gateway.types.messages import Message, to_messages
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.workflows.agent_executor import AgentContextOf, AgentExecutor, AgentExecutorResponse, ContextMode, is_agent, resolve_agent_id
from gateway.workflows.context import WorkflowContext
from gateway.workflows.executor import Executor, response_handler

Participant = Executor | SupportsAgentRun
Named = str | Executor | SupportsAgentRun
OutputFrom = Literal["all"] | Sequence[Named]
IntermediateFrom = Literal["all", "all_other"] | Sequence[Named]


@dataclass
class AgentRequestInfoResponse:
    """What a person says to an agent's answer: messages to answer again, or none to let it stand."""

    messages: list[Message]

    @staticmethod
    def from_messages(messages: list[Message]) -> AgentRequestInfoResponse:
        """Answer again with these."""
        return AgentRequestInfoResponse(messages)

    @staticmethod
    def from_strings(texts: list[str]) -> AgentRequestInfoResponse:
        """Answer again with these texts of the user."""
        return AgentRequestInfoResponse([Message("user", [text]) for text in texts])

    @staticmethod
    def approve() -> AgentRequestInfoResponse:
        """Let it stand."""
        return AgentRequestInfoResponse([])


class ReviewedAgentExecutor(AgentExecutor):
    """An agent whose answers are shown to a person before they go on."""

    shows_parts: ClassVar[bool] = False

    async def hand_on(self, answer: AgentExecutorResponse, ctx: AgentContextOf, *, is_shown: bool) -> None:
        """Ask first."""
        await ctx.request_info(answer, AgentRequestInfoResponse)

    @response_handler
    async def reviewed(self, original_request: AgentExecutorResponse, response: AgentRequestInfoResponse, ctx: AgentContextOf) -> None:
        """Hand it on, or answer again."""
        if response.messages:
            await self.from_messages([*response.messages], ctx)
        else:
            await AgentExecutor.hand_on(self, original_request, ctx, is_shown=False)


class ParticipantBuilder:
    """Base of the builders: participants by id, each once, and output selection over them."""

    def __init__(
        self, participants: Sequence[Participant] | None, output_from: OutputFrom | None, intermediate_output_from: IntermediateFrom | None
    ) -> None:
        """`participants`: `None` where they come later.

        Raises:
            ValueError: There are none, or one twice.
            TypeError: One is neither agent nor executor.
        """
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

    def _review(self, agents: Sequence[str | SupportsAgentRun] | None) -> None:
        names = {item if isinstance(item, str) else resolve_agent_id(item) for item in agents or ()}
        known = {name for name, item in self._given.items() if not isinstance(item, Executor)}
        if names - known:
            raise ValueError(
                f"with_request_info() names {sorted(names - known)}, which are no agents of this orchestration; they are {sorted(known)}."
            )
        self._reviewed = names or known

    def _executors(
        self, make: Callable[[SupportsAgentRun], Executor] | None = None, *, context_mode: ContextMode | None = None
    ) -> dict[str, Executor]:
        """The participants as executors; `make` wraps agents that need more than an `AgentExecutor`."""
        made: dict[str, Executor] = {}
        for name, item in self._given.items():
            if isinstance(item, Executor):
                made[name] = item
            elif self._reviewed is not None and name in self._reviewed:
                made[name] = ReviewedAgentExecutor(item, context_mode=context_mode)
            else:
                made[name] = make(item) if make is not None else AgentExecutor(item, context_mode=context_mode)
        return made

    def _outputs(
        self, executors: dict[str, Executor], *, default: Sequence[str], always: Sequence[str] = ()
    ) -> tuple[list[str], list[str]]:
        """Ids whose outputs count and whose are reported on the way. `default` counts where nothing was chosen."""
        chosen, other = self._output_from, self._intermediate_output_from
        if isinstance(chosen, str) and chosen != "all":
            raise ValueError(f"output_from={chosen!r} is no selection: give a list of participants, or 'all'.")
        if isinstance(other, str) and other not in ("all", "all_other"):
            raise ValueError(f"intermediate_output_from={other!r} is no selection: give a list of participants, 'all' or 'all_other'.")
        if chosen is not None and other is not None and not chosen and not other:
            raise ValueError("output_from and intermediate_output_from cannot both be empty: nothing would be seen.")
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


def participant_id(item: Any) -> str:
    """What a participant is called in the graph.

    Raises:
        TypeError: It is neither an agent nor an executor.
    """
    if isinstance(item, Executor):
        return item.id
    if is_agent(item):
        return resolve_agent_id(item)
    raise TypeError(f"Participants must be agents or Executor instances. Got {type(item).__name__}.")


def describe(executor: Executor) -> str:
    """What a participant says it is for."""
    return (executor.description if isinstance(executor, AgentExecutor) else None) or executor.id


def spoken(messages: Sequence[Message]) -> list[Message]:
    """What was said, without the calls of tools and their results, which only make sense to whoever made them."""
    kept: list[Message] = []
    for message in messages:
        contents: list[Content] = [content for content in message.contents if content.type in ("text", "uri", "data")]
        if message.role in ("user", "assistant") and contents:
            kept.append(Message(message.role, contents, author_name=message.author_name, message_id=message.message_id))
    return kept


async def finish(ctx: WorkflowContext[Any, Any], message: Message) -> None:
    """Yield the last word, in parts where the run is streamed."""
    if ctx.is_streaming():
        await ctx.yield_output(AgentResponseUpdate(list(message.contents), message.role, message.author_name, message.message_id))
    else:
        await ctx.yield_output(AgentResponse([message]))


def as_messages(given: str | Message | Sequence[str | Message]) -> list[Message]:
    """A run's message as a list.

    Raises:
        ValueError: It is empty.
    """
    messages = to_messages(given)
    if not messages:
        raise ValueError("At least one message is required to start.")
    return messages
