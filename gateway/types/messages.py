"""`Message`: who said what in a conversation, provider-neutral."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from gateway.json_types import JsonMapping, JsonObject
from gateway.types.content import Content

Role = Literal["system", "user", "assistant", "tool"]


class Message:
    """One message. Strings and dicts among `contents` become `Content`."""

    __slots__ = ("additional_properties", "author_name", "contents", "message_id", "role")

    def __init__(
        self,
        role: Role,
        contents: str | Sequence[Content | str | JsonMapping] = (),
        *,
        author_name: str | None = None,
        message_id: str | None = None,
        additional_properties: JsonObject | None = None,
    ) -> None:
        given = [contents] if isinstance(contents, str) else list(contents)
        self.role: Role = role
        self.contents: list[Content] = [_to_content(item) for item in given]
        self.author_name = author_name
        self.message_id = message_id
        self.additional_properties: JsonObject = dict(additional_properties or {})

    @property
    def text(self) -> str:
        """All text contents, joined."""
        return "".join(c.text or "" for c in self.contents if c.type == "text")

    def to_dict(self) -> JsonObject:
        """JSON form."""
        data: JsonObject = {"type": "message", "role": self.role, "contents": [c.to_dict() for c in self.contents]}
        for key in ("author_name", "message_id"):
            if (value := getattr(self, key)) is not None:
                data[key] = value
        if self.additional_properties:
            data["additional_properties"] = self.additional_properties
        return data

    @classmethod
    def from_dict(cls, data: JsonMapping) -> Message:
        """The inverse of `to_dict`."""
        return cls(
            cast("Role", data["role"]),
            cast("list[JsonMapping]", data.get("contents") or []),
            author_name=data.get("author_name"),
            message_id=data.get("message_id"),
            additional_properties=data.get("additional_properties"),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.to_dict() == other.to_dict()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # mutable

    def __repr__(self) -> str:
        return f"Message({self.to_dict()!r})"


def _to_content(item: Content | str | JsonMapping) -> Content:
    if isinstance(item, Content):
        return item
    return Content.from_text(item) if isinstance(item, str) else Content.from_dict(item)


def to_messages(messages: str | Message | Sequence[str | Message]) -> list[Message]:
    """What a caller may pass as messages, as a list; strings are the user's."""
    given = [messages] if isinstance(messages, str | Message) else list(messages)
    return [m if isinstance(m, Message) else Message("user", m) for m in given]
