"""Responses of chat clients and agents (`ChatResponse`, `AgentResponse`), and the updates in which streamed responses arrive.

A streamed response is a sequence of updates (`ChatResponseUpdate`, `AgentResponseUpdate`), each of which is a part of the response.
`from_updates` joins them to a complete response.
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
"""Reasons for which a model stops generating, under the names that most providers use."""

FinishReason = NewType("FinishReason", str)
"""Reason for which a model stopped generating: `stop`, `length`, `tool_calls`, `content_filter`, or a name that only one provider uses."""

ContinuationToken = dict[str, Any]
"""Opaque data with which an unfinished response can be continued. It is valid only for the chat client that returned it."""

Timestamp = str | datetime
"""Type of a creation time: a `datetime`, or ISO 8601 text. In JSON it is always ISO 8601 text."""

GivenMessages = Message | JsonMapping | Sequence[Message | JsonMapping] | None
"""Type of the messages that the constructor of a response accepts: one or several, as `Message` objects or as JSON objects."""


GivenContents = str | Content | JsonMapping | Sequence[Content | str | JsonMapping] | None
"""Type of the contents that the constructor of an update accepts: one or several, as `Content` objects, texts or JSON objects."""


class _Unparsed:
    """Marker that replaces the structured value of a response until the value is parsed.

    The marker is the class itself, because copying or deep-copying a class returns the same object.
    """


_UNPARSED = _Unparsed


@dataclass(slots=True, init=False)
class _Update:
    """Base class of updates (parts of a streamed response): their common fields, their text, and their conversion to and from JSON."""

    contents: list[Content] = field(default_factory=lambda: list[Content]())
    role: Role | str | None = None
    author_name: str | None = None
    message_id: str | None = None
    """Id of the message to which this update belongs. All updates of a message of an agent have the same id."""
    response_id: str | None = None
    finish_reason: str | None = None
    """Reason for which the model stopped, such as `stop` or `length`. One of the last updates of a response has it."""
    created_at: Timestamp | None = None
    continuation_token: ContinuationToken | None = None
    additional_properties: JsonObject | None = None
    raw_representation: object = None

    __deepcopy__ = sharing_raw

    @property
    def text(self) -> str:
        """The texts of all contents of type `text` in this update, concatenated."""
        return "".join(c.text or "" for c in self.contents if c.type == "text")

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> JsonObject:
        """Return the update as JSON-compatible data, without `raw_representation`."""
        data: JsonObject = {"type": _KINDS[type(self).__name__], "contents": [content.to_dict() for content in self.contents]}
        for name in (own.name for own in fields(cast("Any", self)) if own.name not in ("contents", RAW)):
            if (value := getattr(self, name)) is not None:
                data[name] = iso_time(value) if isinstance(value, datetime) else value
        return data

    def to_json(self) -> str:
        """Return the result of `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: JsonMapping) -> Self:
        """Create an update from the result of `to_dict`."""
        known = {own.name for own in fields(cast("Any", cls))} - {"contents"}
        return cls(to_contents(data.get("contents")), **{key: value for key, value in data.items() if key in known})  # pyright: ignore[reportCallIssue]  # subclasses define the parameters

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Create an update from the result of `to_json`."""
        return cls.from_dict(json.loads(text))


def _as_list(contents: GivenContents) -> list[Content]:
    if isinstance(contents, list) and all(isinstance(content, Content) for content in contents):
        return cast("list[Content]", contents)
    return to_contents(contents)


_KINDS = {"ChatResponseUpdate": "chat_response_update", "AgentResponseUpdate": "agent_response_update"}


@dataclass(slots=True, init=False)
class ChatResponseUpdate(_Update):
    """An update: one part of a model's streamed response. `ChatResponse.from_updates` joins updates to a complete response."""

    model: str | None = None
    conversation_id: str | None = None

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
        """Create an update. Texts and JSON objects in `contents` are converted to `Content` objects.

        A list of `Content` objects is used without a copy.
        """
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
    """An update: one part of an agent's streamed response. `AgentResponse.from_updates` joins updates to a complete response."""

    agent_id: str | None = None

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
        """Create an update. Texts and JSON objects in `contents` are converted to `Content` objects.

        A list of `Content` objects is used without a copy.
        """
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
        """Contents that need an answer before the run continues: requests for approval or consent, and calls of the caller's own tools."""
        return [c for c in self.contents if c.user_input_request]


UpdateT = TypeVar("UpdateT", ChatResponseUpdate, AgentResponseUpdate)


class _NamesValueType:
    """Base class that allows a type in brackets after the class name, as in `AgentResponse[City]`, although the class is not generic."""

    __slots__ = ()

    def __class_getitem__(cls, item: object) -> GenericAlias:
        """Return an alias for `AgentResponse[City]`. Programs for Microsoft's agent-framework write it to document the type of `value`."""
        return GenericAlias(cls, item)


class _Response(Generic[UpdateT]):
    """Base class of complete responses (`ChatResponse`, `AgentResponse`).

    It has the messages and the structured value of a response, and converts the response to and from JSON, and to and from updates (parts
    of a streamed response).
    """

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
    """Names of the attributes of the response that `to_dict` includes if they are set, in this order."""
    _own: ClassVar[tuple[str, ...]]
    """Names of the attributes of this class that the other class of responses (`ChatResponse` or `AgentResponse`) lacks.

    `from_updates` copies these attributes from the updates, and `to_updates` copies them to the last update.
    """
    _update: ClassVar[Callable[..., Any]]
    """Class of the updates (parts of a streamed response) that `from_updates` joins to a response of this class."""
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
        """The requested format of the answer: a pydantic model, a JSON Schema, or a `TypedFormat` for other types; `None` for free text."""
        return self._format

    @property
    def value(self) -> JsonValue:
        """The structured value: the constructor's `value`, or the assistant's final text, parsed at the first access.

        The text is parsed as `response_format`. `None` without a `value`, if no format was requested or the assistant wrote no text.

        Raises:
            ValueError: The answer does not match the requested format. For a pydantic model this is a `ValidationError`.
        """
        if self._value is _UNPARSED:
            answer = last_text(self.messages)
            self._value = None if self._format is None or not answer else parse_answer(answer, self._format)
        return self._value

    def parsed(self) -> JsonValue:
        """Return the structured value of the response if it was passed to the constructor or parsed before; otherwise `None`.

        In contrast to the attribute `value`, this method never parses the answer.
        """
        return None if self._value is _UNPARSED else self._value

    @property
    def text(self) -> str:
        """The texts of all messages of all roles, concatenated. The function `last_text` returns only the assistant's final text."""
        return "".join(message.text for message in self.messages)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> JsonObject:
        """Return the response as JSON-compatible data, without `raw_representation`. `type` is `chat_response` or `agent_response`."""
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
        """Create a response from the result of `to_dict`."""
        known = {key: data[key] for key in (*cls._optional, "additional_properties") if key in data}
        messages = [Message.from_dict(m) for m in cast("Sequence[JsonMapping]", data.get("messages") or ())]
        return cls(messages, value=data.get("value"), **known)

    @classmethod
    def from_updates(cls, updates: Iterable[UpdateT], *, output_format_type: ResponseFormat | None = None) -> Self:
        """Join updates, the parts of a streamed response, to a complete response.

        Adjacent texts and pieces of a tool call are joined, and token counts are summed. `output_format_type` is the requested format of
        the answer.
        """
        response = cls(response_format=output_format_type)
        for update in updates:
            response._fold(update)
        stop_growing(response.messages)
        return response

    @classmethod
    async def from_update_generator(
        cls, updates: AsyncIterable[UpdateT], *, output_format_type: ResponseFormat | None = None
    ) -> Self:
        """Read a stream of updates to its end, and join the updates to a complete response as `from_updates` does."""
        return cls.from_updates([update async for update in updates], output_format_type=output_format_type)

    def to_updates(self) -> list[UpdateT]:
        """Split the response into updates, one per message, which `from_updates` can join again.

        The last update has the attributes of the complete response, such as `finish_reason` and the token counts. The joined response lacks
        the structured value. A message without an id has the id `message-NUMBER` there, and adjacent texts of a message are one text.
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
    """A complete response of a model to one call: messages, token counts, and the reason for which the model stopped."""

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
        """Create a response. `messages` may be JSON objects. `value` is the structured answer, if it is parsed already.

        `continuation_token` is set if the provider is still generating the response. `raw_representation` is the object of the provider's
        SDK.
        """
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
        """The texts of all messages, joined with line breaks."""
        return "\n".join(message.text for message in self.messages).strip()

    def to_updates(self) -> list[ChatResponseUpdate]:
        """Split the response into updates, one per message, each with the model's name. `from_updates` can join them again."""
        made = super().to_updates()
        for update in made:
            update.model = self.model
        return made


class AgentResponse(_NamesValueType, _Response[AgentResponseUpdate]):
    """The complete response of an agent's run: all messages that the run added to the conversation, including tool calls and results."""

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
        """Create a response. `messages` may be JSON objects. `value` is the structured answer, if it is parsed already.

        `usage_details` are the token counts, summed over all model calls of the run.
        """
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
        """Contents that need an answer before the run continues: requests for approval or consent, and calls of the caller's own tools."""
        return [c for message in self.messages for c in message.contents if c.user_input_request]

    def to_json(self) -> str:
        """Return the result of `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> AgentResponse:
        """Create a response from the result of `to_json`."""
        return cls.from_dict(json.loads(text))


def iso_time(moment: Timestamp) -> str:
    """Return a timestamp, which is a `datetime` or a text, as ISO 8601 text. A text is returned unchanged."""
    return moment.isoformat() if isinstance(moment, datetime) else moment


def last_text(messages: Sequence[Message]) -> str:
    """Return the text of the last assistant message in `messages` that has text, or an empty string."""
    return next((m.text for m in reversed(messages) if m.role == "assistant" and m.text), "")
