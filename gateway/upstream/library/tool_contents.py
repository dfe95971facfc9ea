"""Converts results of a server's tools and prompts (JSON) to `Content` objects and texts. The functions are pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue, members_of
from gateway.types.content import Content


def to_contents(result: JsonMapping) -> list[Content]:
    """Convert a `CallToolResult`: its content blocks in order, then structured content as JSON text. An empty result is the text `null`."""
    contents = [_to_content(block) for block in cast("Sequence[JsonObject]", result.get("content") or ())]
    structured = result.get("structuredContent")
    if structured is not None:
        contents.append(Content.from_text(json.dumps(structured, ensure_ascii=False)))
    return contents or [Content.from_text("null")]


def error_text(contents: Sequence[Content] | str) -> str:
    """Return the error message of a failed call: the joined texts of its converted result."""
    if isinstance(contents, str):
        return contents
    return "\n".join(c.text for c in contents if c.type == "text" and c.text) or "The tool failed without saying why."


def _to_content(block: JsonObject) -> Content:
    mime = block.get("mimeType")
    match block.get("type"):
        case "text":
            return Content.from_text(str(block.get("text", "")))
        case "image" | "audio":
            return Content.from_data(str(block.get("data", "")), str(mime or "application/octet-stream"))
        case "resource_link":
            return Content.from_uri(str(block.get("uri", "")), cast("str | None", mime))
        case "resource":
            return _from_resource(cast("JsonObject", block.get("resource") or {}))
        case _:
            return Content.from_text(json.dumps(block, ensure_ascii=False))


def _from_resource(resource: JsonObject) -> Content:
    if "text" in resource:
        return Content.from_text(str(resource["text"]))
    blob, mime = str(resource.get("blob", "")), str(resource.get("mimeType") or "application/octet-stream")
    return Content.from_uri(blob, mime) if blob.startswith("data:") else Content.from_data(blob, mime)


def to_prompt_text(result: JsonMapping) -> str:
    """Convert a `GetPromptResult` to one text: the text of its only message, or a JSON list with the texts of several messages.

    The text of a message without text is its content as JSON. Without messages, return an empty text.
    """
    texts = [_prompt_text(message.get("content")) for message in cast("Sequence[JsonMapping]", result.get("messages") or ())]
    return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False) if texts else ""


def _prompt_text(content: JsonValue) -> str:
    block = members_of(content)
    resource = cast("JsonObject", block.get("resource") or {})
    if block.get("type") == "text":
        return str(block.get("text", ""))
    if "text" in resource:
        return str(resource["text"])
    return json.dumps(block, ensure_ascii=False)
