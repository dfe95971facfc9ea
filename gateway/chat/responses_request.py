"""Converts a conversation to a request of OpenAI's Responses API.

If the API's provider stores nothing, every request contains the whole conversation, and reasoning is sent back only in encrypted form.
Messages and function calls are sent without the provider's ids, because the provider would look up the ids in its storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from gateway.chat.openai_options import answer_format, offered, passed_on, tool_mode
from gateway.errors import ChatClientInvalidRequestException
from gateway.json_types import JsonObject, JsonValue, as_text
from gateway.tools.base import ToolDefinition
from gateway.types.annotations import Annotation
from gateway.types.call_arguments import to_text
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions

RENAMED = {"max_tokens": "max_output_tokens"}
UNSUPPORTED = frozenset({"presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop", "verbosity"})
"""Options of `ChatOptions` that are not sent under their own name: the API does not support them, or has another field for them."""

AUDIO_FORMATS = {"wav": "wav", "x-wav": "wav", "wave": "wav", "mp3": "mp3", "mpeg": "mp3"}
"""Subtype of an audio media type → the name of the audio format in the API."""

FOREIGN_ITEM = "openai_item"
"""Key in the `additional_properties` of a message's content. The value is an output item of the API that does not fit any type of content;
it is sent back unchanged."""


def to_request(messages: Sequence[Message], options: ChatOptions, instruction_role: str | None = None) -> JsonObject:
    """Return the body of a request to the Responses API, without the field `model`.

    Raises:
        ChatClientInvalidRequestException: The conversation is empty, or an option is invalid.
    """
    request = passed_on(options, RENAMED, UNSUPPORTED)
    conversation = options.get("conversation_id")
    keeps = bool(conversation or options.get("store") or options.get("background"))
    request["store"] = keeps if options.get("store") is None else options.get("store")
    if conversation:
        request["conversation" if conversation.startswith("conv_") else "previous_response_id"] = conversation
    request["input"] = to_items(messages, kept=bool(conversation))
    if not request["input"]:
        raise ChatClientInvalidRequestException("There is nothing to send: the conversation has no content.")
    if instructions := options.get("instructions"):
        _instruct(request, instructions, instruction_role)
    if "reasoning" in request and not keeps and "include" not in request:
        request["include"] = ["reasoning.encrypted_content"]
    _add_tools(request, options)
    _add_text(request, options)
    return request


def _instruct(request: JsonObject, instructions: str, role: str | None) -> None:
    if role is None:
        request["instructions"] = instructions
    else:
        request["input"].insert(0, {"type": "message", "role": role, "content": [{"type": "input_text", "text": instructions}]})


def _add_tools(request: JsonObject, options: ChatOptions) -> None:
    ours, hosted = offered(options)
    if not ours and not hosted:
        request.pop("parallel_tool_calls", None)
        return
    request["tools"] = [*(_function(tool) for tool in ours), *hosted]
    mode = tool_mode(options)
    if name := mode.get("required_function_name"):
        request["tool_choice"] = {"type": "function", "name": name}
    elif allowed := mode.get("allowed_tools"):
        named = [{"type": "function", "name": name} for name in cast("Iterable[str]", allowed)]
        request["tool_choice"] = {"type": "allowed_tools", "mode": mode["mode"], "tools": named}
    else:
        request["tool_choice"] = mode["mode"]


def _function(tool: ToolDefinition) -> JsonObject:
    described = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", **described, "strict": False}


def _add_text(request: JsonObject, options: ChatOptions) -> None:
    text: JsonObject = dict(request.get("text") or {})
    if (form := answer_format(options)) is not None:
        text["format"] = form
    if (verbosity := cast("JsonObject", options).get("verbosity")) is not None:
        text["verbosity"] = verbosity
    if text:
        request["text"] = text


# -- messages ----------------------------------------------------------------------------------------------------


def to_items(messages: Sequence[Message], *, kept: bool = False) -> list[JsonObject]:
    """Convert messages to input items of the Responses API.

    If `kept` is true, the provider stores the conversation, so function calls, reasoning and other items that the provider created are left
    out. Texts, results of tool calls and answers to approval requests are converted in any case.
    """
    items: list[JsonObject] = []
    calls: dict[str, JsonObject] = {}
    for message in messages:
        parts: list[JsonObject] = []
        for content in message.contents:
            if (part := _part(content, message.role)) is not None:
                parts.append(part)
                continue
            if parts:
                items.append({"type": "message", "role": message.role, "content": parts})
                parts = []
            item = _item(content, kept=kept)
            if item is None:
                continue
            if item["type"] == "mcp_call":
                calls[str(item["id"])] = item
            if not _joined(items, calls, item):
                items.append(item)
        if parts:
            items.append({"type": "message", "role": message.role, "content": parts})
    return _without_orphans(items)


def _part(content: Content, role: str) -> JsonObject | None:
    """Convert a content to a part of an input message of the Responses API; `None` if it must be a separate item or cannot be sent."""
    if content.type == "text":
        if role == "assistant":
            if content.additional_properties.get("refusal"):
                return {"type": "refusal", "refusal": content.text or ""}
            return {"type": "output_text", "text": content.text or "", "annotations": to_annotations(content.annotations or ())}
        return {"type": "input_text", "text": content.text or ""}
    return None if role == "assistant" else input_part(content)


def input_part(content: Content) -> JsonObject | None:
    """Convert a content that is an image, audio or file to a part of the model's input in the API's format; `None` for other contents."""
    properties = content.additional_properties
    if content.type == "hosted_file":
        kind = "input_image" if content.has_top_level_media_type("image") else "input_file"
        return {"type": kind, "file_id": content.file_id}
    if content.type not in ("data", "uri"):
        return None
    if content.has_top_level_media_type("image"):
        image: JsonObject = {"type": "input_image", "image_url": content.uri, "detail": properties.get("detail", "auto")}
        return image | ({"file_id": properties["file_id"]} if properties.get("file_id") else {})
    if content.has_top_level_media_type("audio") and (audio := to_audio(content)) is not None:
        return {"type": "input_audio", "input_audio": audio}
    file: JsonObject = {"type": "input_file", "file_data" if content.type == "data" else "file_url": content.uri}
    name = content.name or properties.get("filename")
    if name is None and content.type == "data":
        name = "file." + (content.media_type or "bin").rpartition("/")[2].partition(";")[0].partition("+")[0]
    return file | ({"filename": name} if name is not None else {})


def to_audio(content: Content) -> JsonObject | None:
    """Convert a content with inline audio to the form of OpenAI's APIs: base64 data and the format `wav` or `mp3`; `None` for any other."""
    form = AUDIO_FORMATS.get((content.media_type or "").partition("/")[2].partition(";")[0].lower())
    data = (content.uri or "").partition("base64,")[2]
    return {"data": data, "format": form} if form and data else None


def _item(content: Content, *, kept: bool) -> JsonObject | None:
    match content.type:
        case "function_result":
            return {"type": "function_call_output", "call_id": content.call_id, "output": _output(content)}
        case "function_approval_response" if (content.function_call or content).additional_properties.get("server_label"):
            return {"type": "mcp_approval_response", "approval_request_id": content.id, "approve": bool(content.approved)}
        case _ if kept:
            return None
        case "function_call":
            arguments = to_text(content.arguments) or "{}"
            return {"type": "function_call", "call_id": content.call_id, "name": content.name, "arguments": arguments}
        case "text_reasoning":
            return _reasoning(content)
        case "mcp_server_tool_call":
            where: JsonObject = {"server_label": content.server_name or "", "name": content.tool_name or ""}
            return {"type": "mcp_call", "id": content.call_id, **where, "arguments": to_text(content.arguments)}
        case "mcp_server_tool_result":
            return {"type": "mcp_result", "id": content.call_id, "output": _as_text(content.output)}
        case "function_approval_request" if (call := content.function_call) and call.additional_properties.get("server_label"):
            label = call.additional_properties["server_label"]
            request: JsonObject = {"type": "mcp_approval_request", "id": content.id, "server_label": label, "name": call.name}
            return {**request, "arguments": to_text(call.arguments)}
        case _ if content.additional_properties.get(FOREIGN_ITEM):
            return cast("JsonObject", content.additional_properties[FOREIGN_ITEM])
        case _:
            return None


def _reasoning(content: Content) -> JsonObject | None:
    encrypted = content.protected_data or content.additional_properties.get("encrypted_content")
    summary = [{"type": "summary_text", "text": content.text}] if content.text else []
    item: JsonObject = {"type": "reasoning", "id": content.id or "", "summary": summary}
    return item | ({"encrypted_content": encrypted} if encrypted else {})


def _joined(items: list[JsonObject], calls: dict[str, JsonObject], item: JsonObject) -> bool:
    """Merge `item` into the earlier item of `items` that it belongs to, if any. Return true if `item` must not be added to `items`.

    The output of a call of a remote MCP server is merged into the call. A further summary of the same reasoning is merged into the
    item of the reasoning.
    """
    if item["type"] == "mcp_result":
        if (call := calls.get(str(item["id"]))) is not None:
            call["output"] = item["output"]
        return True
    last = items[-1] if items else {}
    if item["type"] == "reasoning" and item["id"] and last.get("type") == "reasoning" and last.get("id") == item["id"]:
        last["summary"] = [*last["summary"], *item["summary"]]
        if "encrypted_content" in item:
            last["encrypted_content"] = item["encrypted_content"]
        return True
    return False


def _without_orphans(items: list[JsonObject]) -> list[JsonObject]:
    """Return a copy of `items` without the reasoning items that have no encrypted content, which the provider would reject.

    Calls of remote MCP servers that follow removed reasoning are removed too: the provider accepts them only together with the reasoning.
    """
    sent: list[JsonObject] = []
    lost = False
    for item in items:
        if item["type"] == "reasoning":
            lost = "encrypted_content" not in item
            if lost:
                continue
        elif item["type"] == "message":
            lost = lost and item["role"] == "assistant"
        elif item["type"] == "mcp_call" and lost:
            continue
        sent.append(item)
    return sent


def _output(content: Content) -> str | list[JsonObject]:
    rich = [part for item in content.items or () if item.type != "text" and (part := input_part(item)) is not None]
    text = _as_text(content.result)
    if not rich:
        return text
    return [*([{"type": "input_text", "text": text}] if text else []), *rich]


def _as_text(value: JsonValue) -> str:
    if isinstance(value, list) and all(isinstance(item, Content) for item in cast("list[object]", value)):
        return "".join(item.text or "" for item in cast("list[Content]", value))
    return as_text(value)


def to_annotations(annotations: Sequence[Annotation]) -> list[JsonObject]:
    """Convert citations to annotations of the Responses API: one for each cited span of text, or one for a file outside a container."""
    found: list[JsonObject] = []
    for annotation in annotations:
        properties = annotation.get("additional_properties") or {}
        file_id, url = annotation.get("file_id"), annotation.get("url")
        spans = [
            {"start_index": r.get("start_index"), "end_index": r.get("end_index")}
            for r in annotation.get("annotated_regions") or ()
            if isinstance(r.get("start_index"), int) and isinstance(r.get("end_index"), int)
        ]
        index = {"index": properties["index"]} if properties.get("index") is not None else cast("JsonObject", {})
        if file_id and properties.get("container_id"):
            base: JsonObject = {"type": "container_file_citation", "container_id": properties["container_id"], "file_id": file_id}
            found += [{**base, "filename": url or "", **span} for span in spans]
        elif file_id:
            kind: JsonObject = {"type": "file_citation", "filename": url} if url else {"type": "file_path"}
            found.append({**kind, "file_id": file_id, **index})
        elif url:
            found += [{"type": "url_citation", "url": url, "title": annotation.get("title") or "", **span} for span in spans]
    return found
