"""Responses of chat clients and agents: whole (`ChatResponse`, `AgentResponse`) and streamed (their updates).

A streamed response is a sequence of updates; `from_updates` joins ("folds") the updates into a whole response.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from types import GenericAlias
from typing import Any, ClassVar, Generic, Literal, NewType, Self, TypeVar, cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.types.annotations import UsageDetails, add_usage
from gateway.types.content import Content
from gateway.types.copying import RAW, sharing_raw
from gateway.types.joining import add_raw, append_content, stop_growing
from gateway.types.messages import Message, Role, to_contents
from gateway.types.structured import ResponseFormat, parse_answer

FinishReasonLiteral = Literal["stop", "length", "tool_calls", "content_filter"]
"""Reasons for which a model stops, under the names that most providers use."""

FinishReason = NewType("FinishReason", str)
"""Reason for which a model stopped: one of `FinishReasonLiteral`, or a name that only one provider uses."""

ContinuationToken = dict[str, Any]
"""Opaque position from which an unfinished response can be continued; valid only for the client that returned it."""

Timestamp = str | datetime
"""Creation time: a `datetime`, or ISO 8601 text, which is also its JSON form."""

GivenMessages = Message | JsonMapping | Sequence[Message | JsonMapping] | None
"""Messages of a response, as objects or as JSON."""


GivenContents = str | Content | JsonMapping | Sequence[Content | str | JsonMapping] | None
"""Contents of a message or an update, as objects, text or JSON."""


class _Unparsed:
    """Stands for a value that was not parsed yet. It is a class, because copying a class returns the same object."""


_UNPARSED = _Unparsed


class _Update:
    """Base of `ChatResponseUpdate` and `AgentResponseUpdate`: text and JSON form."""

    __slots__ = ()

    contents: list[Content]

    __deepcopy__ = sharing_raw

    @property
    def text(self) -> str:
        """Text of this update."""
        return "".join(c.text or "" for c in self.contents if c.type == "text")

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> JsonObject:
        """Return the JSON form, without `raw_representation`."""
        data: JsonObject = {"type": _KINDS[type(self).__name__], "contents": [content.to_dict() for content in self.contents]}
        for name in (own.name for own in fields(cast("Any", self)) if own.name not in ("contents", RAW)):
            if (value := getattr(self, name)) is not None:
                data[name] = iso_time(value) if isinstance(value, datetime) else value
        return data

    def to_json(self) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: JsonMapping) -> Self:
        """Return the update whose `to_dict` is `data`."""
        known = {own.name for own in fields(cast("Any", cls))} - {"contents"}
        return cls(to_contents(data.get("contents")), **{key: value for key, value in data.items() if key in known})  # pyright: ignore[reportCallIssue]  # the dataclass's

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the update whose `to_json` is `text`."""
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
    """A `FinishReasonLiteral` or a provider's own name; set on the last update."""
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
        """Text and dicts in `contents` become `Content`; a list of `Content` is used without a copy."""
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
    """A part of an agent's streamed run."""

    contents: list[Content] = field(default_factory=lambda: list[Content]())
    role: Role | str | None = None
    author_name: str | None = None
    message_id: str | None = None
    """Id of the message to which this part belongs. All updates of a message have the same id."""
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
        """Text and dicts in `contents` become `Content`; a list of `Content` is used without a copy."""
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
        """Contents of this update that a person must answer."""
        return [c for c in self.contents if c.user_input_request]


UpdateT = TypeVar("UpdateT", ChatResponseUpdate, AgentResponseUpdate)


class _NamesValueType:
    """Base of classes that may be written with a type in brackets, as `AgentResponse[City]`, although they are not generic."""

    __slots__ = ()

    def __class_getitem__(cls, item: object) -> GenericAlias:
        """Allow `AgentResponse[City]`, which documents the type of `value` in agent-framework's code."""
        return GenericAlias(cls, item)


class _Response(Generic[UpdateT]):
    """Base of `ChatResponse` and `AgentResponse`: messages, structured output, JSON form, and conversion from and to updates."""

    __slots__ = (
        "_format",
        "_value",
        "additional_properties",
        "continuation_token",
        "created_at",
        "finish_reason",
        "messages",
        "raw_representation",
        "response_id",
        "usage_details",
    )
    _type: ClassVar[str]
    _optional: ClassVar[tuple[str, ...]]
    """Fields that `to_dict` contains if they are set, in this order."""
    _own: ClassVar[tuple[str, ...]]
    """Fields that this class and its update class have in addition to the common fields."""
    _update: ClassVar[Callable[..., Any]]
    """Class of the updates that make up this kind of response."""
    __hash__ = None  # pyright: ignore[reportAssignmentType]  # mutable

    __deepcopy__ = sharing_raw

    def __init__(
        self, messages: GivenMessages = None, *, value: JsonValue = None, response_format: ResponseFormat | None = None
    ) -> None:
        given = [messages] if isinstance(messages, Message | Mapping) else messages or ()
        self.messages: list[Message] = [Message.from_dict(item) if isinstance(item, Mapping) else item for item in given]
        self._value: JsonValue = _UNPARSED if value is None else value
        self._format = response_format

    @property
    def response_format(self) -> ResponseFormat | None:
        """The requested format of the answer (a type or JSON Schema), or `None` for free text."""
        return self._format

    @property
    def value(self) -> JsonValue:
        """The answer as a value of the requested format, or `None` if no format was requested; parsed on first access.

        Raises:
            ValueError: The answer does not match the requested format. For a pydantic model this is a `ValidationError`.
        """
        if self._value is _UNPARSED:
            answer = last_text(self.messages)
            self._value = None if self._format is None or not answer else parse_answer(answer, self._format)
        return self._value

    def parsed(self) -> JsonValue:
        """Return `value` if it was given or was parsed before, otherwise `None`. Does not parse."""
        return None if self._value is _UNPARSED else self._value

    @property
    def text(self) -> str:
        """Text of all messages of all roles. `last_text` returns only the assistant's final text."""
        return "".join(message.text for message in self.messages)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> JsonObject:
        """Return the JSON form, without `raw_representation`; `type` is `chat_response` or `agent_response`."""
        data: JsonObject = {"type": self._type, "messages": [m.to_dict() for m in self.messages]}
        for key in self._optional:
            if (value := getattr(self, key)) is not None:
                data[key] = iso_time(value) if isinstance(value, datetime) else value
        if (value := self.parsed()) is not None:
            from pydantic_core import to_jsonable_python

            data["value"] = to_jsonable_python(value)
        if self.additional_properties:
            data["additional_properties"] = self.additional_properties
        return data

    @classmethod
    def from_dict(cls, data: JsonMapping) -> Self:
        """Return the response whose `to_dict` is `data`."""
        known = {key: data[key] for key in (*cls._optional, "additional_properties") if key in data}
        messages = [Message.from_dict(m) for m in cast("Sequence[JsonMapping]", data.get("messages") or ())]
        return cls(messages, value=data.get("value"), **known)

    @classmethod
    def from_updates(cls, updates: Iterable[UpdateT], *, output_format_type: ResponseFormat | None = None) -> Self:
        """Join updates to a whole response: adjacent texts and pieces of a call are joined, token counts are summed."""
        response = cls(response_format=output_format_type)
        for update in updates:
            response._fold(update)
        stop_growing(response.messages)
        return response

    @classmethod
    async def from_update_generator(
        cls, updates: AsyncIterable[UpdateT], *, output_format_type: ResponseFormat | None = None
    ) -> Self:
        """Read a stream of updates to its end, and join the updates to a whole response as `from_updates` does."""
        return cls.from_updates([update async for update in updates], output_format_type=output_format_type)

    def to_updates(self) -> list[UpdateT]:
        """Return updates, one per message, from which `from_updates` makes this response again.

        The last update has the fields of the whole response.
        """
        given = {"response_id": self.response_id}
        made: list[UpdateT] = [
            self._update(m.contents, m.role, author_name=m.author_name, message_id=m.message_id or f"message-{number}", **given)
            for number, m in enumerate(self.messages)
        ] or [self._update([], **given)]
        last = made[-1]
        for name in (*self._own, "finish_reason", "created_at", "continuation_token", "additional_properties", RAW):
            setattr(last, name, getattr(self, name))
        if self.usage_details:
            last.contents = [*last.contents, Content.from_usage(self.usage_details)]
        return made

    def _fold(self, update: UpdateT) -> None:
        last = self.messages[-1] if self.messages else None
        if last is None or any(
            new and known and new != known
            for new, known in ((update.message_id, last.message_id), (update.author_name, last.author_name), (update.role, last.role))
        ):
            last = Message(update.role or "assistant")
            self.messages.append(last)
        last.author_name = update.author_name or last.author_name
        last.message_id = update.message_id or last.message_id
        for content in update.contents:
            if content.type == "usage":
                self.usage_details = add_usage(self.usage_details, content.usage_details)
            else:
                append_content(last.contents, content)
        for name in (*self._own, "response_id", "created_at", "finish_reason"):
            setattr(self, name, getattr(update, name) or getattr(self, name))
        self.continuation_token = update.continuation_token
        if update.additional_properties:
            self.additional_properties.update(update.additional_properties)
        add_raw(self, update.raw_representation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.to_dict() == other.to_dict()


class ChatResponse(_NamesValueType, _Response[ChatResponseUpdate]):
    """A whole model response."""

    __slots__ = ("conversation_id", "model")
    _type = "chat_response"
    _own = ("conversation_id", "model")
    _update = ChatResponseUpdate
    _optional = ("response_id", "conversation_id", "model", "created_at", "finish_reason", "usage_details", "continuation_token")

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
        """`continuation_token` is set while the provider is still generating the response."""
        super().__init__(messages, value=value, response_format=response_format)
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
        """Text of all messages, one line each."""
        return "\n".join(message.text for message in self.messages).strip()

    def to_updates(self) -> list[ChatResponseUpdate]:
        """Return updates, one per message, from which `from_updates` makes this response again. Each update names the model."""
        made = super().to_updates()
        for update in made:
            update.model = self.model
        return made


class AgentResponse(_NamesValueType, _Response[AgentResponseUpdate]):
    """A whole run: every message that the run added to the conversation, tool rounds included."""

    __slots__ = ("agent_id",)
    _type = "agent_response"
    _own = ("agent_id",)
    _update = AgentResponseUpdate
    _optional = ("response_id", "agent_id", "created_at", "finish_reason", "usage_details", "continuation_token")

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
        """`usage_details` is the sum over all model calls of the run."""
        super().__init__(messages, value=value, response_format=response_format)
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
        """Contents that a person must answer: approvals, consents, and calls of tools that the caller runs."""
        return [c for message in self.messages for c in message.contents if c.user_input_request]

    def to_json(self) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> AgentResponse:
        """Return the response whose `to_json` is `text`."""
        return cls.from_dict(json.loads(text))


def iso_time(moment: Timestamp) -> str:
    """Return the JSON form of a timestamp."""
    return moment.isoformat() if isinstance(moment, datetime) else moment


def last_text(messages: Sequence[Message]) -> str:
    """Return the text of the last assistant message that has text, or an empty string."""
    return next((m.text for m in reversed(messages) if m.role == "assistant" and m.text), "")
