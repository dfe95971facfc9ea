"""Responses of chat clients and agents, whole and streamed, and `ResponseStream`, which turns the second into the first.

A streamed response is a sequence of updates; `from_updates` folds them, so a run written as a stream needs no twin.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.types.content import Content
from gateway.types.messages import Message, Role

UpdateT = TypeVar("UpdateT")
FinalT = TypeVar("FinalT")

UsageDetails = dict[str, int]
"""`input_token_count`, `output_token_count`, `total_token_count` and provider extras; missing means unknown."""


def add_usage(first: UsageDetails | None, second: UsageDetails | None) -> UsageDetails | None:
    """Both counts together; `None` where neither is known."""
    if first is None or second is None:
        return first or second
    return {key: first.get(key, 0) + second.get(key, 0) for key in {**first, **second}}


@dataclass(slots=True)
class ChatResponseUpdate:
    """A part of a streamed model response."""

    contents: list[Content] = field(default_factory=lambda: list[Content]())
    role: Role | None = None
    response_id: str | None = None
    model: str | None = None
    finish_reason: str | None = None
    """`stop`, `length`, `tool_calls` or `content_filter`, on the last part."""

    @property
    def text(self) -> str:
        """The text in this part."""
        return "".join(c.text or "" for c in self.contents if c.type == "text")


@dataclass(slots=True)
class ChatResponse:
    """A whole model response."""

    messages: list[Message]
    response_id: str | None = None
    model: str | None = None
    finish_reason: str | None = None
    usage_details: UsageDetails | None = None

    @property
    def text(self) -> str:
        """The text of all messages."""
        return "".join(m.text for m in self.messages)

    @classmethod
    def from_updates(cls, updates: Iterable[ChatResponseUpdate]) -> ChatResponse:
        """Fold a stream's parts; neighbouring text joins, usage adds up."""
        response = cls([Message("assistant")])
        for update in updates:
            response.response_id = update.response_id or response.response_id
            response.model = update.model or response.model
            response.finish_reason = update.finish_reason or response.finish_reason
            for content in update.contents:
                if content.type == "usage":
                    response.usage_details = add_usage(response.usage_details, content.fields["usage_details"])
                else:
                    _append(response.messages[0].contents, content)
        return response


def _append(contents: list[Content], content: Content) -> None:
    """Add a content, joining text to the text before it."""
    if contents and content.type in ("text", "text_reasoning") and contents[-1].type == content.type:
        contents[-1] = Content(content.type, fields={"text": (contents[-1].text or "") + (content.text or "")})
    else:
        contents.append(content)


@dataclass(slots=True)
class AgentResponseUpdate:
    """A part of an agent's run."""

    contents: list[Content] = field(default_factory=lambda: list[Content]())
    role: Role | None = None
    author_name: str | None = None
    message_id: str | None = None
    """Parts of one message share it."""
    response_id: str | None = None
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        """The text in this part."""
        return "".join(c.text or "" for c in self.contents if c.type == "text")


@dataclass(slots=True)
class AgentResponse:
    """A whole run: every message it added to the conversation, tool rounds included."""

    messages: list[Message] = field(default_factory=lambda: list[Message]())
    response_id: str | None = None
    agent_id: str | None = None
    finish_reason: str | None = None
    usage_details: UsageDetails | None = None
    """Summed over every model call of the run."""
    value: JsonValue = None
    """The answer as structured output, where one was asked for."""
    additional_properties: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))

    @property
    def text(self) -> str:
        """What the assistant said last: the text of the last assistant message that has any (requirements C22)."""
        return next((m.text for m in reversed(self.messages) if m.role == "assistant" and m.text), "")

    @classmethod
    def from_updates(cls, updates: Iterable[AgentResponseUpdate]) -> AgentResponse:
        """Fold a run's parts into its messages, in order."""
        response = cls()
        last_id: str | None = None
        for update in updates:
            response.response_id = update.response_id or response.response_id
            response.finish_reason = update.finish_reason or response.finish_reason
            for content in update.contents:
                if content.type == "usage":
                    response.usage_details = add_usage(response.usage_details, content.fields["usage_details"])
                    continue
                role = update.role or "assistant"
                if not response.messages or update.message_id != last_id or response.messages[-1].role != role:
                    response.messages.append(Message(role, author_name=update.author_name, message_id=update.message_id))
                    last_id = update.message_id
                _append(response.messages[-1].contents, content)
        return response

    def to_dict(self) -> JsonObject:
        """JSON form, `type: agent_response`."""
        data: JsonObject = {"type": "agent_response", "messages": [m.to_dict() for m in self.messages]}
        for key in ("response_id", "agent_id", "finish_reason", "usage_details", "value"):
            if (value := getattr(self, key)) is not None:
                data[key] = value
        return {**data, **({"additional_properties": self.additional_properties} if self.additional_properties else {})}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> AgentResponse:
        """The inverse of `to_dict`."""
        messages = [Message.from_dict(m) for m in cast("Sequence[JsonMapping]", data.get("messages") or ())]
        known = {k: data[k] for k in ("response_id", "agent_id", "finish_reason", "usage_details", "value") if k in data}
        return cls(messages, **known, additional_properties=data.get("additional_properties") or {})


class ResponseStream(Generic[UpdateT, FinalT]):
    """A response that arrives in parts. Iterate it for the parts, or await `get_final_response` for the whole.

    Nothing happens before the first of the two. Not restartable; leave it with `aclose` when you stop early.
    """

    def __init__(self, updates: AsyncGenerator[UpdateT, None], finalizer: Callable[[Sequence[UpdateT]], FinalT]) -> None:
        """`finalizer` folds all parts, once, when they have all arrived."""
        self._updates = updates
        self._finalizer = finalizer
        self._seen: list[UpdateT] = []
        self._final: list[FinalT] = []

    def __aiter__(self) -> AsyncIterator[UpdateT]:
        return self

    async def __anext__(self) -> UpdateT:
        update = await anext(self._updates)
        self._seen.append(update)
        return update

    async def get_final_response(self) -> FinalT:
        """The whole response; consumes the parts that are left."""
        if not self._final:
            async for _ in self:
                pass
            self._final.append(self._finalizer(self._seen))
        return self._final[0]

    async def aclose(self) -> None:
        """Stop early and release what the stream holds."""
        await self._updates.aclose()


class Run(Awaitable[FinalT]):
    """What a `run` or `get_response` without streaming returns: await it for the whole response."""

    def __init__(self, stream: ResponseStream[UpdateT, FinalT]) -> None:
        self._stream = stream

    def __await__(self) -> Generator[object, None, FinalT]:
        return self._stream.get_final_response().__await__()
