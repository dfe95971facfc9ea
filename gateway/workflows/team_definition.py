"""Pydantic models of the orchestrations (agents that work together by a predefined pattern) in workflow files.

`team` builds the graphs of these orchestrations.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.workflows.field_types import Chooser, Closed, FunctionName, Name, Participant, Review

TEAM_FUNCTIONS = ("aggregator", "selection", "until")
"""Keys of orchestrations in workflow files whose values name Python functions."""

Participants = Annotated[list[Participant], Field(min_length=1)]


class SequentialTeam(Closed):
    """An orchestration in which participants run one after the other."""

    participants: Participants
    """The participants in order: agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`)."""
    answers_only: bool = Field(default=False, alias="answers-only")
    """Whether each participant gets only the answer of the participant before it, instead of the whole conversation."""
    review: Review = False
    """Whether a person reviews answers before the next participant gets them: all answers, or those of the named participants."""


class ConcurrentTeam(Closed):
    """An orchestration in which participants run concurrently with the same input, and their answers are combined."""

    participants: Participants
    """The participants: agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`)."""
    aggregator: FunctionName | None = None
    """A function, as `package.module:function`, that combines the answers. By default the result contains them one after the other."""
    review: Review = False
    """Whether a person reviews answers before they are combined: all answers, or those of the named participants."""


class GroupChatTeam(Closed):
    """An orchestration in which participants answer in one conversation, and an agent or a function chooses the next speaker."""

    participants: Participants
    """The participants: agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`)."""
    orchestrator: Name | None = None
    """The agent that chooses the next speaker and ends the conversation."""
    selection: Chooser | None = None
    """Instead of `orchestrator`: `round-robin`, or a function as `package.module:function` that chooses the next speaker.

    The argument of the function is a `GroupChatState`."""
    max_rounds: int | None = Field(default=None, alias="max-rounds", ge=1)
    """Maximum number of answers of participants in the conversation."""
    until: FunctionName | None = None
    """A function of the list of messages, as `package.module:function`, that returns whether the conversation has ended."""
    review: Review = False
    """Whether a person reviews answers before other participants get them: all answers, or those of the named participants."""


class HandoffTeam(Closed):
    """An orchestration in which participants hand the conversation over to each other, or ask the user."""

    participants: Participants
    """The participants: agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`)."""
    start: str | None = None
    """The participant that answers first. The default is the first in the list."""
    handoffs: dict[str, list[str]] | None = None
    """Name of a participant → names of the participants to which it may hand over. By default each may hand over to every other.

    If the key is given, participants without an entry cannot hand over."""
    return_to_start: bool = Field(default=False, alias="return-to-start")
    """Whether the user's answer goes to the participant in `start`, instead of the participant that asked."""
    autonomous_turns: int = Field(default=0, alias="autonomous-turns", ge=0)
    """How many times a participant is prompted to continue without the user, before the user is asked."""
    until: FunctionName | None = None
    """A function of the list of messages, as `package.module:function`, that returns whether the conversation has ended."""


class MagenticTeam(Closed):
    """An orchestration in which a manager makes a plan, instructs the participants, and makes a new plan if progress stops."""

    participants: Participants
    """The participants: agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`)."""
    manager: Name
    """The agent that plans, follows the progress and gives the final answer."""
    max_rounds: int | None = Field(default=None, alias="max-rounds", ge=1)
    """Maximum number of the manager's judgements of the progress. At most one participant answers after each. Unlimited by default."""
    max_stalls: int = Field(default=3, alias="max-stalls", ge=0)
    """Number of answers without progress that are accepted before the manager makes a new plan."""
    max_resets: int | None = Field(default=None, alias="max-resets", ge=0)
    """Number of new plans after a lack of progress with which the workflow ends. The last of them is not followed."""
    review_plan: bool = Field(default=False, alias="review-plan")
    """Whether a person reviews the plan before the work begins."""


Team = SequentialTeam | ConcurrentTeam | GroupChatTeam | HandoffTeam | MagenticTeam


def id_of(participant: str) -> str:
    """Return the id of a participant of an orchestration: the agent's name, or the tool's name without its source."""
    return participant.rpartition("/")[2]


def pattern_of(participant: str) -> str:
    """Return the name, as `source/tool`, of the tool that runs a participant of an orchestration. For an agent it is `agent/NAME`."""
    return participant if "/" in participant else f"agent/{participant}"
