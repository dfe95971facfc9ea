"""Converts messages between Moongate's types and the A2A protocol. Needs `a2a-sdk`; imported by `a2a_agent` on its first connection."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Sequence

from a2a.types import Message as WireMessage
from a2a.types import Part, Role
from google.protobuf.json_format import MessageToDict

from gateway.json_types import JsonObject
from gateway.types.content import Content
from gateway.types.messages import Message


def to_wire_message(messages: Sequence[Message], *, context_id: str | None, task_id: str | None) -> WireMessage:
    """Convert messages to one A2A message. The remote agent has the earlier conversation under `context_id`."""
    parts = [part for message in messages for content in message.contents if (part := _to_part(content)) is not None]
    return WireMessage(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=parts, context_id=context_id or "", task_id=task_id or "")


def _to_part(content: Content) -> Part | None:
    match content.type:
        case "text" if content.text:
            return Part(text=content.text)
        case "data" if content.uri:
            return Part(raw=base64.b64decode(content.uri.partition(",")[2]), media_type=content.media_type or "")
        case "uri" if content.uri:
            return Part(url=content.uri, media_type=content.media_type or "")
        case "function_approval_response":
            return Part(text="Approved." if content.approved else "Rejected.")
        case _:
            return None


def to_contents(parts: Iterable[Part]) -> list[Content]:
    """Convert the parts of an A2A message or artifact to contents; structured data becomes JSON text of type `application/json`."""
    return [_to_content(part) for part in parts]


def _to_content(part: Part) -> Content:
    extra: JsonObject = {"filename": part.filename} if part.filename else {}
    match part.WhichOneof("content"):
        case "raw":
            return Content.from_data(part.raw, part.media_type or "application/octet-stream", additional_properties=extra)
        case "url":
            return Content.from_uri(part.url, part.media_type or None, additional_properties=extra)
        case "data":
            text = json.dumps(MessageToDict(part.data), ensure_ascii=False)
            return Content.from_text(text, additional_properties={**extra, "media_type": "application/json"})
        case _:
            return Content.from_text(part.text, additional_properties=extra)


def to_text(message: WireMessage) -> str:
    """Return the text parts of an A2A message, joined by line breaks."""
    return "\n".join(part.text for part in message.parts if part.text)
