"""`EvalItem`: a conversation to be judged, with what was expected of it; plain data.

`query` and `response` are read off the conversation by a splitter: at its last user message, its first, or where a function
of one's own says.
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
    """Says which messages of a conversation are the question and which the answer to judge."""

    def __call__(self, conversation: list[Message]) -> Split:
        """The messages up to the question, and those after it."""
        ...


class ConversationSplit(StrEnum):
    """The usual splitters; each can be called."""

    LAST_TURN = "last_turn"
    """After the last user message: was the latest question answered well?"""
    FULL = "full"
    """After the first user message: did the whole conversation serve it?"""

    def __call__(self, conversation: list[Message]) -> Split:
        """Split; without a user message all of it is the answer."""
        asked = [index + 1 for index, message in enumerate(conversation) if message.role == "user"]
        at = (asked[-1] if self is ConversationSplit.LAST_TURN else asked[0]) if asked else 0
        return list(conversation[:at]), list(conversation[at:])


@dataclass
class ExpectedToolCall:
    """A tool call that should have been made; what counts as the same call the check says."""

    name: str
    arguments: JsonObject | None = None
    """`None`: they do not matter."""


@dataclass
class EvalItem:
    """One conversation to judge."""

    conversation: list[Message]
    tools: list[FunctionTool[..., object]] | None = None
    """What the agent could have called."""
    context: str | None = None
    """A document the answer should rest on."""
    expected_output: str | None = None
    expected_tool_calls: list[ExpectedToolCall] | None = None
    split_strategy: ConversationSplitter | Callable[[list[Message]], Split] | None = None
    """`None` is `ConversationSplit.LAST_TURN`."""

    @property
    def query(self) -> str:
        """What users said on the question's side."""
        return _said_by("user", self.split_messages()[0])

    @property
    def response(self) -> str:
        """What the assistant said on the answer's side."""
        return _said_by("assistant", self.split_messages()[1])

    def split_messages(self, split: ConversationSplitter | Callable[[list[Message]], Split] | None = None) -> Split:
        """Question and answer, by `split` or the item's own splitter."""
        return (split or self.split_strategy or ConversationSplit.LAST_TURN)(self.conversation)

    @staticmethod
    def per_turn_items(
        conversation: list[Message], *, tools: list[FunctionTool[..., object]] | None = None, context: str | None = None
    ) -> list[EvalItem]:
        """One item for each user message, each with all of the conversation up to the next."""
        asked = [index for index, message in enumerate(conversation) if message.role == "user"]
        ends = [*asked[1:], len(conversation)] if asked else []
        return [EvalItem(list(conversation[:end]), tools, context) for end in ends]


def _said_by(role: str, messages: Sequence[Message]) -> str:
    return " ".join(message.text for message in messages if message.role == role and message.text).strip()
