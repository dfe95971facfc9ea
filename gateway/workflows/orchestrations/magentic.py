"""`MagenticBuilder`: a manager plans, tells participants what to do, follows the progress, and plans again when it stalls.

The manager is any `MagenticManagerBase`; `StandardMagenticManager` asks an agent. Pattern: Magentic-One
(https://arxiv.org/abs/2411.04468).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Self

from gateway.errors import WorkflowError
from gateway.sessions.session import SupportsAgentRun
from gateway.types.messages import Message, to_messages
from gateway.workflows.agent_executor import AgentExecutor, serve_call
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.context import WorkflowContext
from gateway.workflows.events import WorkflowEvent
from gateway.workflows.executor import handler, response_handler
from gateway.workflows.orchestrations.group_chat import BaseGroupChatOrchestrator, ChatContext
from gateway.workflows.orchestrations.participants import IntermediateFrom, OutputFrom, Participant, ParticipantBuilder, finish, spoken
from gateway.workflows.steps import find_object
from gateway.workflows.workflow import Workflow

MAGENTIC_MANAGER_NAME = "magentic_manager"

FACTS_PROMPT = """\
A team will work on this request:

{task}

Before it starts, say what is known: the facts that the request gives, the facts that have to be looked up and where, what
has to be worked out, and what you would guess. Do not plan yet."""

PLAN_PROMPT = """\
The team:
{team}

From what is known and what is not, write a short plan as a list: who does what. Not everybody has to take part."""

FULL_PROMPT = """\
We work on this request:

{task}

The team:
{team}

What is known:
{facts}

The plan:
{plan}"""

FACTS_UPDATE_PROMPT = """\
We work on this request and do not get on as we should:

{task}

Write down again what is known, with what was learned since, and correct what turned out to be wrong. This is what we
thought:

{old_facts}"""

PLAN_UPDATE_PROMPT = """\
Say in a few words what went wrong, then write a new plan that avoids it. The team:
{team}"""

PROGRESS_PROMPT = """\
We work on this request:

{task}

The team:
{team}

Judge where we are. Answer with one JSON object and nothing else, every entry with a "reason" and an "answer":
{{"is_request_satisfied": {{"reason": "", "answer": true or false}},
 "is_in_loop": {{"reason": "", "answer": true or false}},
 "is_progress_being_made": {{"reason": "", "answer": true or false}},
 "next_speaker": {{"reason": "", "answer": "one of: {names}"}},
 "instruction_or_question": {{"reason": "", "answer": "what to tell them"}}}}"""

FINAL_PROMPT = """\
We worked on this request, and it is done:

{task}

Write the answer for whoever made the request, from what was said above."""


@dataclass
class MagenticProgressLedgerItem:
    """One judgement."""

    reason: str
    answer: str | bool


@dataclass
class MagenticProgressLedger:
    """Where the work stands."""

    is_request_satisfied: MagenticProgressLedgerItem
    is_in_loop: MagenticProgressLedgerItem
    is_progress_being_made: MagenticProgressLedgerItem
    next_speaker: MagenticProgressLedgerItem
    instruction_or_question: MagenticProgressLedgerItem

    @classmethod
    def of(cls, data: dict[str, Any]) -> MagenticProgressLedger:
        """From a manager's JSON.

        Raises:
            ValueError: An entry is missing.
        """
        items: dict[str, MagenticProgressLedgerItem] = {}
        for name in cls.__dataclass_fields__:
            item = data.get(name)
            if not isinstance(item, dict) or "answer" not in item:
                raise ValueError(f"{name!r} with an 'answer' is missing")
            items[name] = MagenticProgressLedgerItem(str(item.get("reason") or ""), item["answer"])  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        return cls(**items)


@dataclass
class MagenticContext:
    """What a manager sees."""

    task: str
    chat_history: list[Message] = field(default_factory=list[Message])
    participant_descriptions: dict[str, str] = field(default_factory=dict[str, str])
    round_count: int = 0
    stall_count: int = 0
    reset_count: int = 0

    @property
    def team(self) -> str:
        """The participants, one a line."""
        return "\n".join(f"- {name}: {text}" for name, text in self.participant_descriptions.items())

    def reset(self) -> None:
        """Begin again with the same task."""
        self.chat_history.clear()
        self.stall_count = 0
        self.reset_count += 1


class MagenticManagerBase:
    """Plans and judges."""

    def __init__(self, *, max_stall_count: int = 3, max_reset_count: int | None = None, max_round_count: int | None = None) -> None:
        """After more than `max_stall_count` rounds without progress it plans again; the other two end the work."""
        self.max_stall_count = max_stall_count
        self.max_reset_count = max_reset_count
        self.max_round_count = max_round_count

    async def plan(self, magentic_context: MagenticContext) -> Message:
        """The first plan."""
        raise NotImplementedError

    async def replan(self, magentic_context: MagenticContext) -> Message:
        """Another plan, after a stall or a person's remarks."""
        raise NotImplementedError

    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        """Where the work stands."""
        raise NotImplementedError

    async def prepare_final_answer(self, magentic_context: MagenticContext) -> Message:
        """The answer."""
        raise NotImplementedError

    def on_checkpoint_save(self) -> dict[str, Any]:
        """What it keeps."""
        return {}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Take it back."""


class StandardMagenticManager(MagenticManagerBase):
    """Asks an agent, each time in a conversation of its own."""

    def __init__(
        self,
        agent: SupportsAgentRun,
        *,
        max_stall_count: int = 3,
        max_reset_count: int | None = None,
        max_round_count: int | None = None,
        progress_ledger_retry_count: int = 3,
        final_answer_prompt: str | None = None,
    ) -> None:
        """`progress_ledger_retry_count`: attempts at a judgement that can be read."""
        super().__init__(max_stall_count=max_stall_count, max_reset_count=max_reset_count, max_round_count=max_round_count)
        self._agent = agent
        self._attempts = max(1, progress_ledger_retry_count)
        self._final_prompt = final_answer_prompt or FINAL_PROMPT
        self._facts = ""

    async def plan(self, magentic_context: MagenticContext) -> Message:
        """Facts, then the plan."""
        return await self._plan(magentic_context, FACTS_PROMPT.format(task=magentic_context.task), PLAN_PROMPT)

    async def replan(self, magentic_context: MagenticContext) -> Message:
        """Corrected facts, then another plan."""
        facts = FACTS_UPDATE_PROMPT.format(task=magentic_context.task, old_facts=self._facts)
        return await self._plan(magentic_context, facts, PLAN_UPDATE_PROMPT)

    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        """Ask until it can be read.

        Raises:
            WorkflowError: It never could.
        """
        context = magentic_context
        names = list(context.participant_descriptions)
        prompt = PROGRESS_PROMPT.format(task=context.task, team=context.team, names=", ".join(names))
        question, problem = prompt, ""
        for _ in range(self._attempts):
            text = (await self._ask(context, [Message("user", [question])])).text
            try:
                found = find_object(text)
                if found is None:
                    raise ValueError("there is no JSON object in it")
                ledger = MagenticProgressLedger.of(found)
                if ledger.is_request_satisfied.answer is not True and ledger.next_speaker.answer not in names:
                    raise ValueError(f"next_speaker is {ledger.next_speaker.answer!r}, not one of {', '.join(names)}")
            except ValueError as error:
                problem = str(error)
                question = f"{prompt}\n\nYour last answer cannot be used: {problem}."
                continue
            return ledger
        raise WorkflowError(f"The manager's judgement could not be read after {self._attempts} attempts: {problem}.")

    async def prepare_final_answer(self, magentic_context: MagenticContext) -> Message:
        """Ask for it."""
        prompt = Message("user", [self._final_prompt.format(task=magentic_context.task)])
        answer = await self._ask(magentic_context, [prompt])
        return Message("assistant", [answer.text], author_name=answer.author_name or MAGENTIC_MANAGER_NAME)

    def on_checkpoint_save(self) -> dict[str, Any]:
        """The facts."""
        return {"facts": self._facts}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self._facts = state["facts"]

    async def _plan(self, context: MagenticContext, facts_prompt: str, plan_prompt: str) -> Message:
        question = Message("user", [facts_prompt])
        facts = await self._ask(context, [question])
        plan = await self._ask(context, [question, facts, Message("user", [plan_prompt.format(team=context.team)])])
        self._facts = facts.text
        text = FULL_PROMPT.format(task=context.task, team=context.team, facts=facts.text, plan=plan.text)
        return Message("assistant", [text], author_name=MAGENTIC_MANAGER_NAME)

    async def _ask(self, context: MagenticContext, messages: list[Message]) -> Message:
        response = await self._agent.run([*context.chat_history, *messages])
        answers = [message for message in response.messages if message.role == "assistant" and message.text]
        if not answers:
            raise WorkflowError("The manager's agent answered nothing.")
        return answers[-1]


class MagenticOrchestratorEventType(StrEnum):
    """What a `magentic_orchestrator` event tells."""

    PLAN_CREATED = "plan_created"
    REPLANNED = "replanned"
    PROGRESS_LEDGER_UPDATED = "progress_ledger_updated"


@dataclass
class MagenticOrchestratorEvent:
    """Data of a `magentic_orchestrator` event."""

    event_type: MagenticOrchestratorEventType
    content: Message | MagenticProgressLedger


class MagenticResetSignal:
    """Tells participants to forget."""


@dataclass
class MagenticPlanReviewResponse:
    """What a person says to a plan: remarks, or none to go ahead."""

    review: list[Message]

    @staticmethod
    def approve() -> MagenticPlanReviewResponse:
        """Go ahead."""
        return MagenticPlanReviewResponse([])

    @staticmethod
    def revise(feedback: str | Message | list[str | Message]) -> MagenticPlanReviewResponse:
        """Plan again with these remarks."""
        return MagenticPlanReviewResponse(to_messages(feedback))


@dataclass
class MagenticPlanReviewRequest:
    """A plan, for a person to look at."""

    plan: Message
    current_progress: MagenticProgressLedger | None
    is_stalled: bool

    def approve(self) -> MagenticPlanReviewResponse:
        """Go ahead."""
        return MagenticPlanReviewResponse.approve()

    def revise(self, feedback: str | Message | list[str | Message]) -> MagenticPlanReviewResponse:
        """Plan again with these remarks."""
        return MagenticPlanReviewResponse.revise(feedback)


class MagenticAgentExecutor(AgentExecutor):
    """A participant that can be told to forget."""

    @handler
    async def handle_magentic_reset(self, signal: MagenticResetSignal, ctx: WorkflowContext[Any, Any]) -> None:
        """Forget the conversation."""
        self.forget()


class MagenticOrchestrator(BaseGroupChatOrchestrator):
    """Runs the manager's plan."""

    MANAGER_NAME: ClassVar[str] = "magentic_orchestrator"

    def __init__(self, manager: MagenticManagerBase, *, require_plan_signoff: bool = False) -> None:
        """With `require_plan_signoff` a person looks at every plan."""
        super().__init__(self.MANAGER_NAME, name=MAGENTIC_MANAGER_NAME)
        self._manager = manager
        self._signoff = require_plan_signoff
        self._context: MagenticContext | None = None
        self._plan: Message | None = None
        self._ledger: MagenticProgressLedger | None = None

    async def begin(self, messages: list[Message], ctx: ChatContext) -> None:
        """Plan.

        Raises:
            ValueError: The task is empty.
        """
        task = "\n".join(message.text for message in messages).strip()
        if not task:
            raise ValueError("A magentic workflow needs a task in words.")
        serve_call(self._manager, ctx.call)
        self._context = MagenticContext(task, list(messages), dict(self.participants))
        self._plan = await self._manager.plan(self._context)
        await self._tell(MagenticOrchestratorEventType.PLAN_CREATED, self._plan, ctx)
        await self._review_or_go(ctx, is_stalled=False)

    async def heard(self, who: str, said: Sequence[Message], ctx: ChatContext) -> None:
        """A participant did what it was told."""
        serve_call(self._manager, ctx.call)
        messages = spoken(said)
        self._known.chat_history += messages
        await self.broadcast(messages, ctx, but=who)
        await self._go_on(ctx)

    @response_handler
    async def handle_plan_review_response(
        self, original_request: MagenticPlanReviewRequest, response: MagenticPlanReviewResponse, ctx: ChatContext
    ) -> None:
        """Go ahead, or plan again."""
        context = self._known
        serve_call(self._manager, ctx.call)
        if response.review:
            context.chat_history += response.review
            self._plan = await self._manager.replan(context)
            await self._tell(MagenticOrchestratorEventType.REPLANNED, self._plan, ctx)
            await self._review_or_go(ctx, is_stalled=original_request.is_stalled)
        else:
            await self._go(ctx)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """With plan, progress and the manager's own state."""
        own = {"context": self._context, "plan": self._plan, "ledger": self._ledger, "manager": self._manager.on_checkpoint_save()}
        return {**await super().on_checkpoint_save(), **own}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Take it back."""
        await super().on_checkpoint_restore(state)
        self._context, self._plan, self._ledger = state["context"], state["plan"], state["ledger"]
        self._manager.on_checkpoint_restore(state["manager"])

    @property
    def _known(self) -> MagenticContext:
        if self._context is None:
            raise WorkflowError("The magentic workflow has not begun.")
        return self._context

    async def _review_or_go(self, ctx: ChatContext, *, is_stalled: bool) -> None:
        if self._signoff and self._plan is not None:
            await ctx.request_info(MagenticPlanReviewRequest(self._plan, self._ledger, is_stalled), MagenticPlanReviewResponse)
        else:
            await self._go(ctx)

    async def _go(self, ctx: ChatContext) -> None:
        if self._plan is not None:
            self._known.chat_history.append(self._plan)
        await self._go_on(ctx)

    async def _go_on(self, ctx: ChatContext) -> None:
        context, manager = self._known, self._manager
        if manager.max_round_count is not None and context.round_count >= manager.max_round_count:
            await self.end(ctx, "Workflow terminated due to reaching maximum round count.")
            return
        if manager.max_reset_count is not None and context.reset_count >= manager.max_reset_count:
            await self.end(ctx, "Workflow terminated due to reaching maximum reset count.")
            return
        context.round_count += 1
        ledger = self._ledger = await manager.create_progress_ledger(context)
        await self._tell(MagenticOrchestratorEventType.PROGRESS_LEDGER_UPDATED, ledger, ctx)
        if ledger.is_request_satisfied.answer is True:
            await finish(ctx, await manager.prepare_final_answer(context))
            return
        stalls = ledger.is_progress_being_made.answer is not True or ledger.is_in_loop.answer is True
        context.stall_count = context.stall_count + 1 if stalls else max(0, context.stall_count - 1)
        if context.stall_count > manager.max_stall_count:
            await self._again(ctx)
            return
        speaker, instruction = str(ledger.next_speaker.answer), str(ledger.instruction_or_question.answer)
        if speaker not in self.participants:
            raise WorkflowError(f"The manager chose the unknown participant {speaker!r}; they are {', '.join(self.participants)}.")
        context.chat_history.append(Message("assistant", [instruction], author_name=MAGENTIC_MANAGER_NAME))
        await self.request(speaker, ctx, instruction)

    async def _again(self, ctx: ChatContext) -> None:
        self._known.reset()
        await ctx.send_message(MagenticResetSignal())
        self._plan = await self._manager.replan(self._known)
        await self._tell(MagenticOrchestratorEventType.REPLANNED, self._plan, ctx)
        await self._review_or_go(ctx, is_stalled=True)

    async def _tell(self, kind: MagenticOrchestratorEventType, content: Message | MagenticProgressLedger, ctx: ChatContext) -> None:
        await ctx.add_event(WorkflowEvent("magentic_orchestrator", MagenticOrchestratorEvent(kind, content), self.id))


class MagenticBuilder(ParticipantBuilder):
    """Builds a magentic workflow; the manager's final answer is its output."""

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        manager: MagenticManagerBase | None = None,
        manager_agent: SupportsAgentRun | None = None,
        max_stall_count: int = 3,
        max_reset_count: int | None = None,
        max_round_count: int | None = None,
        enable_plan_review: bool = False,
        name: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        output_from: OutputFrom | None = None,
        intermediate_output_from: IntermediateFrom | None = None,
    ) -> None:
        """Either a `manager`, or a `manager_agent` that a `StandardMagenticManager` with these limits asks.

        Raises:
            ValueError: None or both are given.
        """
        super().__init__(participants, output_from, intermediate_output_from)
        if (manager is None) == (manager_agent is None):
            raise ValueError("Exactly one of manager or manager_agent must be provided.")
        self._manager = manager or StandardMagenticManager(
            manager_agent,  # pyright: ignore[reportArgumentType]  # one of the two is there
            max_stall_count=max_stall_count,
            max_reset_count=max_reset_count,
            max_round_count=max_round_count,
        )
        self._signoff = enable_plan_review
        self._name = name or "Magentic"
        self._storage = checkpoint_storage

    def with_plan_review(self, enable: bool = True) -> Self:
        """Show every plan to a person."""
        self._signoff = enable
        return self

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage) -> Self:
        """Keep a checkpoint of every round."""
        self._storage = checkpoint_storage
        return self

    def build(self) -> Workflow:
        """The workflow."""
        orchestrator = MagenticOrchestrator(self._manager, require_plan_signoff=self._signoff)
        executors = self._executors(MagenticAgentExecutor)
        orchestrator.meet(executors)
        outputs, intermediates = self._outputs(executors, default=(), always=[orchestrator.id])
        builder = WorkflowBuilder(
            name=self._name,
            start_executor=orchestrator,
            checkpoint_storage=self._storage,
            output_from=outputs,
            intermediate_output_from=intermediates,
        )
        for executor in executors.values():
            builder.add_edge(orchestrator, executor).add_edge(executor, orchestrator)
        return builder.build()
