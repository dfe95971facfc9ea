"""`EvalItem`: one conversation of an agent, to be judged by checks and evaluators, with expectations for the answer.

A splitter (a function) divides the conversation into query and response. Predefined splitters split after the last or after the first user
message; a custom splitter can split anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from gateway.json_types import JsonObject
from gateway.tools.function import FunctionTool
from gateway.types.messages import Message

Split = tuple[list[Message], list[Message]]


@runtime_checkable
class ConversationSplitter(Protocol):
    """Function that divides a conversation into the query and the response to judge."""

    def __call__(self, conversation: list[Message]) -> Split:
        """Return the messages up to and including the query, and the messages after it, which are the response."""
        ...


class ConversationSplit(StrEnum):
    """The predefined splitters: callables that divide a conversation into the query and the response to judge."""

    LAST_TURN = "last_turn"
    """Split after the last user message, to judge the answer to the newest question."""
    FULL = "full"
    """Split after the first user message, to judge the whole conversation."""

    def __call__(self, conversation: list[Message]) -> Split:
        """Return the messages of the query and those of the response. Without a user message, the whole conversation is the response."""
        asked = [index + 1 for index, message in enumerate(conversation) if message.role == "user"]
        at = (asked[-1] if self is ConversationSplit.LAST_TURN else asked[0]) if asked else 0
        return list(conversation[:at]), list(conversation[at:])


@dataclass
class ExpectedToolCall:
    """A tool call that the agent is expected to make. The check that uses it defines how arguments are compared."""

    name: str
    arguments: JsonObject | None = None
    """Arguments that the call must have; `None` accepts any arguments."""


@dataclass
class EvalItem:
    """One conversation of an agent to judge, with expectations for it."""

    conversation: list[Message]
    tools: list[FunctionTool[..., object]] | None = None
    """Functions that the agent could call."""
    context: str | None = None
    """Text of a document that the agent's answer should be based on."""
    expected_output: str | None = None
    expected_tool_calls: list[ExpectedToolCall] | None = None
    split_strategy: ConversationSplitter | Callable[[list[Message]], Split] | None = None
    """Function that divides the conversation into query and response; `None` means `ConversationSplit.LAST_TURN`."""

    @property
    def query(self) -> str:
        """Text of the user messages in the query, the first part of the split conversation."""
        return _texts_of("user", self.split_messages()[0])

    @property
    def response(self) -> str:
        """Text of the assistant messages in the response, the second part of the split conversation."""
        return _texts_of("assistant", self.split_messages()[1])

    def split_messages(self, split: ConversationSplitter | Callable[[list[Message]], Split] | None = None) -> Split:
        """Return the messages of the query and those of the response, divided by `split` or by the item's own splitter."""
        return (split or self.split_strategy or ConversationSplit.LAST_TURN)(self.conversation)

    @staticmethod
    def per_turn_items(
        conversation: list[Message], *, tools: list[FunctionTool[..., object]] | None = None, context: str | None = None
    ) -> list[EvalItem]:
        """Return one item per user message, each with the conversation up to the next user message."""
        asked = [index for index, message in enumerate(conversation) if message.role == "user"]
        ends = [*asked[1:], len(conversation)] if asked else []
        return [EvalItem(list(conversation[:end]), tools, context) for end in ends]


def _texts_of(role: str, messages: Sequence[Message]) -> str:
    return " ".join(message.text for message in messages if message.role == role and message.text).strip()
