"""Divides conversations into groups of messages, which compaction excludes together, and annotates the messages with their groups.

A group is a system message, a user message, an assistant's text, or a tool call with its reasoning, results and approvals. Providers of
models reject a conversation in which a call has no result, or a result has no call, so a group is never split. The annotations are stored
in `Message.additional_properties` under agent-framework's keys, and are never sent to a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from gateway.json_types import JsonMapping, JsonObject
from gateway.sessions.history import EXCLUDED_KEY, included
from gateway.types.compaction import TokenizerProtocol
from gateway.types.content import Content
from gateway.types.messages import Message

GroupKind = Literal["system", "user", "assistant_text", "tool_call"]

GROUP_ANNOTATION_KEY = "_group"
"""Key in the `additional_properties` of a message. Its value is an object that describes the message's group.

A group is the messages that compaction must exclude together. The constants that follow are keys of this object, except
`EXCLUDE_REASON_KEY`, which is a key in `additional_properties`.
"""
GROUP_ID_KEY = "id"
GROUP_KIND_KEY = "kind"
GROUP_INDEX_KEY = "index"
GROUP_HAS_REASONING_KEY = "has_reasoning"
GROUP_TOKEN_COUNT_KEY = "token_count"
EXCLUDE_REASON_KEY = "_exclude_reason"
SUMMARY_OF_MESSAGE_IDS_KEY = "_summary_of_message_ids"
SUMMARY_OF_GROUP_IDS_KEY = "_summary_of_group_ids"
SUMMARIZED_BY_SUMMARY_ID_KEY = "_summarized_by_summary_id"


class CharacterEstimatorTokenizer:
    """Estimates the number of tokens of a text as a quarter of its characters. This suffices to decide when to compact a conversation."""

    def count_tokens(self, text: str) -> int:
        """Return the estimated number of tokens of a text: a quarter of its characters, at least 1."""
        return max(1, len(text) // 4)


@dataclass(slots=True)
class MessageGroup:
    """Messages of a conversation that compaction must exclude together, such as a tool call and its result.

    The messages need not be adjacent, because the result may follow after an approval.
    """

    id: str
    kind: GroupKind
    start: int
    """Index of the first message of the group in the conversation."""
    messages: list[Message] = field(default_factory=lambda: list[Message]())

    @property
    def included(self) -> list[Message]:
        """The messages of the group that compaction has not excluded."""
        return included(self.messages)

    def exclude(self, reason: str) -> bool:
        """Mark all messages of the group as excluded, so that the model does not see them. Return false if all were excluded already."""
        left = self.included
        for message in left:
            message.additional_properties[EXCLUDED_KEY] = True
            message.additional_properties[EXCLUDE_REASON_KEY] = reason
        return bool(left)

    def note(self, **marks: object) -> None:
        """Add values to the annotation `GROUP_ANNOTATION_KEY` of each message of the group; the annotation describes the group."""
        for message in self.messages:
            _annotate(message, marks)


def annotate_message_groups(
    messages: list[Message], *, from_index: int | None = None, force_reannotate: bool = False, tokenizer: TokenizerProtocol | None = None
) -> list[str]:
    """Annotate all messages of a conversation with their group and, if a `tokenizer` is given, their token count.

    A group is the messages that compaction must exclude together, such as a tool call and its result.

    Returns the ids of the groups in order. Messages without an id receive one. The tokens of each message are counted only once, unless
    `force_reannotate` is true. `from_index` is ignored; it exists for compatibility with agent-framework.
    """
    groups = _group(messages)
    for index, group in enumerate(groups):
        has_reasoning = any(content.type == "text_reasoning" for message in group.messages for content in message.contents)
        for message in group.messages:
            known = annotation_of(message).get(GROUP_TOKEN_COUNT_KEY)
            count = None if force_reannotate else known
            if count is None and tokenizer is not None:
                count = tokenizer.count_tokens(_as_text(message))
            marks = {
                GROUP_ID_KEY: group.id, GROUP_KIND_KEY: group.kind, GROUP_INDEX_KEY: index, GROUP_HAS_REASONING_KEY: has_reasoning,
                GROUP_TOKEN_COUNT_KEY: count if tokenizer is not None else known,
            }  # fmt: skip
            _annotate(message, marks)
            message.additional_properties.setdefault(EXCLUDED_KEY, False)
    return [group.id for group in groups]


def groups_of(messages: list[Message], tokenizer: TokenizerProtocol | None = None) -> list[MessageGroup]:
    """Divide a conversation into groups of messages that compaction must exclude together, and return the groups in order.

    The messages are annotated with their groups and, with a `tokenizer`, token counts.
    """
    annotate_message_groups(messages, tokenizer=tokenizer)
    return _group(messages)


def newest_group(groups: Sequence[MessageGroup]) -> MessageGroup | None:
    """Return the last group of messages that is neither excluded nor a system message; `None` if there is no such group.

    Compaction never excludes this group, so that the model has input.
    """
    return max((group for group in groups if group.kind != "system" and group.included), key=lambda group: group.start, default=None)


def included_messages(messages: list[Message]) -> list[Message]:
    """Return the messages of a conversation that the model sees: those that compaction has not excluded."""
    return included(messages)


def included_token_count(messages: list[Message]) -> int:
    """Return the total number of tokens of the messages that compaction has not excluded; messages without a token count are ignored."""
    counts = (annotation_of(message).get(GROUP_TOKEN_COUNT_KEY) for message in included(messages))
    return sum(count for count in counts if isinstance(count, int))


def annotation_of(message: Message) -> JsonMapping:
    """Return the description of a message's group: the value of the annotation `GROUP_ANNOTATION_KEY`; empty without this annotation.

    A group is the messages that compaction must exclude together, such as a tool call and its result. The description has the group's id
    and kind.
    """
    found = message.additional_properties.get(GROUP_ANNOTATION_KEY)
    return cast("JsonMapping", found) if isinstance(found, Mapping) else {}


def _annotate(message: Message, marks: Mapping[str, object]) -> None:
    # The object is replaced rather than changed, because copies of a message share it.
    message.additional_properties[GROUP_ANNOTATION_KEY] = {**annotation_of(message), **marks}


def _group(messages: list[Message]) -> list[MessageGroup]:
    _give_ids(messages)
    groups: list[MessageGroup] = []
    by_call: dict[str, MessageGroup] = {}
    index = 0
    while index < len(messages):
        end = _end_of_span(messages, index)
        span = messages[index:end]
        group = MessageGroup(f"group_{span[0].message_id}", _kind_of(span), index)
        for message in span:
            belongs_to = next((by_call[id] for id in _answered(message) if id and id in by_call), group)
            by_call |= dict.fromkeys(_called(message), group)
            belongs_to.messages.append(message)
        if group.messages:
            groups.append(group)
        index = end
    return groups


def _give_ids(messages: list[Message]) -> None:
    taken = {message.message_id for message in messages}
    number = 0
    for message in messages:
        if message.message_id:
            continue
        while (candidate := f"msg_{number}") in taken:
            number += 1
        taken.add(candidate)
        message.message_id = candidate


def _end_of_span(messages: Sequence[Message], start: int) -> int:
    """Return the index after the last of the adjacent messages that belong to the group that begins at index `start`."""
    if messages[start].role in ("system", "user"):
        return start + 1
    head = start
    while head < len(messages) and _is_reasoning(messages[head]):
        head += 1
    if head == len(messages) or not (_called(messages[head]) or messages[head].role == "tool"):
        return start + 1
    if messages[head].role == "tool" and head > start:
        return start + 1
    end = head + 1
    while messages[head].role != "tool" and end < len(messages) and _is_reasoning(messages[end]):
        end += 1
    while end < len(messages) and messages[end].role == "tool":
        end += 1
    return end


def _kind_of(span: Sequence[Message]) -> GroupKind:
    if span[0].role == "system":
        return "system"
    if span[0].role == "user":
        return "user"
    return "tool_call" if any(_called(message) or message.role == "tool" for message in span) else "assistant_text"


def _is_reasoning(message: Message) -> bool:
    return message.role == "assistant" and bool(message.contents) and all(content.type == "text_reasoning" for content in message.contents)


def _called(message: Message) -> list[str]:
    """Return the ids of the tool calls in an assistant's message, including calls that wait for approval; empty for other messages."""
    if message.role != "assistant":
        return []
    return [_call_id(content) for content in message.contents if content.type in ("function_call", "function_approval_request")]


def _answered(message: Message) -> list[str]:
    """Return the ids of the tool calls whose result, approval or rejection a message contains."""
    return [_call_id(content) for content in message.contents if content.type in ("function_result", "function_approval_response")]


def _call_id(content: Content) -> str:
    inner = getattr(content, "function_call", None) or content
    return str(getattr(inner, "call_id", None) or "")


def _as_text(message: Message) -> str:
    """Return the text whose tokens are counted for a message: its role and contents as JSON."""
    contents: list[JsonObject] = [content.to_dict() for content in message.contents]
    for content in contents:
        content.pop("items", None)  # has the same data as `result`
    payload = {"role": message.role, "message_id": message.message_id, "contents": contents}
    return json.dumps(payload, sort_keys=True, default=str)
