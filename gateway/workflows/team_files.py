"""The formats of orchestrations in workflow files: who takes part, and how.

Only shapes, as in `definition`; `team` builds the workflow with the builders of `orchestrations`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.workflows.shapes import (
    CHOOSER,
    CHOOSER_SCHEMA,
    FUNCTION,
    FUNCTION_SCHEMA,
    NAME,
    NAME_SCHEMA,
    PARTICIPANT,
    PARTICIPANT_SCHEMA,
    Closed,
    Review,
)

TEAM_FUNCTIONS = ("aggregator", "selection", "until")
"""Keys of orchestrations that name Python functions."""

Function = Annotated[str, FUNCTION, FUNCTION_SCHEMA]
Participants = Annotated[list[Annotated[str, PARTICIPANT, PARTICIPANT_SCHEMA]], Field(min_length=1)]


class SequentialTeam(Closed):
    """One after the other."""

    participants: Participants
    """Agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`), in order."""
    answers_only: bool = Field(default=False, alias="answers-only")
    """Whether each gets the answer before it, instead of the whole conversation."""
    review: Review = False
    """Whether a person sees answers before they go on: all of them, or those of the participants named."""


class ConcurrentTeam(Closed):
    """All at once."""

    participants: Participants
    """Agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`)."""
    aggregator: Function | None = None
    """A function of the list of answers as `package.module:function`; left out, the answers stand one after the other."""
    review: Review = False
    """Whether a person sees answers before they are put together: all of them, or those of the participants named."""


class GroupChatTeam(Closed):
    """A conversation."""

    participants: Participants
    """Agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`)."""
    orchestrator: Annotated[str, NAME, NAME_SCHEMA] | None = None
    """Agent that chooses who speaks next, and ends the conversation."""
    selection: Annotated[str, CHOOSER, CHOOSER_SCHEMA] | None = None
    """Instead of an orchestrator: `round-robin`, or a function of the state as `package.module:function`."""
    max_rounds: int | None = Field(default=None, alias="max-rounds", ge=1)
    """Answers after which the conversation ends."""
    until: Function | None = None
    """A function of the list of messages as `package.module:function`: whether the conversation is over."""
    review: Review = False
    """Whether a person sees answers before the others hear them: all of them, or those of the participants named."""


class HandoffTeam(Closed):
    """A conversation that is passed on."""

    participants: Participants
    """Agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`)."""
    start: str | None = None
    """Participant that answers first; left out, the first."""
    handoffs: dict[str, list[str]] | None = None
    """To whom each may pass the conversation on; left out, everybody to everybody."""
    return_to_start: bool = Field(default=False, alias="return-to-start")
    """Whether what the user answers goes to the first participant, instead of the one that asked."""
    autonomous_turns: int = Field(default=0, alias="autonomous-turns", ge=0)
    """How often a participant goes on by itself before the user is asked."""
    until: Function | None = None
    """A function of the list of messages as `package.module:function`: whether the conversation is over."""


class MagenticTeam(Closed):
    """A planned effort."""

    participants: Participants
    """Agents by name, and tools as `source/tool` (`workflow/brief`, `docs/search`)."""
    manager: Annotated[str, NAME, NAME_SCHEMA]
    """Agent that plans, follows the progress and gives the final answer."""
    max_rounds: int | None = Field(default=None, alias="max-rounds", ge=1)
    """Answers of participants after which the work ends."""
    max_stalls: int = Field(default=3, alias="max-stalls", ge=0)
    """Rounds without progress after which it plans again."""
    max_resets: int | None = Field(default=None, alias="max-resets", ge=0)
    """New plans after which the work ends."""
    review_plan: bool = Field(default=False, alias="review-plan")
    """Whether a person sees the plan before the work begins."""


Team = SequentialTeam | ConcurrentTeam | GroupChatTeam | HandoffTeam | MagenticTeam


def id_of(participant: str) -> str:
    """What a participant is called: an agent's name, or a tool's without its source."""
    return participant.rpartition("/")[2]


def pattern_of(participant: str) -> str:
    """The tool behind a participant, as `source/tool`."""
    return participant if "/" in participant else f"agent/{participant}"
