"""The formats of orchestrations in workflow files. `team` builds them with the builders of `orchestrations`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.workflows.field_types import Chooser, Closed, FunctionName, Name, Participant, Review

TEAM_FUNCTIONS = ("aggregator", "selection", "until")
"""Keys of orchestrations that name Python functions."""

Participants = Annotated[list[Participant], Field(min_length=1)]


class SequentialTeam(Closed):
    """Participants run one after the other."""

    participants: Participants
    """Agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`), in order."""
    answers_only: bool = Field(default=False, alias="answers-only")
    """Whether each participant gets only the answer before it, instead of the whole conversation."""
    review: Review = False
    """Whether a person reviews answers before they are passed on: all answers, or those of the named participants."""


class ConcurrentTeam(Closed):
    """Participants run concurrently."""

    participants: Participants
    """Agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`)."""
    aggregator: FunctionName | None = None
    """A function of the list of answers, as `package.module:function`. By default the answers follow each other in the result."""
    review: Review = False
    """Whether a person reviews answers before they are combined: all answers, or those of the named participants."""


class GroupChatTeam(Closed):
    """Participants talk in one conversation."""

    participants: Participants
    """Agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`)."""
    orchestrator: Name | None = None
    """The agent that chooses the next speaker and ends the conversation."""
    selection: Chooser | None = None
    """Instead of an orchestrator: `round-robin`, or a function of the state, as `package.module:function`."""
    max_rounds: int | None = Field(default=None, alias="max-rounds", ge=1)
    """Maximum number of answers in the conversation."""
    until: FunctionName | None = None
    """A function of the list of messages, as `package.module:function`, that returns whether the conversation has ended."""
    review: Review = False
    """Whether a person reviews answers before the others get them: all answers, or those of the named participants."""


class HandoffTeam(Closed):
    """Participants hand the conversation over to each other."""

    participants: Participants
    """Agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`)."""
    start: str | None = None
    """The participant that answers first. The default is the first in the list."""
    handoffs: dict[str, list[str]] | None = None
    """The participants to which each may hand over. By default each may hand over to every other."""
    return_to_start: bool = Field(default=False, alias="return-to-start")
    """Whether the user's answer goes to the first participant, instead of the one that asked."""
    autonomous_turns: int = Field(default=0, alias="autonomous-turns", ge=0)
    """How many turns a participant continues on its own before the user is asked."""
    until: FunctionName | None = None
    """A function of the list of messages, as `package.module:function`, that returns whether the conversation has ended."""


class MagenticTeam(Closed):
    """A manager makes a plan and instructs the participants."""

    participants: Participants
    """Agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`)."""
    manager: Name
    """The agent that plans, follows the progress and gives the final answer."""
    max_rounds: int | None = Field(default=None, alias="max-rounds", ge=1)
    """Maximum number of answers of participants."""
    max_stalls: int = Field(default=3, alias="max-stalls", ge=0)
    """Rounds without progress before the manager plans again."""
    max_resets: int | None = Field(default=None, alias="max-resets", ge=0)
    """Maximum number of new plans."""
    review_plan: bool = Field(default=False, alias="review-plan")
    """Whether a person reviews the plan before the work begins."""


Team = SequentialTeam | ConcurrentTeam | GroupChatTeam | HandoffTeam | MagenticTeam


def id_of(participant: str) -> str:
    """Return a participant's id: an agent's name, or a tool's name without its source."""
    return participant.rpartition("/")[2]


def pattern_of(participant: str) -> str:
    """Return the tool behind a participant, as `source/tool`."""
    return participant if "/" in participant else f"agent/{participant}"
