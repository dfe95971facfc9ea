"""Converts `Content` objects (the parts of an agent's messages) to MCP content blocks and back, and results of functions to `Content`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import TypeGuard, cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.tools.base import Complete
from gateway.types.content import Content

NOTHING = "(no output)"
"""Text that a model receives as the result of a call without output, because models mistake an empty result for a failure."""


class Contents(list[Content]):
    """A list of `Content` objects, the parts of a message. `str()` returns the texts of its text parts, joined by newlines."""

    def __str__(self) -> str:
        return "\n".join(content.text or "" for content in self if content.type == "text")


def is_rich(value: object) -> bool:
    """Return whether a function's result is a `Content` object (such as an image), or a list that contains a `Content` object."""
    return isinstance(value, Content) or _is_contents(value)


def _is_contents(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple) and any(isinstance(item, Content) for item in cast("Sequence[object]", value))


def to_contents(value: object) -> Contents:
    """Convert a result of a call to a list of `Content` objects, the parts of a message.

    The result can be a `Complete` (the outcome of a tool call), one or more `Content` objects, a text, or a value with a JSON form.
    """
    if isinstance(value, Complete):
        return _of_result(value)
    if isinstance(value, Content):
        return Contents([value])
    if _is_contents(value):
        return Contents(item if isinstance(item, Content) else Content.from_text(_text(item)) for item in value)
    return Contents([Content.from_text(_text(value))])


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: object) -> JsonValue:
    """Convert a value that `json.dumps` cannot encode: pydantic models and dataclasses become objects, other values text (`str()`)."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def _of_result(result: Complete) -> Contents:
    blocks = result.content
    if len(blocks) == 1 and blocks[0].get("type") == "text" and not result.is_error:
        text = str(blocks[0].get("text") or "") or (_text(result.structured) if result.structured is not None else "")
        return Contents([Content.from_text(text or NOTHING)])
    found = Contents(from_block(block) for block in blocks)
    if not any(content.type != "text" or content.text for content in found):
        found = Contents([Content.from_text(_text(result.structured) if result.structured is not None else NOTHING)])
    if result.is_error and not str(found).startswith(("Error", "Refused")):
        found.insert(0, Content.from_text("Error:"))
        if len(found) > 1 and found[1].type == "text":
            found[:2] = [Content.from_text(f"Error: {found[1].text}")]
    return found


def from_block(block: JsonMapping) -> Content:
    """Convert an MCP content block to a `Content` object.

    Images, audio and embedded resources keep their data; a resource link keeps its name and description. A block of an unknown type becomes
    a text with the block's JSON.
    """
    mime = block.get("mimeType")
    match block.get("type"):
        case "text":
            return Content.from_text(str(block.get("text") or ""))
        case "image" | "audio" as kind:
            return Content.from_data(str(block.get("data") or ""), str(mime or f"{kind}/*"))
        case "resource_link":
            known: JsonObject = {key: block[key] for key in ("name", "title", "description", "size") if block.get(key) is not None}
            return Content.from_uri(str(block.get("uri")), str(mime) if mime else None, additional_properties=known)
        case "resource":
            inner = cast("JsonMapping", block.get("resource") or {})
            uri, kind = str(inner.get("uri")), str(inner.get("mimeType") or "")
            if isinstance(text := inner.get("text"), str):
                return Content.from_text(text, additional_properties={"uri": uri, **({"media_type": kind} if kind else {})})
            blob = str(inner.get("blob") or "")
            if blob.startswith("data:"):
                return Content.from_uri(blob, kind or None, additional_properties={"uri": uri})
            return Content.from_data(blob, kind or "application/octet-stream", additional_properties={"uri": uri})
        case _:
            return Content.from_text(_text(dict(block)))


def to_block(content: Content) -> JsonObject:
    """Convert a `Content` object (a part of a message) to an MCP content block: a text block if MCP has no type for it."""
    match content.type:
        case "text":
            return {"type": "text", "text": content.text or ""}
        case "data":
            return _data_block(content)
        case "uri":
            uri = content.uri or ""
            name = content.additional_properties.get("name") or uri.rstrip("/").rpartition("/")[2] or uri
            link: JsonObject = {"type": "resource_link", "uri": uri, "name": str(name)}
            if content.media_type:
                link["mimeType"] = content.media_type
            return {**link, **{k: content.additional_properties[k] for k in ("title", "description") if k in content.additional_properties}}
        case "error":
            return {"type": "text", "text": f"Error: {content.message or content.error_code or 'unknown'}"}
        case _:
            return {"type": "text", "text": _text(content.to_dict())}


def _data_block(content: Content) -> JsonObject:
    data = (content.uri or "").partition("base64,")[2]
    mime = content.media_type or "application/octet-stream"
    for kind in ("image", "audio"):
        if mime.startswith(f"{kind}/"):
            return {"type": kind, "data": data, "mimeType": mime}
    uri = content.additional_properties.get("uri") or "data:attachment"
    return {"type": "resource", "resource": {"uri": str(uri), "mimeType": mime, "blob": data}}
