"""The form in which a run tells its parts: an agent's updates, or those of a chat client asked without an agent."""

from __future__ import annotations

import copy
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gateway.json_types import JsonObject
from gateway.types.content import Content
from gateway.types.messages import Role
from gateway.types.responses import AgentResponseUpdate, ChatResponse, ChatResponseUpdate

PartT = TypeVar("PartT")
PartT_co = TypeVar("PartT_co", covariant=True)


class Parts(Protocol[PartT_co]):
    """Makes the parts of one run."""

    @property
    def response_id(self) -> str:
        """The run's own id; ids of its messages start with it."""
        ...

    def of_model(self, part: ChatResponseUpdate, contents: list[Content], message_id: str) -> PartT_co:
        """What a model said, or what of it is told (`contents`), in the run's message `message_id`."""
        ...

    def own(self, contents: list[Content], role: Role, message_id: str, additional_properties: JsonObject | None = None) -> PartT_co:
        """What the loop itself says."""
        ...


@dataclass(frozen=True, slots=True)
class Replaced:
    """A model's answer that hooks replaced after its parts were told: in the whole it stands for those parts."""

    start: int
    end: int
    """Which of the run's parts."""
    message_id: str
    answer: ChatResponse


def with_replaced(updates: Sequence[PartT], replaced: Sequence[Replaced], parts: Parts[PartT]) -> list[PartT]:
    """A run's parts as its whole is made of them."""
    told = list(updates)
    for one in reversed(replaced):
        said = enumerate(one.answer.to_updates())
        told[one.start : one.end] = [parts.of_model(part, part.contents, f"{one.message_id}-{part.message_id or n}") for n, part in said]
    return told


_RUN_ID = re.compile(r"run-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?=-)")


def new_run_id() -> str:
    """Return the id of a new run of an agent."""
    return f"run-{uuid.uuid4()}"


def answer_of(update: AgentResponseUpdate) -> str | None:
    """Return what parts of one answer have in common: the id of the agent's run, or of another agent's response.

    A run calls its model several times, and each call has a response id of the provider's, so that id does not tell runs apart.
    """
    run = _RUN_ID.match(update.message_id or "")
    return update.response_id if run is None else run[0]


@dataclass(frozen=True, slots=True)
class AgentParts:
    """Parts of an agent's run."""

    response_id: str
    agent_name: str | None
    agent_id: str | None
    hides_response_id: bool = False
    """Leave the provider's id out of the parts: histories that store each model call continue the conversation, not a response's id."""

    def of_model(self, part: ChatResponseUpdate, contents: list[Content], message_id: str) -> AgentResponseUpdate:
        """The part as the agent's; its response id stays the provider's."""
        return AgentResponseUpdate(
            contents,
            part.role or "assistant",
            part.author_name or self.agent_name,
            message_id,
            None if self.hides_response_id else part.response_id,
            part.finish_reason,
            self.agent_id,
            part.created_at,
            part.continuation_token,
            part.additional_properties,
            part,
        )

    def own(
        self, contents: list[Content], role: Role, message_id: str, additional_properties: JsonObject | None = None
    ) -> AgentResponseUpdate:
        """A part under the agent's name, where it is the agent that speaks."""
        author = None if role == "tool" else self.agent_name
        return AgentResponseUpdate(
            contents, role, author, message_id, agent_id=self.agent_id, additional_properties=additional_properties
        )


@dataclass(frozen=True, slots=True)
class ChatParts:
    """Parts of a client's answer; the ids of responses and conversations stay the provider's."""

    response_id: str

    def of_model(self, part: ChatResponseUpdate, contents: list[Content], message_id: str) -> ChatResponseUpdate:
        """The part itself, in the run's message."""
        told = copy.copy(part)  # a client may give the same parts again
        told.contents = contents
        told.message_id = message_id
        return told

    def own(
        self, contents: list[Content], role: Role, message_id: str, additional_properties: JsonObject | None = None
    ) -> ChatResponseUpdate:
        """A part that no model call gave."""
        return ChatResponseUpdate(contents, role, message_id=message_id, additional_properties=additional_properties)
