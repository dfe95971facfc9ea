"""Functions on messages, options, updates and media types with the names and parameters of Microsoft's agent-framework."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.types.messages import Message, Role
from gateway.types.responses import AgentResponseUpdate, ChatResponseUpdate

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"<svg", "image/svg+xml"),
    (b"<?xml", "image/svg+xml"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}


def prepend_instructions_to_messages(
    messages: list[Message], instructions: str | Sequence[str] | None, role: Role | str = "system"
) -> list[Message]:
    """Return the messages preceded by one message per instruction, with the given role.

    An instruction that the messages already begin with is not added again.
    """
    wanted = [instructions] if isinstance(instructions, str) else list(instructions or ())
    there = [(str(message.role), message.text) for message in messages[: len(wanted)]]
    new = [text for number, text in enumerate(wanted) if there[number : number + 1] != [(str(role), text)]]
    return [*(Message(role, [text]) for text in new), *messages] if new else messages


def merge_chat_options(base: JsonMapping | None, override: JsonMapping | None) -> JsonObject:
    """Merge two sets of options of model calls, and return new options. Values in `override` replace values in `base`.

    A value `None`, or an empty `tool_choice`, in `override` does not replace a value. Instructions are joined with a line break, tools are
    appended without duplicates, and `logit_bias`, `metadata` and `additional_properties` are merged by key.
    """
    merged: JsonObject = {key: _own(value) for key, value in (base or {}).items()}
    for key, value in (override or {}).items():
        known = merged.get(key)
        if value is None or (key == "tool_choice" and not value):
            continue
        if key == "instructions" and known:
            merged[key] = f"{known}\n{value}"
        elif key == "tools":
            merged[key] = _with_tools(known, value)
        elif key in ("logit_bias", "metadata", "additional_properties") and isinstance(known, Mapping) and isinstance(value, Mapping):
            merged[key] = {**cast("JsonMapping", known), **cast("JsonMapping", value)}
        else:
            merged[key] = _own(value)
    return merged


def map_chat_to_agent_update(update: ChatResponseUpdate, agent_name: str | None) -> AgentResponseUpdate:
    """Convert an update (streamed part) of a model's response to an update of an agent's response.

    `agent_name` becomes the author if the update does not name an author.
    """
    return AgentResponseUpdate(
        update.contents,
        update.role,
        update.author_name or agent_name,
        update.message_id,
        update.response_id,
        update.finish_reason,
        created_at=update.created_at,
        continuation_token=update.continuation_token,
        additional_properties=update.additional_properties,
        raw_representation=update,
    )


def detect_media_type_from_base64(
    *, data_bytes: bytes | None = None, data_str: str | None = None, data_uri: str | None = None
) -> str | None:
    """Return the media type of image, audio or PDF data, detected from its first bytes; `None` if the bytes match no known type.

    The data is given as bytes, as base64 text, or as a base64 data URI, whose declared type is ignored.

    Raises:
        ValueError: Not exactly one argument is given, the argument is not a base64 data URI, or its base64 is incomplete (other
            characters than those of base64 are ignored).
    """
    if sum(given is not None for given in (data_bytes, data_str, data_uri)) != 1:
        raise ValueError("Give exactly one of data_bytes, data_str and data_uri.")
    if data_uri is not None:
        head, found, data_str = data_uri.partition(";base64,")
        if not found or not head.startswith("data:"):
            raise ValueError("A data URI has the form data:<type>;base64,<data>.")
    if data_bytes is None:
        try:
            data_bytes = base64.b64decode(data_str or "")
        except (binascii.Error, ValueError):
            raise ValueError("The data is not valid base64.") from None
    if data_bytes.startswith(b"RIFF"):
        return _RIFF.get(data_bytes[8:12])
    return next((kind for magic, kind in _MAGIC if data_bytes.startswith(magic)), None)


def _own(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return dict(cast("JsonObject", value))
    return list(cast("list[JsonValue]", value)) if isinstance(value, list) else value


def _with_tools(known: JsonValue, value: JsonValue) -> list[JsonValue]:
    merged = _listed(known)
    return [*merged, *(tool for tool in _listed(value) if tool not in merged)]


def _listed(tools: JsonValue) -> list[JsonValue]:
    if tools is None:
        return []
    if isinstance(tools, Iterable) and not isinstance(tools, str | bytes | Mapping):
        return list(cast("Iterable[JsonValue]", tools))
    return [tools]
