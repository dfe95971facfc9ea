"""Converts a conversation to a request of OpenAI's Chat Completions API."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

from gateway.chat.openai_options import answer_format, offered, passed_on, tool_mode
from gateway.chat.responses_request import to_audio
from gateway.errors import ChatClientInvalidRequestException
from gateway.json_types import JsonObject, as_text
from gateway.types.call_arguments import decoded, to_text
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions

logger = logging.getLogger(__name__)

UNSUPPORTED = frozenset({"background", "stream_options"})
"""Options of `ChatOptions` that are not sent, because the Chat Completions API does not support them or the client sets them itself."""

REASONING_DETAILS = "reasoning_details"
"""Field of a message in which some servers return the model's reasoning. It must be sent back unchanged with the message."""


def to_request(messages: Sequence[Message], options: ChatOptions, instruction_role: str | None = None) -> JsonObject:
    """Return the body of a request to the Chat Completions API, without the field `model`.

    Raises:
        ChatClientInvalidRequestException: The conversation is empty, or an option is invalid.
    """
    if options.get("conversation_id") or cast("JsonObject", options).get("continuation_token"):
        logger.debug("options ignored, Chat Completions stores no conversation options='conversation_id, continuation_token'")
    request = passed_on(options, {}, UNSUPPORTED)
    request["messages"] = to_wire_messages(messages, options.get("instructions"), instruction_role)
    if not request["messages"]:
        raise ChatClientInvalidRequestException("There is nothing to send: the conversation has no content.")
    _add_tools(request, options)
    if (form := answer_format(options)) is not None:
        inner = {key: value for key, value in form.items() if key != "type"}
        request["response_format"] = {"type": form["type"], **({"json_schema": inner} if inner else {})}
    return request


def _add_tools(request: JsonObject, options: ChatOptions) -> None:
    ours, hosted = offered(options)
    tools: list[JsonObject] = [
        {"type": "function", "function": {"name": t.name, "description": t.description or "", "parameters": t.input_schema}} for t in ours
    ]
    for tool in hosted:
        if tool.get("type") == "web_search":
            request["web_search_options"] = {key: value for key, value in tool.items() if key != "type"}
        else:
            tools.append(tool)
    if not tools:
        request.pop("parallel_tool_calls", None)
        return
    request["tools"] = tools
    mode = tool_mode(options)
    if name := mode.get("required_function_name"):
        request["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif allowed := mode.get("allowed_tools"):
        named = [{"type": "function", "function": {"name": name}} for name in cast("Sequence[str]", allowed)]
        request["tool_choice"] = {"type": "allowed_tools", "allowed_tools": {"mode": mode["mode"], "tools": named}}
    else:
        request["tool_choice"] = mode["mode"]


def to_wire_messages(messages: Sequence[Message], instructions: str | None, instruction_role: str | None = None) -> list[JsonObject]:
    """Convert messages to the Chat Completions API. Each tool result becomes a separate message, before the rest of its message.

    `instructions` become the first message, with the role `instruction_role` (default `system`).
    """
    wire: list[JsonObject] = [{"role": instruction_role or "system", "content": instructions}] if instructions else []
    shown: list[JsonObject] = []
    for message in messages:
        results = [c for c in message.contents if c.type == "function_result"]
        wire += [_result(result, shown) for result in results]
        rest = [c for c in message.contents if c.type != "function_result"] if results else message.contents
        entry = _entry(message, rest)
        if entry is not None:
            if shown:
                wire.append({"role": "user", "content": shown})
                shown = []
            wire.append(entry)
    return [*wire, {"role": "user", "content": shown}] if shown else wire


def _entry(message: Message, contents: Sequence[Content]) -> JsonObject | None:
    entry: JsonObject = {"role": "user" if message.role == "tool" else message.role}
    if message.author_name and message.role != "tool":
        entry["name"] = "".join(c if c.isalnum() or c in "-_" else "_" for c in message.author_name)[:64]
    calls = [_wire_call(c) for c in contents if c.type == "function_call"]
    reasoning = next((c.protected_data for c in reversed(contents) if c.type == "text_reasoning" and c.protected_data), None)
    refusal = "".join(c.text or "" for c in contents if c.type == "text" and c.additional_properties.get("refusal"))
    content = _wire_content(message.role, contents)
    if not (calls or reasoning or refusal or content):
        return None
    entry["content"] = content or (None if message.role == "assistant" else "")
    if calls:
        entry["tool_calls"] = calls
    if refusal:
        entry["refusal"] = refusal
    if reasoning:
        entry[REASONING_DETAILS] = decoded(reasoning)
    return entry


def _wire_content(role: str, contents: Sequence[Content]) -> str | list[JsonObject]:
    """Return the field `content` of a message. It is a string if there is only text, because not every compatible server accepts a list."""
    if role in ("assistant", "system", "developer"):
        return "".join(c.text or "" for c in contents if c.type == "text" and not c.additional_properties.get("refusal"))
    parts = [part for c in contents if (part := _part(c)) is not None]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(content: Content) -> JsonObject | None:
    properties = content.additional_properties
    if content.type == "text":
        return {"type": "text", "text": content.text or ""}
    if content.type == "hosted_file":
        return {"type": "file", "file": {"file_id": content.file_id}}
    if content.type not in ("data", "uri"):
        return None
    if content.has_top_level_media_type("image"):
        detail = {"detail": properties["detail"]} if properties.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": content.uri, **detail}}
    if content.has_top_level_media_type("audio") and (audio := to_audio(content)) is not None:
        return {"type": "input_audio", "input_audio": audio}
    if content.type == "uri":
        kind = content.media_type or "file"
        logger.warning("address sent as text, Chat Completions accepts no address of this media type media_type=%r", kind)
        return {"type": "text", "text": content.uri or ""}
    name = content.name or properties.get("filename") or "file"
    return {"type": "file", "file": {"file_data": content.uri, "filename": name}}


def _result(content: Content, shown: list[JsonObject]) -> JsonObject:
    """Return the message with the result of a tool call.

    The API accepts only text in this message. Images and files are added to `shown`, the content of a user message that follows all
    results.
    """
    rich = [part for item in content.items or () if item.type != "text" and (part := _part(item)) is not None]
    if rich:
        shown += [{"type": "text", "text": f"Result of the tool call {content.call_id}:"}, *rich]
    text = as_text(content.result) or ("(shown in the message after the results)" if rich else "")
    return {"role": "tool", "tool_call_id": content.call_id, "content": text}


def _wire_call(call: Content) -> JsonObject:
    arguments = to_text(call.arguments) or "{}"
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
