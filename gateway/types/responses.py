"""Responses of chat clients and agents, whole and streamed.

A streamed response is a sequence of updates; `from_updates` folds them, so a run written as a stream needs no twin.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from types import GenericAlias
from typing import Any, Literal, NewType, Self, TypeVar, cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.types.annotations import UsageDetails, add_usage, add_usage_details
from gateway.types.content import Content
from gateway.types.copying import RAW, joined_raw, sharing_raw
from gateway.types.messages import Message, Role, to_contents
from gateway.types.streams import ResponseStream
from gateway.types.structured import ResponseFormat, parse_answer

__all__ = [
    "AgentResponse",
    "AgentResponseUpdate",
    "ChatResponse",
    "ChatResponseUpdate",
    "ResponseFormat",
    "ResponseStream",
    "add_usage",
    "add_usage_details",
]


FinishReasonLiteral = Literal["stop", "length", "tool_calls", "content_filter"]
"""Why a model stopped, in the words of most providers."""

FinishReason = NewType("FinishReason", str)
"""Why a model stopped, where a provider has a word of its own."""

ContinuationToken = dict[str, Any]
"""Where a response that is still being made can be picked up; opaque, and only for the client that gave it."""

Timestamp = str | datetime
"""When something was made: a `datetime`, or ISO 8601 text, which is its JSON form."""

_ResponseT = TypeVar("_ResponseT", "ChatResponse", "AgentResponse")


GivenMessages = Message | JsonMapping | Sequence[Message | JsonMapping] | None
"""Messages of a response, as objects or in their JSON form."""


GivenContents = str | Content | JsonMapping | Sequence[Content | str | JsonMapping] | None
"""Contents of a message or an update, as objects, as texts or in their JSON form."""


class _Unparsed:
    """Stands for a value that was not read yet; a class, because copies of it must be itself."""


_UNPARSED = _Unparsed


class _Update:
    """What parts of responses share: their text, and their JSON form."""

    __slots__ = ()

    contents: list[Content]

    __deepcopy__ = sharing_raw

    @property
    def text(self) -> str:
        """The text in this part."""
        return "".join(c.text or "" for c in self.contents if c.type == "text")

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> JsonObject:
        """JSON form; the provider's own object is left out."""
        data: JsonObject = {"type": _KINDS[type(self).__name__], "contents": [content.to_dict() for content in self.contents]}
        for name in (own.name for own in fields(cast("Any", self)) if own.name not in ("contents", RAW)):
            if (value := getattr(self, name)) is not None:
                data[name] = iso_time(value) if isinstance(value, datetime) else value
        return data

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: JsonMapping) -> Self:
        """The inverse of `to_dict`."""
        known = {own.name for own in fields(cast("Any", cls))} - {"contents"}
        return cls(to_contents(data.get("contents")), **{key: value for key, value in data.items() if key in known})  # pyright: ignore[reportCallIssue]  # the dataclass's

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        return cls.from_dict(json.loads(text))


def _as_list(contents: GivenContents) -> list[Content]:
    if isinstance(contents, list) and all(isinstance(content, Content) for content in contents):
        return cast("list[Content]", contents)
    return to_contents(contents)


_KINDS = {"ChatResponseUpdate": "chat_response_update", "AgentResponseUpdate": "agent_response_update"}


@dataclass(slots=True, init=False)
class ChatResponseUpdate(_Update):
    """A part of a streamed model response."""

    contents: list[Content] = field(default_factory=lambda: list[Content]())
    role: Role | str | None = None
    response_id: str | None = None
    model: str | None = None
    finish_reason: str | None = None
    """A `FinishReasonLiteral` or the provider's own word, on the last part."""
    author_name: str | None = None
    message_id: str | None = None
    conversation_id: str | None = None
    created_at: Timestamp | None = None
    continuation_token: ContinuationToken | None = None
    additional_properties: JsonObject | None = None
    raw_representation: object = None

    def __init__(
        self,
        contents: GivenContents = None,
        role: Role | str | None = None,
        response_id: str | None = None,
        model: str | None = None,
        finish_reason: str | None = None,
        author_name: str | None = None,
        message_id: str | None = None,
        conversation_id: str | None = None,
        created_at: Timestamp | None = None,
        continuation_token: ContinuationToken | None = None,
        additional_properties: JsonObject | None = None,
        raw_representation: object = None,
    ) -> None:
        """Texts and dicts among `contents` become `Content`; a list of `Content` is kept as it is."""
        self.contents = _as_list(contents)
        self.role = role
        self.response_id = response_id
        self.model = model
        self.finish_reason = finish_reason
        self.author_name = author_name
        self.message_id = message_id
        self.conversation_id = conversation_id
        self.created_at = created_at
        self.continuation_token = continuation_token
        self.additional_properties = additional_properties
        self.raw_representation = raw_representation


@dataclass(slots=True, init=False)
class AgentResponseUpdate(_Update):
    """A part of an agent's run."""

    contents: list[Content] = field(default_factory=lambda: list[Content]())
    role: Role | str | None = None
    author_name: str | None = None
    message_id: str | None = None
    """Parts of one message share it."""
    response_id: str | None = None
    finish_reason: str | None = None
    agent_id: str | None = None
    created_at: Timestamp | None = None
    continuation_token: ContinuationToken | None = None
    additional_properties: JsonObject | None = None
    raw_representation: object = None

    def __init__(
        self,
        contents: GivenContents = None,
        role: Role | str | None = None,
        author_name: str | None = None,
        message_id: str | None = None,
        response_id: str | None = None,
        finish_reason: str | None = None,
        agent_id: str | None = None,
        created_at: Timestamp | None = None,
        continuation_token: ContinuationToken | None = None,
        additional_properties: JsonObject | None = None,
        raw_representation: object = None,
    ) -> None:
        """Texts and dicts among `contents` become `Content`; a list of `Content` is kept as it is."""
        self.contents = _as_list(contents)
        self.role = role
        self.author_name = author_name
        self.message_id = message_id
        self.response_id = response_id
        self.finish_reason = finish_reason
        self.agent_id = agent_id
        self.created_at = created_at
        self.continuation_token = continuation_token
        self.additional_properties = additional_properties
        self.raw_representation = raw_representation

    @property
    def user_input_requests(self) -> list[Content]:
        """What in this part waits for a person."""
        return [c for c in self.contents if c.user_input_request]


class _Response:
    """What whole responses share: their messages, and the answer as a value."""

    __slots__ = ("_format", "_value", "messages")

    def __class_getitem__(cls, item: object) -> GenericAlias:
        """`AgentResponse[City]` names the type of `value` for readers, as in agent-framework's code."""
        return GenericAlias(cls, item)

    __deepcopy__ = sharing_raw

    def __init__(self, messages: GivenMessages, value: JsonValue, response_format: ResponseFormat | None) -> None:
        given = [messages] if isinstance(messages, Message | Mapping) else messages or ()
        self.messages: list[Message] = [Message.from_dict(item) if isinstance(item, Mapping) else item for item in given]
        self._value: JsonValue = _UNPARSED if value is None else value
        self._format = response_format

    @property
    def response_format(self) -> ResponseFormat | None:
        """What the answer must look like, where something was asked for."""
        return self._format

    @property
    def value(self) -> JsonValue:
        """The answer as structured output, where one was asked for; parsed when first read (requirements SO3).

        Raises:
            ValueError: The answer does not have the form (a pydantic `ValidationError`, where a model was given).
        """
        if self._value is _UNPARSED:
            answer = last_text(self.messages)
            self._value = None if self._format is None or not answer else parse_answer(answer, self._format)
        return self._value

    def parsed(self) -> JsonValue:
        """The value if it was given or read already."""
        return None if self._value is _UNPARSED else self._value

    @property
    def text(self) -> str:
        """The text of all messages, whoever said it; `last_text` has the assistant's last word (requirements C22)."""
        return "".join(message.text for message in self.messages)

    def __str__(self) -> str:
        return self.text


class ChatResponse(_Response):
    """A whole model response."""

    __slots__ = (
        "additional_properties",
        "continuation_token",
        "conversation_id",
        "created_at",
        "finish_reason",
        "model",
        "raw_representation",
        "response_id",
        "usage_details",
    )

    def __init__(
        self,
        messages: GivenMessages = None,
        response_id: str | None = None,
        model: str | None = None,
        finish_reason: str | None = None,
        usage_details: UsageDetails | None = None,
        *,
        conversation_id: str | None = None,
        created_at: Timestamp | None = None,
        value: JsonValue = None,
        response_format: ResponseFormat | None = None,
        continuation_token: ContinuationToken | None = None,
        additional_properties: JsonObject | None = None,
        raw_representation: object = None,
    ) -> None:
        """`continuation_token` is there while the response is still being made."""
        super().__init__(messages, value, response_format)
        self.response_id = response_id
        self.model = model
        self.finish_reason = finish_reason
        self.usage_details = usage_details
        self.conversation_id = conversation_id
        self.created_at = created_at
        self.continuation_token = continuation_token
        self.additional_properties: JsonObject = additional_properties or {}
        self.raw_representation = raw_representation

    @property
    def text(self) -> str:
        """The text of all messages, a line for each."""
        return "\n".join(message.text for message in self.messages).strip()

    @classmethod
    def from_updates(cls, updates: Iterable[ChatResponseUpdate], *, output_format_type: ResponseFormat | None = None) -> ChatResponse:
        """Fold a stream's parts; neighbouring text joins, pieces of a call join, usage adds up."""
        response = cls(response_format=output_format_type)
        for update in updates:
            response.conversation_id = update.conversation_id or response.conversation_id
            response.model = update.model or response.model
            _fold(response, update)
        _settle(response)
        return response

    @classmethod
    async def from_update_generator(
        cls, updates: AsyncIterable[ChatResponseUpdate], *, output_format_type: ResponseFormat | None = None
    ) -> ChatResponse:
        """`from_updates` of a stream."""
        return cls.from_updates([update async for update in updates], output_format_type=output_format_type)

    def to_updates(self) -> list[ChatResponseUpdate]:
        """The parts that fold into this response: one for each message, the last one with what belongs to the whole."""
        made = [
            ChatResponseUpdate(m.contents, m.role, self.response_id, self.model, None, m.author_name, m.message_id or f"message-{number}")
            for number, m in enumerate(self.messages)
        ] or [ChatResponseUpdate([], None, self.response_id, self.model)]
        last = made[-1]
        last.finish_reason, last.conversation_id, last.created_at = self.finish_reason, self.conversation_id, self.created_at
        last.continuation_token, last.additional_properties = self.continuation_token, self.additional_properties
        last.raw_representation = self.raw_representation
        if self.usage_details:
            last.contents = [*last.contents, Content.from_usage(self.usage_details)]
        return made

    def to_dict(self) -> JsonObject:
        """JSON form, `type: chat_response`."""
        return _to_dict(self, "chat_response", ("response_id", "conversation_id", "model"))

    @classmethod
    def from_dict(cls, data: JsonMapping) -> ChatResponse:
        """The inverse of `to_dict`."""
        known = {key: data[key] for key in cls.__slots__ if key in data and key != "raw_representation"}
        return cls(_messages(data), value=data.get("value"), **known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatResponse) and self.to_dict() == other.to_dict()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # mutable


class AgentResponse(_Response):
    """A whole run: every message it added to the conversation, tool rounds included."""

    __slots__ = (
        "additional_properties",
        "agent_id",
        "continuation_token",
        "created_at",
        "finish_reason",
        "raw_representation",
        "response_id",
        "usage_details",
    )

    def __init__(
        self,
        messages: GivenMessages = None,
        response_id: str | None = None,
        agent_id: str | None = None,
        finish_reason: str | None = None,
        usage_details: UsageDetails | None = None,
        value: JsonValue = None,
        additional_properties: JsonObject | None = None,
        *,
        created_at: Timestamp | None = None,
        response_format: ResponseFormat | None = None,
        continuation_token: ContinuationToken | None = None,
        raw_representation: object = None,
    ) -> None:
        """`usage_details` is summed over every model call of the run."""
        super().__init__(messages, value, response_format)
        self.response_id = response_id
        self.agent_id = agent_id
        self.finish_reason = finish_reason
        self.usage_details = usage_details
        self.created_at = created_at
        self.continuation_token = continuation_token
        self.additional_properties: JsonObject = additional_properties or {}
        self.raw_representation = raw_representation

    @property
    def user_input_requests(self) -> list[Content]:
        """What waits for a person: approvals, calls that the caller answers, consents."""
        return [c for message in self.messages for c in message.contents if c.user_input_request]

    @classmethod
    def from_updates(cls, updates: Iterable[AgentResponseUpdate], *, output_format_type: ResponseFormat | None = None) -> AgentResponse:
        """Fold a run's parts into its messages, in order."""
        response = cls(response_format=output_format_type)
        for update in updates:
            response.agent_id = update.agent_id or response.agent_id
            _fold(response, update)
        _settle(response)
        return response

    @classmethod
    async def from_update_generator(
        cls, updates: AsyncIterable[AgentResponseUpdate], *, output_format_type: ResponseFormat | None = None
    ) -> AgentResponse:
        """`from_updates` of a stream."""
        return cls.from_updates([update async for update in updates], output_format_type=output_format_type)

    def to_updates(self) -> list[AgentResponseUpdate]:
        """The parts that fold into this response: one for each message, the last one with what belongs to the whole."""
        made = [
            AgentResponseUpdate(m.contents, m.role, m.author_name, m.message_id or f"message-{number}", self.response_id)
            for number, m in enumerate(self.messages)
        ] or [AgentResponseUpdate([], response_id=self.response_id)]
        last = made[-1]
        last.agent_id = self.agent_id
        last.finish_reason, last.created_at, last.continuation_token = self.finish_reason, self.created_at, self.continuation_token
        last.additional_properties, last.raw_representation = self.additional_properties, self.raw_representation
        if self.usage_details:
            last.contents = [*last.contents, Content.from_usage(self.usage_details)]
        return made

    def to_dict(self) -> JsonObject:
        """JSON form, `type: agent_response`."""
        return _to_dict(self, "agent_response", ("response_id", "agent_id"))

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: JsonMapping) -> AgentResponse:
        """The inverse of `to_dict`."""
        known = {key: data[key] for key in cls.__slots__ if key in data and key != "raw_representation"}
        return cls(_messages(data), value=data.get("value"), **known)

    @classmethod
    def from_json(cls, text: str) -> AgentResponse:
        """The inverse of `to_json`."""
        return cls.from_dict(json.loads(text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AgentResponse) and self.to_dict() == other.to_dict()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # mutable


def iso_time(moment: Timestamp) -> str:
    """Return the JSON form of a timestamp."""
    return moment.isoformat() if isinstance(moment, datetime) else moment


def last_text(messages: Sequence[Message]) -> str:
    """The assistant's last word: the text of the last assistant message that has any."""
    return next((m.text for m in reversed(messages) if m.role == "assistant" and m.text), "")


def _fold(response: _ResponseT, update: ChatResponseUpdate | AgentResponseUpdate) -> None:
    last = response.messages[-1] if response.messages else None
    if last is None or any(
        new and known and new != known
        for new, known in ((update.message_id, last.message_id), (update.author_name, last.author_name), (update.role, last.role))
    ):
        last = Message(update.role or "assistant")
        response.messages.append(last)
    last.author_name = update.author_name or last.author_name
    last.message_id = update.message_id or last.message_id
    for content in update.contents:
        if content.type == "usage":
            response.usage_details = add_usage(response.usage_details, content.usage_details)
        else:
            _append(last.contents, content)
    response.response_id = update.response_id or response.response_id
    response.created_at = update.created_at or response.created_at
    response.finish_reason = update.finish_reason or response.finish_reason
    response.continuation_token = update.continuation_token
    if update.additional_properties:
        response.additional_properties.update(update.additional_properties)
    if update.raw_representation is not None:
        _add_raw(response, update.raw_representation)


def _append(contents: list[Content], content: Content) -> None:
    """Add a content, joining it to the one before where both are parts of one text or of one call."""
    before = contents[-1] if contents else None
    if content.type == "function_call" and content.user_input_request:
        # The loop says again of a call that somebody else must answer it; that is no second call.
        contents[:] = [known for known in contents if known.type != "function_call" or known.call_id != content.call_id]
        contents.append(content)
    elif before is None or before.type != content.type or not _continues(before, content):
        contents.append(content)
    elif content.type == "text" and _GROWING in before.__dict__ and not content.annotations:
        before.text = (before.text or "") + (content.text or "")
        if content.raw_representation is not None:
            _add_raw(before, content.raw_representation)
    else:
        contents[-1] = before + content
        contents[-1].__dict__[_GROWING] = True


def _add_raw(grown: Content | ChatResponse | AgentResponse, raw: object) -> None:
    """Add the provider's object of one more part. The list that `joined_raw` made belongs to `grown` alone, so it grows in place."""
    known = grown.raw_representation
    if isinstance(known, list) and not isinstance(raw, list):
        cast("list[object]", known).append(raw)
    else:
        grown.raw_representation = joined_raw(cast("object", known), cast("object", raw))


_GROWING = "_growing"
"""Marks a text that was joined here: nobody else holds it, so the next part is added in place."""


def _settle(response: ChatResponse | AgentResponse) -> None:
    """The response is handed out, so its contents do not grow in place any more: another fold may get them."""
    for message in response.messages:
        for content in message.contents:
            content.__dict__.pop(_GROWING, None)


def _continues(before: Content, content: Content) -> bool:
    match content.type:
        case "text":
            return not (content.annotations and content.text)  # its spans count from its own start
        case "text_reasoning":
            return not content.id or not before.id or content.id == before.id
        case "function_call":
            if not content.call_id or content.call_id == before.call_id:
                return isinstance(content.arguments, str) and not _is_whole(before.arguments)
            return False
        case _:
            return False


def _is_whole(arguments: str | JsonMapping | None) -> bool:
    """Whether arguments are all there, so that another call under their id is a repetition and no further piece."""
    if not isinstance(arguments, str):
        return arguments is not None
    try:
        json.loads(arguments)
    except ValueError:
        return False
    return True


def _to_dict(response: ChatResponse | AgentResponse, kind: str, keys: Sequence[str]) -> JsonObject:
    data: JsonObject = {"type": kind, "messages": [m.to_dict() for m in response.messages]}
    keys = (*keys, "created_at", "finish_reason", "usage_details", "continuation_token")
    found = {key: value for key in keys if (value := getattr(response, key)) is not None}
    data |= {key: iso_time(value) if isinstance(value, datetime) else value for key, value in found.items()}
    if (value := response.parsed()) is not None:
        from pydantic_core import to_jsonable_python

        data["value"] = to_jsonable_python(value)
    if response.additional_properties:
        data["additional_properties"] = response.additional_properties
    return data


def _messages(data: JsonMapping) -> list[Message]:
    return [Message.from_dict(m) for m in cast("Sequence[JsonMapping]", data.get("messages") or ())]
