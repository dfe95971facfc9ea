"""`Message`: who said what. The unit of conversations, histories and model requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from gateway.json_types import JsonMapping, JsonObject
from gateway.types.content import Content, to_contents


@dataclass(slots=True, init=False)
class Message:
    """One message: a role and ordered contents."""

    role: str
    """`system`, `user`, `assistant` or `tool`; other roles are carried as they are."""
    contents: list[Content]
    author_name: str | None = None
    message_id: str | None = None
    additional_properties: JsonObject
    raw_representation: object = field(compare=False, repr=False)

    def __init__(
        self,
        role: str,
        contents: str | Sequence[Content | str | JsonMapping] = (),
        *,
        author_name: str | None = None,
        message_id: str | None = None,
        additional_properties: JsonObject | None = None,
        raw_representation: object = None,
    ) -> None:
        """Strings in `contents` become text, mappings are read as JSON form."""
        self.role = role
        self.contents = to_contents([contents] if isinstance(contents, str) else contents)
        self.author_name = author_name
        self.message_id = message_id
        self.additional_properties = {} if additional_properties is None else additional_properties
        self.raw_representation = raw_representation

    @property
    def text(self) -> str:
        """All text contents joined by spaces; reasoning is not text."""
        return " ".join(content.text or "" for content in self.contents if content.type == "text")

    def to_dict(self) -> JsonObject:
        """JSON form; `from_dict` reads it back."""
        data: JsonObject = {"type": "message", "role": self.role, "contents": [content.to_dict() for content in self.contents]}
        for key, value in (("author_name", self.author_name), ("message_id", self.message_id)):
            if value is not None:
                data[key] = value
        if self.additional_properties:
            data["additional_properties"] = self.additional_properties
        return data

    @classmethod
    def from_dict(cls, data: JsonMapping) -> Message:
        """Read JSON form.

        Raises:
            ValueError: It is not a message.
        """
        role, contents = data.get("role"), data.get("contents", [])
        if not isinstance(role, str) or not isinstance(contents, list):
            raise ValueError("a message needs a 'role' and a list of 'contents'")
        return cls(
            role,
            cast("list[JsonObject]", contents),
            author_name=data.get("author_name"),
            message_id=data.get("message_id"),
            additional_properties=dict(data.get("additional_properties") or {}),
        )


MessagesInput = str | Message | Content | JsonMapping | Sequence[str | Message | Content | JsonMapping]
"""What `run` and `get_response` take: a string and a bare content are the user's."""


def normalize_messages(messages: MessagesInput | None) -> list[Message]:
    """A list of messages from what callers write. The messages themselves are not copied."""
    if messages is None:
        return []
    items = [messages] if isinstance(messages, str | Message | Content | Mapping) else messages
    result: list[Message] = []
    for item in items:
        if isinstance(item, Message):
            result.append(item)
        elif isinstance(item, str | Content):
            result.append(Message("user", [item]))
        else:
            result.append(Message.from_dict(item))
    return result
