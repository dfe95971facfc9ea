"""`Message`: one message of a conversation with a model, independent of the provider. Also functions that create messages from texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal, Union, cast

from gateway.errors import ContentError
from gateway.json_types import JsonMapping, JsonObject
from gateway.types.content import Content
from gateway.types.copying import sharing_raw

Role = Literal["system", "user", "assistant", "tool"]
RoleLiteral = Role


class Message:
    """A message of a conversation with a model: its role, such as `user`, and a list of contents, such as texts and tool calls."""

    __slots__ = ("additional_properties", "author_name", "contents", "message_id", "raw_representation", "role")

    def __init__(
        self,
        role: Role | str,
        contents: str | Content | JsonMapping | Sequence[Content | str | JsonMapping] | None = None,
        *,
        author_name: str | None = None,
        message_id: str | None = None,
        additional_properties: JsonMapping | None = None,
        raw_representation: object = None,
    ) -> None:
        """Create a message. Strings and JSON objects in `contents` are converted to `Content` objects.

        `role` may also be a role that only one provider has. `raw_representation`, the object of the provider's SDK, is never serialized.
        """
        self.role = cast("Role", role)
        self.contents: list[Content] = to_contents(contents)
        self.author_name = author_name
        self.message_id = message_id
        self.additional_properties: JsonObject = dict(additional_properties) if additional_properties else {}
        self.raw_representation = raw_representation

    @property
    def text(self) -> str:
        """The texts of all contents of type `text`, joined with spaces."""
        return " ".join(c.text or "" for c in self.contents if c.type == "text")

    def to_dict(self) -> JsonObject:
        """Return the message as JSON-compatible data, without `raw_representation`."""
        data: JsonObject = {"type": "message", "role": self.role, "contents": [c.to_dict() for c in self.contents]}
        for key in ("author_name", "message_id"):
            if (value := getattr(self, key)) is not None:
                data[key] = value
        if self.additional_properties:
            data["additional_properties"] = self.additional_properties
        return data

    def to_json(self) -> str:
        """Return the result of `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: JsonMapping) -> Message:
        """Create a message from the result of `to_dict`."""
        return cls(
            str(data["role"]),
            cast("list[JsonMapping]", data.get("contents") or []),
            author_name=data.get("author_name"),
            message_id=data.get("message_id"),
            additional_properties=data.get("additional_properties"),
        )

    @classmethod
    def from_json(cls, text: str) -> Message:
        """Create a message from the result of `to_json`."""
        return cls.from_dict(json.loads(text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.to_dict() == other.to_dict()

    __deepcopy__ = sharing_raw
    __hash__ = None  # pyright: ignore[reportAssignmentType]  # mutable

    def __repr__(self) -> str:
        return f"Message({self.to_dict()!r})"


AgentRunInputs = Union[str, Content, Message, Sequence[Union[str, Content, Message]]]  # noqa: UP007  # the alias is used at run time
"""Type of the input of an agent or a chat client: one message or several. Strings and contents become user messages."""


def to_contents(contents: Content | str | JsonMapping | Sequence[Content | str | JsonMapping] | None) -> list[Content]:
    """Convert the contents of a message, given as objects, texts or JSON objects, to a new list of `Content` objects.

    Raises:
        ContentError: An item is neither a `Content`, nor a string, nor a JSON object with a `type`.
    """
    if contents is None:
        return []
    return [_to_content(item) for item in ([contents] if isinstance(contents, Content | str | Mapping) else contents)]


def _to_content(item: object) -> Content:
    if isinstance(item, Content):
        return item
    if isinstance(item, str):
        return Content.from_text(item)
    if isinstance(item, Mapping):
        return Content.from_dict(cast("JsonMapping", item))
    raise ContentError(f"A content must be a Content, a text or an object with a `type`, not {type(item).__name__}.")


def to_messages(messages: AgentRunInputs | None) -> list[Message]:
    """Convert the input of an agent or a chat client to a new list of messages. Strings and contents become user messages."""
    if messages is None:
        return []
    given = [messages] if isinstance(messages, str | Message | Content) else messages
    return [item if isinstance(item, Message) else Message("user", item) for item in given]


normalize_messages = to_messages
"""Alias of `to_messages`, which converts the input of an agent to messages, under its name in Microsoft's agent-framework."""


def own_copies(messages: Sequence[Message]) -> list[Message]:
    """Return a list in which messages with tool calls or approvals are replaced by copies. Other messages are the same objects.

    The function loop, which runs the tools that a model calls, changes messages that contain tool calls or approvals. The copies protect
    the originals. A copy has its own list of the same contents, and no `raw_representation`.
    """
    return [
        Message(m.role, list(m.contents), author_name=m.author_name, message_id=m.message_id, additional_properties=m.additional_properties)
        if any(content.type in ("function_approval_request", "function_approval_response", "function_call") for content in m.contents)
        else m
        for m in messages
    ]
