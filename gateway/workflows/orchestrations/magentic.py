"""`MagenticBuilder`: builds workflows in which a manager makes a plan, instructs participants, and makes a new plan if progress stops.

The manager is a `MagenticManagerBase` (module `magentic_manager`). The pattern is Magentic-One (https://arxiv.org/abs/2411.04468).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self

from gateway.errors import WorkflowError
from gateway.sessions.session import SupportsAgentRun
from gateway.types.messages import Message, to_messages
from gateway.workflows.agent_executor import AgentExecutor, serve_call
from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.events import WorkflowEvent
from gateway.workflows.executor import handler, response_handler
from gateway.workflows.orchestrations.group_chat import BaseGroupChatOrchestrator, ChatContext, UnknownParticipantError
from gateway.workflows.orchestrations.magentic_manager import (
    MAGENTIC_MANAGER_NAME,
    MagenticContext,
    MagenticManagerBase,
    MagenticProgressLedger,
    StandardMagenticManager,
)
from gateway.workflows.orchestrations.participants import IntermediateFrom, OutputFrom, Participant, StoredBuilder, finish, spoken
from gateway.workflows.workflow import Workflow
from gateway.workflows.workflow_context import WorkflowContext


class MagenticOrchestratorEventType(StrEnum):
    """Kinds of `magentic_orchestrator` events: first plan, new plan, or new judgement of the progress."""

    PLAN_CREATED = "plan_created"
    REPLANNED = "replanned"
    PROGRESS_LEDGER_UPDATED = "progress_ledger_updated"


@dataclass
class MagenticOrchestratorEvent:
    """Data of a `magentic_orchestrator` event: a plan of the manager (a message), or its judgement of the progress (a ledger)."""

    event_type: MagenticOrchestratorEventType
    content: Message | MagenticProgressLedger


class MagenticResetSignal:
    """Message to the participants of a magentic workflow: drop the conversation so far, because there was no progress."""


@dataclass
class MagenticPlanReviewResponse:
    """A person's response to the plan of a magentic workflow. `review` has the person's remarks; if it is empty, the plan is approved."""

    review: list[Message]

    @staticmethod
    def approve() -> MagenticPlanReviewResponse:
        """Return a response that approves the plan."""
        return MagenticPlanReviewResponse([])

    @staticmethod
    def revise(feedback: str | Message | list[str | Message]) -> MagenticPlanReviewResponse:
        """Return a response that asks the manager for another plan, with remarks on this plan."""
        return MagenticPlanReviewResponse(to_messages(feedback))


@dataclass
class MagenticPlanReviewRequest:
    """A magentic workflow's request for a person's review of its plan. The methods create the possible responses.

    `is_stalled` means that the manager made the plan because the previous one led to no progress.
    """

    plan: Message
    current_progress: MagenticProgressLedger | None
    is_stalled: bool

    def approve(self) -> MagenticPlanReviewResponse:
        """Return a response that approves the plan."""
        return MagenticPlanReviewResponse.approve()

    def revise(self, feedback: str | Message | list[str | Message]) -> MagenticPlanReviewResponse:
        """Return a response that asks the manager for another plan, with remarks on this plan."""
        return MagenticPlanReviewResponse.revise(feedback)


class MagenticAgentExecutor(AgentExecutor):
    """The executor of an agent in a magentic workflow. It drops the agent's conversation after a lack of progress."""

    @handler
    async def handle_magentic_reset(self, signal: MagenticResetSignal, ctx: WorkflowContext[Any, Any]) -> None:
        """Handle the reset message of the orchestrator: drop the conversation, and start a new session with the agent."""
        self.forget()


class MagenticOrchestrator(BaseGroupChatOrchestrator):
    """The executor that leads a magentic workflow: it lets the manager plan and judge the progress, and asks participants to answer."""

    MANAGER_NAME: ClassVar[str] = "magentic_orchestrator"

    def __init__(self, manager: MagenticManagerBase, *, require_plan_signoff: bool = False) -> None:
        """Create an executor that carries out the decisions of `manager`. With `require_plan_signoff`, a person reviews every plan."""
        super().__init__(self.MANAGER_NAME, name=MAGENTIC_MANAGER_NAME)
        self._manager = manager
        self._signoff = require_plan_signoff
        self._context: MagenticContext | None = None
        self._plan: Message | None = None
        self._ledger: MagenticProgressLedger | None = None

    async def begin(self, messages: list[Message], ctx: ChatContext) -> None:
        """Begin the work: have the manager make the first plan for the task in `messages`.

        Then request a person's review of the plan if that is required; otherwise start to follow the plan.

        Raises:
            ValueError: The messages contain no text.
        """
        task = "\n".join(message.text for message in messages).strip()
        if not task:
            raise ValueError("A magentic workflow needs a task as text.")
        serve_call(self._manager, ctx.call)
        self._context = MagenticContext(task, list(messages), dict(self.participants))
        self._plan = await self._manager.plan(self._context)
        await self._add_event(MagenticOrchestratorEventType.PLAN_CREATED, self._plan, ctx)
        await self._review_or_go(ctx, is_stalled=False)

    async def add_answer(self, who: str, answers: Sequence[Message], ctx: ChatContext) -> None:
        """Add the answer `answers` of the participant `who` to the conversation, and have the manager judge the progress."""
        serve_call(self._manager, ctx.call)
        messages = spoken(answers)
        self._known.chat_history += messages
        await self.broadcast(messages, ctx, but=who)
        await self._go_on(ctx)

    @response_handler
    async def handle_plan_review_response(
        self, original_request: MagenticPlanReviewRequest, response: MagenticPlanReviewResponse, ctx: ChatContext
    ) -> None:
        """Handle a person's review of the plan: follow an approved plan, otherwise have the manager make another plan from the remarks."""
        context = self._known
        serve_call(self._manager, ctx.call)
        if response.review:
            context.chat_history += response.review
            self._plan = await self._manager.replan(context)
            await self._add_event(MagenticOrchestratorEventType.REPLANNED, self._plan, ctx)
            await self._review_or_go(ctx, is_stalled=original_request.is_stalled)
        else:
            await self._go(ctx)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the conversation, the plan, the last judgement of the progress, and the manager's state."""
        own = {"context": self._context, "plan": self._plan, "ledger": self._ledger, "manager": self._manager.on_checkpoint_save()}
        return {**await super().on_checkpoint_save(), **own}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore the state of this executor and of the manager from the result of `on_checkpoint_save`."""
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
        await self._add_event(MagenticOrchestratorEventType.PROGRESS_LEDGER_UPDATED, ledger, ctx)
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
            known = ", ".join(self.participants)
            raise UnknownParticipantError(f"The manager chose the unknown participant {speaker!r}; they are {known}.")
        context.chat_history.append(Message("assistant", [instruction], author_name=MAGENTIC_MANAGER_NAME))
        await self.request(speaker, ctx, instruction)

    async def _again(self, ctx: ChatContext) -> None:
        self._known.reset()
        await ctx.send_message(MagenticResetSignal())
        self._plan = await self._manager.replan(self._known)
        await self._add_event(MagenticOrchestratorEventType.REPLANNED, self._plan, ctx)
        await self._review_or_go(ctx, is_stalled=True)

    async def _add_event(self, kind: MagenticOrchestratorEventType, content: Message | MagenticProgressLedger, ctx: ChatContext) -> None:
        await ctx.add_event(WorkflowEvent("magentic_orchestrator", MagenticOrchestratorEvent(kind, content), self.id))


class MagenticBuilder(StoredBuilder):
    """Builds a workflow in which a manager makes a plan, instructs participants, and makes a new plan if progress stops.

    The final answer of the manager is the output of the workflow; if a limit ends the work, a text that names the limit.
    """

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        manager: MagenticManagerBase | None = None,
        manager_factory: Callable[[], MagenticManagerBase] | None = None,
        manager_agent: SupportsAgentRun | None = None,
        manager_agent_factory: Callable[[], SupportsAgentRun] | None = None,
        task_ledger_facts_prompt: str | None = None,
        task_ledger_plan_prompt: str | None = None,
        task_ledger_full_prompt: str | None = None,
        task_ledger_facts_update_prompt: str | None = None,
        task_ledger_plan_update_prompt: str | None = None,
        progress_ledger_prompt: str | None = None,
        final_answer_prompt: str | None = None,
        max_stall_count: int = 3,
        max_reset_count: int | None = None,
        max_round_count: int | None = None,
        enable_plan_review: bool = False,
        name: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        output_from: OutputFrom | None = None,
        intermediate_output_from: IntermediateFrom | None = None,
    ) -> None:
        """Begin a magentic workflow with these participants. Pass exactly one argument that determines the manager.

        `manager` is used itself; `manager_agent` is the agent of a new `StandardMagenticManager` with the given prompts and limits.
        `manager_factory` and `manager_agent_factory` are functions that return a manager or an agent; they are called once per built
        workflow. With `enable_plan_review`, a person reviews every plan.

        Raises:
            ValueError: More than one argument that determines the manager is given.
        """
        super().__init__(participants, output_from, intermediate_output_from, name=name or "Magentic", storage=checkpoint_storage)
        given = [item for item in (manager, manager_factory, manager_agent, manager_agent_factory) if item is not None]
        if len(given) > 1:
            raise ValueError("Exactly one of manager, manager_factory, manager_agent, or manager_agent_factory must be provided.")

        def standard(agent: SupportsAgentRun) -> StandardMagenticManager:
            return StandardMagenticManager(
                agent,
                max_stall_count=max_stall_count,
                max_reset_count=max_reset_count,
                max_round_count=max_round_count,
                task_ledger_facts_prompt=task_ledger_facts_prompt,
                task_ledger_plan_prompt=task_ledger_plan_prompt,
                task_ledger_full_prompt=task_ledger_full_prompt,
                task_ledger_facts_update_prompt=task_ledger_facts_update_prompt,
                task_ledger_plan_update_prompt=task_ledger_plan_update_prompt,
                progress_ledger_prompt=progress_ledger_prompt,
                final_answer_prompt=final_answer_prompt,
            )

        self._make: Callable[[], MagenticManagerBase] | None = manager_factory
        if manager is not None:
            self._make = lambda: manager
        elif manager_agent is not None:
            self._make = lambda: standard(manager_agent)
        elif manager_agent_factory is not None:
            self._make = lambda: standard(manager_agent_factory())
        self._signoff = enable_plan_review

    def with_plan_review(self, enable: bool = True) -> Self:
        """Set whether a person reviews every plan before the participants follow it."""
        self._signoff = enable
        return self

    def build(self) -> Workflow:
        """Build the graph with the manager and the participants, and return the workflow.

        Raises:
            ValueError: No argument determines the manager.
        """
        if self._make is None:
            raise ValueError("No manager configured: pass manager, manager_factory, manager_agent or manager_agent_factory.")
        orchestrator = MagenticOrchestrator(self._make(), require_plan_signoff=self._signoff)
        executors = self._executors(MagenticAgentExecutor)
        orchestrator.meet(executors)
        return self._star(orchestrator, executors)
