"""Managers of magentic workflows: `MagenticManagerBase`, their interface, and `StandardMagenticManager`, which asks an agent.

A manager makes the plan for a task and judges the progress; the module `magentic` carries out its decisions. Names are those of Microsoft's
agent-framework.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gateway.errors import WorkflowError
from gateway.sessions.session import SupportsAgentRun
from gateway.types.messages import Message
from gateway.workflows.steps import find_object

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
    """The answer of a magentic workflow's manager to one question about the progress, with the reason for the answer."""

    reason: str
    answer: str | bool


@dataclass
class MagenticProgressLedger:
    """The judgement of the progress by a magentic workflow's manager, as answers to five questions, such as who answers next."""

    is_request_satisfied: MagenticProgressLedgerItem
    is_in_loop: MagenticProgressLedgerItem
    is_progress_being_made: MagenticProgressLedgerItem
    next_speaker: MagenticProgressLedgerItem
    instruction_or_question: MagenticProgressLedgerItem

    @classmethod
    def of(cls, data: dict[str, Any]) -> MagenticProgressLedger:
        """Create a ledger from the JSON object in the answer of the manager's agent.

        Raises:
            ValueError: An entry is missing, or has no `answer`.
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
    """The state of a magentic workflow's work on one task, which is passed to the methods of the manager.

    `round_count` is the number of the manager's judgements of the progress. A judgement that there is no progress, or that the work is in a
    loop, increases `stall_count`; every other judgement decreases it, to 0 at least. `reset_count` is the number of new plans because of a
    lack of progress.
    """

    task: str
    chat_history: list[Message] = field(default_factory=list[Message])
    participant_descriptions: dict[str, str] = field(default_factory=dict[str, str])
    round_count: int = 0
    stall_count: int = 0
    reset_count: int = 0

    @property
    def team(self) -> str:
        """The names of the participants with their descriptions, as text with one participant per line."""
        return "\n".join(f"- {name}: {text}" for name, text in self.participant_descriptions.items())

    def clone(self) -> MagenticContext:
        """Return a copy with copied collections. Adding messages or participants to the copy does not change this object."""
        return replace(self, chat_history=list(self.chat_history), participant_descriptions=dict(self.participant_descriptions))

    def reset(self) -> None:
        """Clear the conversation and the count of stalls, and increase the count of resets. The work then starts again with a new plan."""
        self.chat_history.clear()
        self.stall_count = 0
        self.reset_count += 1


class MagenticManagerBase:
    """Base class of managers of magentic workflows, which make the plan and judge the progress. Subclasses implement the async methods."""

    def __init__(self, *, max_stall_count: int = 3, max_reset_count: int | None = None, max_round_count: int | None = None) -> None:
        """Set the limits of the work on a task.

        If `MagenticContext.stall_count` exceeds `max_stall_count`, the manager makes a new plan. The work ends after `max_reset_count` such
        plans (the last of them is not followed), or after `max_round_count` judgements; `None` means no limit.
        """
        self.max_stall_count = max_stall_count
        self.max_reset_count = max_reset_count
        self.max_round_count = max_round_count

    async def plan(self, magentic_context: MagenticContext) -> Message:
        """Make the first plan for the task, and return it as a message."""
        raise NotImplementedError

    async def replan(self, magentic_context: MagenticContext) -> Message:
        """Make another plan, after a lack of progress or a person's remarks, and return it as a message."""
        raise NotImplementedError

    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        """Judge the progress, and choose the participant that answers next and the instruction to it. Return the judgement."""
        raise NotImplementedError

    async def prepare_final_answer(self, magentic_context: MagenticContext) -> Message:
        """Return the final answer to the task, which is the output of the workflow."""
        raise NotImplementedError

    def on_checkpoint_save(self) -> dict[str, Any]:
        """Return the state inside the manager object for a checkpoint. The default is empty."""
        return {}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore the state inside the manager object from the result of `on_checkpoint_save`. The default does nothing."""


class StandardMagenticManager(MagenticManagerBase):
    """A manager of magentic workflows that asks an agent for plans and for judgements of the progress.

    Each question is a separate run of the agent, without a session, whose input contains the conversation so far.
    """

    def __init__(
        self,
        agent: SupportsAgentRun,
        *,
        max_stall_count: int = 3,
        max_reset_count: int | None = None,
        max_round_count: int | None = None,
        progress_ledger_retry_count: int = 3,
        task_ledger_facts_prompt: str | None = None,
        task_ledger_plan_prompt: str | None = None,
        task_ledger_full_prompt: str | None = None,
        task_ledger_facts_update_prompt: str | None = None,
        task_ledger_plan_update_prompt: str | None = None,
        progress_ledger_prompt: str | None = None,
        final_answer_prompt: str | None = None,
    ) -> None:
        """Create a manager that asks `agent`. The limits `max_…_count` are those of `MagenticManagerBase`.

        `progress_ledger_retry_count` is the maximum number of attempts to get a judgement that can be parsed. A prompt may contain the
        placeholders of the default prompt that it replaces: `{task}`, `{team}`, `{facts}`, `{old_facts}`, `{plan}`, `{names}`.
        """
        super().__init__(max_stall_count=max_stall_count, max_reset_count=max_reset_count, max_round_count=max_round_count)
        self._agent = agent
        self._attempts = max(1, progress_ledger_retry_count)
        self._facts_prompt = task_ledger_facts_prompt or FACTS_PROMPT
        self._plan_prompt = task_ledger_plan_prompt or PLAN_PROMPT
        self._full_prompt = task_ledger_full_prompt or FULL_PROMPT
        self._facts_update_prompt = task_ledger_facts_update_prompt or FACTS_UPDATE_PROMPT
        self._plan_update_prompt = task_ledger_plan_update_prompt or PLAN_UPDATE_PROMPT
        self._progress_prompt = progress_ledger_prompt or PROGRESS_PROMPT
        self._final_prompt = final_answer_prompt or FINAL_PROMPT
        self._facts = ""

    async def plan(self, magentic_context: MagenticContext) -> Message:
        """Ask the agent for the known facts of the task, then for a plan. Return one message with task, team, facts and plan."""
        return await self._plan(magentic_context, self._facts_prompt.format(task=magentic_context.task), self._plan_prompt)

    async def replan(self, magentic_context: MagenticContext) -> Message:
        """Ask the agent for corrected facts, then for another plan. Return one message with task, team, facts and plan."""
        facts = self._facts_update_prompt.format(task=magentic_context.task, old_facts=self._facts)
        return await self._plan(magentic_context, facts, self._plan_update_prompt)

    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        """Ask the agent to judge the progress, and return the judgement.

        Ask again if the answer cannot be parsed, or if its next speaker is not a participant and the task is not finished.

        Raises:
            WorkflowError: No answer could be used within the allowed number of attempts.
        """
        context = magentic_context
        names = list(context.participant_descriptions)
        prompt = self._progress_prompt.format(task=context.task, team=context.team, names=", ".join(names))
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
        """Ask the agent for the final answer to the task, and return it."""
        prompt = Message("user", [self._final_prompt.format(task=magentic_context.task)])
        answer = await self._ask(magentic_context, [prompt])
        return Message("assistant", [answer.text], author_name=answer.author_name or MAGENTIC_MANAGER_NAME)

    def on_checkpoint_save(self) -> dict[str, Any]:
        """Return the facts about the task that the agent last gave, for a checkpoint."""
        return {"facts": self._facts}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore the facts that `on_checkpoint_save` returned: the facts about the task that the agent last gave."""
        self._facts = state.get("facts", "")

    async def _plan(self, context: MagenticContext, facts_prompt: str, plan_prompt: str) -> Message:
        question = Message("user", [facts_prompt])
        facts = await self._ask(context, [question])
        plan = await self._ask(context, [question, facts, Message("user", [plan_prompt.format(team=context.team)])])
        self._facts = facts.text
        text = self._full_prompt.format(task=context.task, team=context.team, facts=facts.text, plan=plan.text)
        return Message("assistant", [text], author_name=MAGENTIC_MANAGER_NAME)

    async def _ask(self, context: MagenticContext, messages: list[Message]) -> Message:
        response = await self._agent.run([*context.chat_history, *messages])
        answers = [message for message in response.messages if message.role == "assistant" and message.text]
        if not answers:
            raise WorkflowError("The manager's agent returned an empty answer.")
        return answers[-1]
