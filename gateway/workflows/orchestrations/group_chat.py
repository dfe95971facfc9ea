"""`GroupChatBuilder`: builds workflows in which participants answer in one conversation, and an orchestrator chooses the next speaker.

The orchestrator uses a function of the conversation's state, or an agent that answers with its choice. Every participant gets every
message, except tool calls and their results; only the chosen participant answers.
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
"""Type of a termination condition: a sync or async function of the conversation's messages that returns whether the conversation ends."""


async def is_met(condition: TerminationCondition | None, conversation: Sequence[Message]) -> bool:
    """Return whether the termination condition ends a conversation with these messages; false without a condition."""
    verdict: Any = condition(list(conversation)) if condition is not None else False
    return bool(await verdict if inspect.isawaitable(verdict) else verdict)


ChatContext = WorkflowContext[Any, Any]


@dataclass
class GroupChatRequestMessage:
    """Message that asks a participant of a group chat to answer, if it is an executor. Agents get an `AgentExecutorRequest` instead."""

    additional_instruction: str | None = None
    metadata: dict[str, Any] | None = None


@dataclass
class GroupChatParticipantMessage:
    """Message of a group chat that contains answers of other participants. For participants that are executors and not agents."""

    messages: list[Message]


@dataclass
class GroupChatResponseMessage:
    """Message of a group chat with which a participant answers. For participants that are executors and not agents."""

    message: Message


@dataclass
class GroupChatRequestSentEvent:
    """Data of a `group_chat` event: the orchestrator of a group chat has asked a participant to answer. `round_index` counts from 0."""

    round_index: int
    participant_name: str


@dataclass
class GroupChatResponseReceivedEvent:
    """Data of a `group_chat` event: a participant of a group chat has answered. `round_index` is the number of answers requested so far."""

    round_index: int
    participant_name: str


@dataclass(frozen=True)
class GroupChatState:
    """State of a group chat's conversation: the argument of the function that selects the next speaker.

    `current_round` is the number of answers requested so far.
    """

    current_round: int
    participants: OrderedDict[str, str]
    """Name of each participant → description of the participant."""
    conversation: list[Message]


GroupChatSelectionFunction = Callable[[GroupChatState], Awaitable[str] | str]
"""Type of a selection function, sync or async: it gets the state of the group chat and returns the name of the next speaker."""


class UnknownParticipantError(WorkflowError, RuntimeError):
    """Raised if the orchestrator chooses a speaker that is not a participant.

    Also a `RuntimeError`, because Microsoft's agent-framework raises this class.
    """


class BaseGroupChatOrchestrator(Executor):
    """Base class of the executors that lead a group chat.

    It stores the conversation, asks the next speaker to answer, and ends the conversation. The method `choose` of the subclass chooses the
    next speaker.
    """

    TERMINATION_CONDITION_MET_MESSAGE: ClassVar[str] = "The group chat has reached its termination condition."
    MAX_ROUNDS_MET_MESSAGE: ClassVar[str] = "The group chat has reached the maximum number of rounds."

    def __init__(
        self, id: str, *, name: str | None = None, max_rounds: int | None = None, termination_condition: TerminationCondition | None = None
    ) -> None:
        """Create the executor `id`. The conversation ends after `max_rounds` answers of participants, by default without limit.

        It also ends when `termination_condition`, a function of its messages, returns true. `name` is the author of the final message.
        """
        super().__init__(id)
        self.name = name or id
        self.participants: OrderedDict[str, str] = OrderedDict()
        self._agents: set[str] = set()
        self._max_rounds = max(1, max_rounds) if max_rounds is not None else None
        self._condition = termination_condition
        self._round = 0
        self._conversation: list[Message] = []

    def meet(self, executors: dict[str, Executor]) -> None:
        """Set the participants of the conversation, given by id. The builder calls this method when it builds a workflow."""
        self.participants = OrderedDict((name, describe(item)) for name, item in executors.items())
        self._agents = {name for name, item in executors.items() if isinstance(item, AgentExecutor)}

    async def choose(self, ctx: ChatContext) -> str | None:
        """Choose the next speaker, and return its name; return `None` if this method has called `end`, so that nobody answers next."""
        raise NotImplementedError

    @handler
    async def handle_str(self, task: str, ctx: ChatContext) -> None:
        """Handle a text: begin the conversation with the text as a user message."""
        await self.begin(as_messages(task), ctx)

    @handler
    async def handle_message(self, task: Message, ctx: ChatContext) -> None:
        """Handle a `Message`: begin the conversation with it."""
        await self.begin(as_messages(task), ctx)

    @handler
    async def handle_messages(self, task: list[str | Message], ctx: ChatContext) -> None:
        """Handle a list of messages: begin the conversation with them. A text becomes a user message."""
        await self.begin(as_messages(task), ctx)

    @handler
    async def handle_participant_response(self, response: AgentExecutorResponse | GroupChatResponseMessage, ctx: ChatContext) -> None:
        """Handle the answer of a participant: report it as an event, and continue the conversation with it."""
        who = ctx.get_source_executor_id()
        await ctx.add_event(WorkflowEvent("group_chat", GroupChatResponseReceivedEvent(self._round, who), self.id))
        answers = response.agent_response.messages if isinstance(response, AgentExecutorResponse) else [response.message]
        await self.add_answer(who, answers, ctx)

    async def begin(self, messages: list[Message], ctx: ChatContext) -> None:
        """Begin the conversation with these messages, and ask the first speaker to answer."""
        self._conversation += messages
        if not await self._is_over(ctx, check_rounds=False):
            await self._next(ctx, messages, None)

    async def add_answer(self, who: str, answers: Sequence[Message], ctx: ChatContext) -> None:
        """Add the answer `answers` of the participant `who` to the conversation. Then end the conversation or ask the next speaker."""
        messages = spoken(answers)
        self._conversation += messages
        if not await self._is_over(ctx, check_rounds=True):
            await self._next(ctx, messages, who)

    async def end(self, ctx: ChatContext, text: str) -> None:
        """End the conversation with `text` as the final message, which is an output of the workflow."""
        message = Message("assistant", [text], author_name=self.name)
        self._conversation.append(message)
        await finish(ctx, message)

    async def request(self, who: str, ctx: ChatContext, instruction: str | None = None) -> None:
        """Send the participant `who` a message that asks it to answer, optionally with an instruction. Report the request as an event."""
        if who in self._agents:
            messages = [Message("user", [instruction])] if instruction else []
            await ctx.send_message(AgentExecutorRequest(messages), target_id=who)
        else:
            await ctx.send_message(GroupChatRequestMessage(instruction), target_id=who)
        await ctx.add_event(WorkflowEvent("group_chat", GroupChatRequestSentEvent(self._round, who), self.id))
        self._round += 1

    async def broadcast(self, messages: list[Message], ctx: ChatContext, *, but: str | None) -> None:
        """Send messages of the conversation to all participants except `but`, without asking for an answer."""
        for name in self.participants:
            if name != but and name in self._agents:
                await ctx.send_message(AgentExecutorRequest(list(messages), should_respond=False), target_id=name)
            elif name != but:
                await ctx.send_message(GroupChatParticipantMessage(list(messages)), target_id=name)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """Return the state of the group chat for a checkpoint: the conversation and the number of requested answers."""
        return {"conversation": list(self._conversation), "round_index": self._round}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore the conversation and the number of requested answers from the result of `on_checkpoint_save`."""
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
        if await is_met(self._condition, self._conversation):
            await self.end(ctx, self.TERMINATION_CONDITION_MET_MESSAGE)
            return True
        if check_rounds and self._max_rounds is not None and self._round >= self._max_rounds:
            await self.end(ctx, self.MAX_ROUNDS_MET_MESSAGE)
            return True
        return False


class GroupChatOrchestrator(BaseGroupChatOrchestrator):
    """The executor that leads a group chat and chooses the next speaker with a function."""

    def __init__(
        self,
        id: str,
        selection_func: GroupChatSelectionFunction,
        *,
        name: str | None = None,
        max_rounds: int | None = None,
        termination_condition: TerminationCondition | None = None,
    ) -> None:
        """Create the executor `id`. `selection_func`, sync or async, returns the name of the next speaker.

        The conversation ends after `max_rounds` answers of participants, or when `termination_condition` returns true.
        """
        super().__init__(id, name=name, max_rounds=max_rounds, termination_condition=termination_condition)
        self._select = selection_func

    async def choose(self, ctx: ChatContext) -> str | None:
        """Call the selection function with the state of the conversation, and return the name of the next speaker."""
        chosen = self._select(GroupChatState(self._round, self.participants, list(self._conversation)))
        return await chosen if inspect.isawaitable(chosen) else chosen


class AgentOrchestrationOutput(BaseModel):
    """The parsed answer of the agent that leads a group chat: the next speaker, or the decision to end the conversation."""

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
    """The executor that leads a group chat and asks an agent to choose the next speaker."""

    def __init__(
        self,
        agent: SupportsAgentRun,
        *,
        max_rounds: int | None = None,
        termination_condition: TerminationCondition | None = None,
        retry_attempts: int = 2,
    ) -> None:
        """Create an executor that asks `agent`. `retry_attempts` is how often the agent is asked again after an unusable answer.

        The conversation ends after `max_rounds` answers of participants, or when `termination_condition` returns true.
        """
        super().__init__(resolve_agent_id(agent), name=agent.name, max_rounds=max_rounds, termination_condition=termination_condition)
        self._agent = agent
        self._session = agent.create_session()
        self._seen = 0
        self._retries = retry_attempts

    async def choose(self, ctx: ChatContext) -> str | None:
        """Ask the agent for the next speaker, and return the speaker's name; return `None` if the agent ends the conversation.

        The agent gets the messages that were added to the conversation since it was last asked.

        Raises:
            WorkflowError: None of the agent's answers could be used, within the allowed number of attempts.
        """
        team = "\n".join(f"- {name}: {description}" for name, description in self.participants.items())
        fresh, self._seen = self._conversation[self._seen :], len(self._conversation)
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
        """Return the state for a checkpoint: the conversation of the participants, and the session of the agent that leads it."""
        return {**await super().on_checkpoint_save(), "session": self._session.to_dict(), "told": self._seen}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore what `on_checkpoint_save` returned: the conversation, and the session of the agent that leads it."""
        await super().on_checkpoint_restore(state)
        self._session, self._seen = AgentSession.from_dict(state["session"]), state["told"]


class GroupChatBuilder(ReviewBuilder, StoredBuilder):
    """Builds a group chat: a workflow in which participants answer in one conversation, and an orchestrator chooses the next speaker.

    The final message of the orchestrator is the output of the workflow.
    """

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
        """Begin a group chat with these participants, which are agents or executors.

        Exactly one of `orchestrator_agent`, `orchestrator` and `selection_func` chooses the next speaker. `orchestrator_agent` and
        `orchestrator` may also be functions that return the agent or executor; they are called once per built workflow. The conversation
        ends after `max_rounds` answers, or when `termination_condition` returns true. Both are ignored with `orchestrator`, which has its
        own limits. `orchestrator_name`, the author of the final message, is only used with `selection_func`.

        Raises:
            ValueError: More than one of the three arguments that choose the speaker is given.
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
        """Set a sync or async function that gets the conversation's messages and returns whether the conversation ends.

        Ignored if the orchestrator is an executor, which has its own condition.
        """
        self._condition = termination_condition
        return self

    def with_max_rounds(self, max_rounds: int | None) -> Self:
        """Set the number of participants' answers after which the conversation ends; `None` means no limit.

        Ignored if the orchestrator is an executor, which has its own limit.
        """
        self._max_rounds = max_rounds
        return self

    def build(self) -> Workflow:
        """Build the graph of the group chat, and return the workflow.

        Raises:
            ValueError: Neither an orchestrator nor a selection function was given to choose the speakers.
            TypeError: The function that should return the orchestrator returned an object of another type.
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
