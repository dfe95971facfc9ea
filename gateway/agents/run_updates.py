"""Factories for the updates that the run loop yields: `AgentUpdates` for an agent, `ChatUpdates` for a chat client without an agent."""

from __future__ import annotations

import copy
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gateway.json_types import JsonObject
from gateway.types.content import Content
from gateway.types.framework_functions import map_chat_to_agent_update
from gateway.types.messages import Role
from gateway.types.responses import AgentResponseUpdate, ChatResponse, ChatResponseUpdate

PartT = TypeVar("PartT")
PartT_co = TypeVar("PartT_co", covariant=True)


class Updates(Protocol[PartT_co]):
    """Creates the updates that one run of the loop of model and tool calls yields."""

    @property
    def response_id(self) -> str:
        """The run's own id, which is the prefix of its message ids."""
        ...

    def of_model(self, part: ChatResponseUpdate, contents: list[Content], message_id: str) -> PartT_co:
        """Return the run's update for `part`, an update of a model's answer. `contents` and `message_id` replace those of `part`."""
        ...

    def own(self, contents: list[Content], role: Role, message_id: str, additional_properties: JsonObject | None = None) -> PartT_co:
        """Return an update for contents that the run loop created, such as tool results."""
        ...


@dataclass(frozen=True, slots=True)
class ReplacedAnswer:
    """A model's answer that middleware changed after its updates had been emitted. The run's final response contains this answer."""

    start: int
    end: int
    """Index after the last of the run's updates that `answer` replaces; the first has the index `start`."""
    message_id: str
    answer: ChatResponse


def with_replaced(updates: Sequence[PartT], replaced: Sequence[ReplacedAnswer], factory: Updates[PartT]) -> list[PartT]:
    """Return the updates of a run, with the answers in `replaced` (changed by middleware after streaming) in place of the streamed answers.

    `factory` creates the updates of the changed answers.
    """
    result = list(updates)
    for one in reversed(replaced):
        parts = enumerate(one.answer.to_updates())
        result[one.start : one.end] = [
            factory.of_model(part, part.contents, f"{one.message_id}-{part.message_id or number}") for number, part in parts
        ]
    return result


_RUN_ID = re.compile(r"run-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?=-)")


def new_run_id() -> str:
    """Return a new id for an agent's run."""
    return f"run-{uuid.uuid4()}"


def answer_of(update: AgentResponseUpdate) -> str | None:
    """Return an id that all updates of an agent's answer share: the run id in the message id, or else the response id.

    A run makes several model calls, and each has its own response id from the provider, so a response id does not identify a run.
    """
    run = _RUN_ID.match(update.message_id or "")
    return update.response_id if run is None else run[0]


@dataclass(frozen=True, slots=True)
class AgentUpdates:
    """Creates the updates that an agent's run yields."""

    response_id: str
    agent_name: str | None
    agent_id: str | None
    hides_response_id: bool = False
    """Whether updates omit the model provider's response id: true if `CallHistory` stores the conversation and the provider does not."""

    def of_model(self, part: ChatResponseUpdate, contents: list[Content], message_id: str) -> AgentResponseUpdate:
        """Return the agent's update for `part`, an update of a model's answer.

        The response id of the model's provider is kept, unless `hides_response_id` is set.
        """
        update = map_chat_to_agent_update(part, self.agent_name)
        update.contents, update.message_id, update.agent_id = contents, message_id, self.agent_id
        update.role = part.role or "assistant"
        if self.hides_response_id:
            update.response_id = None
        return update

    def own(
        self, contents: list[Content], role: Role, message_id: str, additional_properties: JsonObject | None = None
    ) -> AgentResponseUpdate:
        """Return an update for contents that the run loop created. The author is the agent, except for tool results."""
        author = None if role == "tool" else self.agent_name
        return AgentResponseUpdate(
            contents, role, author, message_id, agent_id=self.agent_id, additional_properties=additional_properties
        )


@dataclass(frozen=True, slots=True)
class ChatUpdates:
    """Creates the updates of a chat client that executes tool calls. Response and conversation ids of the model's provider are kept."""

    response_id: str

    def of_model(self, part: ChatResponseUpdate, contents: list[Content], message_id: str) -> ChatResponseUpdate:
        """Return a copy of `part`, an update of a model's answer, with `contents` and `message_id`."""
        update = copy.copy(part)  # a client may send the same objects again
        update.contents = contents
        update.message_id = message_id
        return update

    def own(
        self, contents: list[Content], role: Role, message_id: str, additional_properties: JsonObject | None = None
    ) -> ChatResponseUpdate:
        """Return an update for contents that the run loop created, such as tool results."""
        return ChatResponseUpdate(contents, role, message_id=message_id, additional_properties=additional_properties)
