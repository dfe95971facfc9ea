"""`GroupChatBuilder`: participants talk in one conversation, and an orchestrator chooses the next speaker.

The orchestrator is a function of the conversation's state, or an agent that answers with its choice. Every participant gets every message;
only the chosen participant answers.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.errors import WorkflowError
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse
from gateway.workflows.agent_executor import (
    AgentExecutor,
    AgentExecutorRequest,
    AgentExecutorResponse,
    is_agent,
    resolve_agent_id,
    serve_call,
)
from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.events import WorkflowEvent
from gateway.workflows.executor import Executor, handler
from gateway.workflows.orchestrations.participants import (
    IntermediateFrom,
    OutputFrom,
    Participant,
    ReviewBuilder,
    StoredBuilder,
    as_messages,
    describe,
    finish,
    spoken,
)
from gateway.workflows.steps import find_object
from gateway.workflows.workflow import Workflow
from gateway.workflows.workflow_context import WorkflowContext

TerminationCondition = Callable[[list[Message]], bool | Awaitable[bool]]
"""Function of the conversation (a list of messages) that returns whether the conversation has ended."""

ChatContext = WorkflowContext[Any, Any]


@dataclass
class GroupChatRequestMessage:
    """Message that tells a participant to speak, if the participant is an executor other than an agent."""

    additional_instruction: str | None = None
    metadata: dict[str, Any] | None = None


@dataclass
class GroupChatParticipantMessage:
    """Message with the messages of other participants, for a participant that is an executor other than an agent."""

    messages: list[Message]


@dataclass
class GroupChatResponseMessage:
    """Message with the answer of a participant that is an executor other than an agent."""

    message: Message


@dataclass
class GroupChatRequestSentEvent:
    """Data of a `group_chat` event: a participant is asked to speak."""

    round_index: int
    participant_name: str


@dataclass
class GroupChatResponseReceivedEvent:
    """Data of a `group_chat` event: a participant spoke."""

    round_index: int
    participant_name: str


@dataclass(frozen=True)
class GroupChatState:
    """State of the conversation, the argument of a selection function."""

    current_round: int
    participants: OrderedDict[str, str]
    """Name of each participant → its description."""
    conversation: list[Message]


GroupChatSelectionFunction = Callable[[GroupChatState], Awaitable[str] | str]
"""Returns the name of the next speaker."""


class UnknownParticipantError(WorkflowError, RuntimeError):
    """The chosen speaker is not a participant. Also a `RuntimeError`, because agent-framework raises that."""


class BaseGroupChatOrchestrator(Executor):
    """Stores the conversation, asks the next speaker to answer, and ends the conversation. A subclass chooses the speaker (`choose`)."""

    TERMINATION_CONDITION_MET_MESSAGE: ClassVar[str] = "The group chat has reached its termination condition."
    MAX_ROUNDS_MET_MESSAGE: ClassVar[str] = "The group chat has reached the maximum number of rounds."

    def __init__(
        self, id: str, *, name: str | None = None, max_rounds: int | None = None, termination_condition: TerminationCondition | None = None
    ) -> None:
        """`max_rounds` is the maximum number of answers of participants in a conversation."""
        super().__init__(id)
        self.name = name or id
        self.participants: OrderedDict[str, str] = OrderedDict()
        self._agents: set[str] = set()
        self._max_rounds = max(1, max_rounds) if max_rounds is not None else None
        self._condition = termination_condition
        self._round = 0
        self._conversation: list[Message] = []

    def meet(self, executors: dict[str, Executor]) -> None:
        """Set the participants, by id. The builder calls this method once."""
        self.participants = OrderedDict((name, describe(item)) for name, item in executors.items())
        self._agents = {name for name, item in executors.items() if isinstance(item, AgentExecutor)}

    async def choose(self, ctx: ChatContext) -> str | None:
        """Return the name of the next speaker; `None` if this method has ended the conversation."""
        raise NotImplementedError

    @handler
    async def handle_str(self, task: str, ctx: ChatContext) -> None:
        """Begin the conversation with a user's text."""
        await self.begin(as_messages(task), ctx)

    @handler
    async def handle_message(self, task: Message, ctx: ChatContext) -> None:
        """Begin the conversation with a message."""
        await self.begin(as_messages(task), ctx)

    @handler
    async def handle_messages(self, task: list[str | Message], ctx: ChatContext) -> None:
        """Begin the conversation with messages."""
        await self.begin(as_messages(task), ctx)

    @handler
    async def handle_participant_response(self, response: AgentExecutorResponse | GroupChatResponseMessage, ctx: ChatContext) -> None:
        """Report the answer of a participant as an event, and continue the conversation with the answer."""
        who = ctx.get_source_executor_id()
        await ctx.add_event(WorkflowEvent("group_chat", GroupChatResponseReceivedEvent(self._round, who), self.id))
        said = response.agent_response.messages if isinstance(response, AgentExecutorResponse) else [response.message]
        await self.heard(who, said, ctx)

    async def begin(self, messages: list[Message], ctx: ChatContext) -> None:
        """Begin the conversation with these messages, and ask the first speaker."""
        self._conversation += messages
        if not await self._is_over(ctx, check_rounds=False):
            await self._next(ctx, messages, None)

    async def heard(self, who: str, said: Sequence[Message], ctx: ChatContext) -> None:
        """Add the answer of the participant `who` to the conversation, then end the conversation or ask the next speaker."""
        messages = spoken(said)
        self._conversation += messages
        if not await self._is_over(ctx, check_rounds=True):
            await self._next(ctx, messages, who)

    async def end(self, ctx: ChatContext, text: str) -> None:
        """End the conversation with a final message."""
        message = Message("assistant", [text], author_name=self.name)
        self._conversation.append(message)
        await finish(ctx, message)

    async def request(self, who: str, ctx: ChatContext, instruction: str | None = None) -> None:
        """Ask the participant `who` to speak, optionally with an instruction."""
        if who in self._agents:
            messages = [Message("user", [instruction])] if instruction else []
            await ctx.send_message(AgentExecutorRequest(messages), target_id=who)
        else:
            await ctx.send_message(GroupChatRequestMessage(instruction), target_id=who)
        await ctx.add_event(WorkflowEvent("group_chat", GroupChatRequestSentEvent(self._round, who), self.id))
        self._round += 1

    async def broadcast(self, messages: list[Message], ctx: ChatContext, *, but: str | None) -> None:
        """Send messages to all participants except `but`, without asking them to speak."""
        for name in self.participants:
            if name != but and name in self._agents:
                await ctx.send_message(AgentExecutorRequest(list(messages), should_respond=False), target_id=name)
            elif name != but:
                await ctx.send_message(GroupChatParticipantMessage(list(messages)), target_id=name)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """Return the conversation."""
        return {"conversation": list(self._conversation), "round_index": self._round}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore the conversation."""
        self._conversation, self._round = list(state["conversation"]), state["round_index"]

    async def _next(self, ctx: ChatContext, messages: list[Message], who: str | None) -> None:
        speaker = await self.choose(ctx)
        if speaker is None:
            return
        if speaker not in self.participants:
            known = ", ".join(self.participants)
            raise UnknownParticipantError(f"The orchestrator chose the unknown participant {speaker!r}; they are {known}.")
        await self.broadcast(messages, ctx, but=who)
        await self.request(speaker, ctx)

    async def _is_over(self, ctx: ChatContext, *, check_rounds: bool) -> bool:
        verdict: Any = self._condition(list(self._conversation)) if self._condition is not None else False
        if await verdict if inspect.isawaitable(verdict) else verdict:
            await self.end(ctx, self.TERMINATION_CONDITION_MET_MESSAGE)
            return True
        if check_rounds and self._max_rounds is not None and self._round >= self._max_rounds:
            await self.end(ctx, self.MAX_ROUNDS_MET_MESSAGE)
            return True
        return False


class GroupChatOrchestrator(BaseGroupChatOrchestrator):
    """Chooses the next speaker with a function."""

    def __init__(
        self,
        id: str,
        selection_func: GroupChatSelectionFunction,
        *,
        name: str | None = None,
        max_rounds: int | None = None,
        termination_condition: TerminationCondition | None = None,
    ) -> None:
        """`selection_func` may be async."""
        super().__init__(id, name=name, max_rounds=max_rounds, termination_condition=termination_condition)
        self._select = selection_func

    async def choose(self, ctx: ChatContext) -> str | None:
        """Return the name that the selection function returns."""
        chosen = self._select(GroupChatState(self._round, self.participants, list(self._conversation)))
        return await chosen if inspect.isawaitable(chosen) else chosen


class AgentOrchestrationOutput(BaseModel):
    """The answer of the agent that chooses the speakers: the next speaker, or the end of the conversation."""

    model_config = ConfigDict(extra="ignore")

    terminate: bool
    reason: str = ""
    next_speaker: str | None = None
    final_message: str | None = None


_INSTRUCTION = """\
You lead this conversation. Decide who speaks next, or end it. The participants:
{participants}

Answer with one JSON object and nothing else:
{{"terminate": true or false, "reason": "why",
 "next_speaker": "a participant's name, unless you end it", "final_message": "your closing message, when you end it"}}"""


class AgentBasedGroupChatOrchestrator(BaseGroupChatOrchestrator):
    """Chooses the next speaker with an agent."""

    def __init__(
        self,
        agent: SupportsAgentRun,
        *,
        max_rounds: int | None = None,
        termination_condition: TerminationCondition | None = None,
        retry_attempts: int = 2,
    ) -> None:
        """`retry_attempts` is how often the agent is asked again after an unusable answer."""
        super().__init__(resolve_agent_id(agent), name=agent.name, max_rounds=max_rounds, termination_condition=termination_condition)
        self._agent = agent
        self._session = agent.create_session()
        self._told = 0
        self._retries = retry_attempts

    async def choose(self, ctx: ChatContext) -> str | None:
        """Ask the orchestrating agent for the next speaker. The agent gets the messages since it was last asked."""
        team = "\n".join(f"- {name}: {description}" for name, description in self.participants.items())
        fresh, self._told = self._conversation[self._told :], len(self._conversation)
        messages = [*fresh, Message("user", [_INSTRUCTION.format(participants=team)])]
        serve_call(self._agent, ctx.call)
        for attempt in range(self._retries + 1):
            response = await self._agent.run(messages, session=self._session)
            try:
                decision = self._read(response)
            except ValueError as error:
                if attempt == self._retries:
                    raise WorkflowError(f"Agent {self.id!r} did not choose a speaker: {error}") from error
                messages = [Message("user", [f"Your answer cannot be used: {error}. Answer again, with the JSON object only."])]
                continue
            if decision.terminate:
                await self.end(ctx, decision.final_message or "The conversation has been ended by its orchestrator.")
                return None
            return decision.next_speaker
        return None

    def _read(self, response: AgentResponse) -> AgentOrchestrationOutput:
        found = find_object(response.text)
        if found is None:
            raise ValueError("there is no JSON object in it")
        try:
            decision = AgentOrchestrationOutput.model_validate(found)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        if not decision.terminate and decision.next_speaker not in self.participants:
            raise ValueError(f"next_speaker is {decision.next_speaker!r}, but the participants are {', '.join(self.participants)}")
        return decision

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """Return the conversation of the participants, and the session of the orchestrating agent."""
        return {**await super().on_checkpoint_save(), "session": self._session.to_dict(), "told": self._told}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore the conversation of the participants, and the session of the orchestrating agent."""
        await super().on_checkpoint_restore(state)
        self._session, self._told = AgentSession.from_dict(state["session"]), state["told"]


class GroupChatBuilder(ReviewBuilder, StoredBuilder):
    """Builds a group chat. The final message of the orchestrator is the output of the workflow."""

    DEFAULT_ORCHESTRATOR_ID: ClassVar[str] = "group_chat_orchestrator"

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        orchestrator_agent: SupportsAgentRun | Callable[[], SupportsAgentRun] | None = None,
        orchestrator: BaseGroupChatOrchestrator | Callable[[], BaseGroupChatOrchestrator] | None = None,
        selection_func: GroupChatSelectionFunction | None = None,
        orchestrator_name: str | None = None,
        termination_condition: TerminationCondition | None = None,
        max_rounds: int | None = None,
        name: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        output_from: OutputFrom | None = None,
        intermediate_output_from: IntermediateFrom | None = None,
    ) -> None:
        """Exactly one of `orchestrator_agent`, `orchestrator` and `selection_func` chooses the speakers.

        The first two may also be functions that make the agent or executor for each built workflow.

        Raises:
            ValueError: More than one of these three arguments is given.
        """
        super().__init__(participants, output_from, intermediate_output_from, name=name or "GroupChat", storage=checkpoint_storage)
        given = [item for item in (orchestrator_agent, orchestrator, selection_func) if item is not None]
        if len(given) > 1:
            raise ValueError("Exactly one of orchestrator_agent, orchestrator, or selection_func must be provided.")
        self._chooser = orchestrator_agent if orchestrator_agent is not None else orchestrator
        self._selection = selection_func
        self._orchestrator_name = orchestrator_name
        self._condition = termination_condition
        self._max_rounds = max_rounds

    def with_termination_condition(self, termination_condition: TerminationCondition) -> Self:
        """End the conversation when this function of its messages returns true."""
        self._condition = termination_condition
        return self

    def with_max_rounds(self, max_rounds: int | None) -> Self:
        """End the conversation after this many answers."""
        self._max_rounds = max_rounds
        return self

    def build(self) -> Workflow:
        """Build the workflow.

        Raises:
            ValueError: Nothing chooses the speakers.
            TypeError: A function that should make the orchestrator returned something else.
        """
        orchestrator = self._orchestrator()
        executors = self._executors()
        orchestrator.meet(executors)
        return self._star(orchestrator, executors)

    def _orchestrator(self) -> BaseGroupChatOrchestrator:
        if self._selection is not None:
            return GroupChatOrchestrator(
                self.DEFAULT_ORCHESTRATOR_ID,
                self._selection,
                name=self._orchestrator_name,
                max_rounds=self._max_rounds,
                termination_condition=self._condition,
            )
        chooser = self._chooser
        if chooser is None:
            raise ValueError("No orchestrator has been configured: pass orchestrator_agent, orchestrator or selection_func.")
        if not isinstance(chooser, BaseGroupChatOrchestrator) and not is_agent(chooser) and callable(chooser):
            chooser = chooser()
        if isinstance(chooser, BaseGroupChatOrchestrator):
            return chooser
        if not is_agent(chooser):
            raise TypeError(f"Orchestrator factory must return Agent or BaseGroupChatOrchestrator instance, not {type(chooser).__name__}.")
        agent = cast("SupportsAgentRun", chooser)
        return AgentBasedGroupChatOrchestrator(agent, max_rounds=self._max_rounds, termination_condition=self._condition)
